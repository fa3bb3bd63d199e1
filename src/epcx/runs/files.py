"""Writing files so that an interrupt leaves the old one or the new one, never a part."""

import os
import secrets
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.parent / f".{secrets.token_hex(6)}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder last, as `fsync` does for the content of a file."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
