"""The user's cache folder, for files that can be made again."""

import contextlib
import os
import stat
from pathlib import Path


class UnsafeFolderError(OSError):
    """Somebody else could have put files into a folder."""


def private_folder(name: str) -> Path:
    """$XDG_CACHE_HOME or ~/.cache, then epcx/name: a folder to which only the user may write.

    It is for programs, which are executed. A RuntimeError where there is no home folder.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "epcx" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafeFolderError(f"{folder} is no folder of this user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFolderError(f"others may write to the folder {folder}")
    return folder
