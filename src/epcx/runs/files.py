"""Writing files so that an interrupt leaves the old one or the new one, never a part."""

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.parent / f".{secrets.token_hex(6)}.tmp"
    try:
        write_through(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Writes a file that lasts when this returns; an interrupt may leave a part of it."""
    with open(path, "wb") as file:
        file.write(content)
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
