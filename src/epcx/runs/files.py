"""Files that an interrupt leaves as they were or as they should be, and that are safe to read."""

import errno
import hashlib
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

MAX_TEXT = 2**30  # bytes, which no honest file of text has
MAX_WEIGHTS = 2**36


def check_file(path: Path, limit: int) -> None:
    """Raises an `OSError` for what would be read without end: pipes, devices, oversized files."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if found.st_size > limit:
        raise OSError(errno.EINVAL, f"it is larger than {limit} bytes", str(path))


def read_text(path: Path, errors: str = "strict") -> str:
    check_file(path, MAX_TEXT)
    return path.read_text(encoding="utf-8", errors=errors)


def file_digest(path: Path) -> str:
    check_file(path, MAX_WEIGHTS)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file, but nothing else that may be there: no pipe and no device."""
    path = Path(os.path.realpath(path))  # a link stays a link
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    temporary = path.parent / f".{secrets.token_hex(6)}.tmp"
    try:
        write_through(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_through(path: Path, *content: bytes | memoryview) -> None:
    """Writes a file that lasts when this returns; an interrupt may leave a part of it."""
    with open(path, "wb") as file:
        for part in content:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Makes the names in a folder last, as `fsync` does for the content of a file."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def json_digest(content: Any) -> str:
    """A checksum of what JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def append_json_line(path: Path, row: Any) -> None:
    """Appends a line that lasts when this returns, apart from one that was cut off before."""
    with open(path, "ab+") as file:
        check_file(path, MAX_TEXT)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        begin = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(begin + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one in each line, without lines that were cut off."""
    rows = []
    for line in read_text(path, errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
