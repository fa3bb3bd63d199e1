"""The user's cache folder, for files that can be made again."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """$XDG_CACHE_HOME or ~/.cache, then epcx/name; a RuntimeError without a home folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "epcx" / name
