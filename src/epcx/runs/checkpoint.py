"""Checkpoints: folders that are there completely or not at all, with checksums, two kept.

checkpoints/000012/match-0.safetensors   named arrays
checkpoints/000012/checkpoint.json       what else there is to know, and the checksums of the files
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from epcx.errors import InputError, RunError, reason
from epcx.runs.files import json_digest, sync_folder, write_through

KEPT = 2
ABOUT = "checkpoint.json"
FORMAT = "epcx checkpoint 3"
HALF_DONE = ".writing-"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: `about` as JSON, and files of arrays by name."""

    about: dict[str, Any]
    arrays: dict[str, Arrays]


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def numbers(self) -> list[int]:
        """Oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdecimal())

    def save(self, about: dict[str, Any], files: Iterable[tuple[str, Arrays]]) -> None:
        """Writes one more, then removes the oldest; a failure leaves the others intact."""
        number = max(self.numbers(), default=0) + 1
        place = self.folder / f"{HALF_DONE}{secrets.token_hex(4)}"
        try:
            self.folder.mkdir(exist_ok=True)
            self._sweep()
            place.mkdir()
            sums = {}
            for name, arrays in files:
                content = save({k: np.ascontiguousarray(x) for k, x in arrays.items()})
                sums[name] = hashlib.sha256(content).hexdigest()
                write_through(place / f"{name}.safetensors", content)
            whole = {"format": FORMAT, "files": sums, "about": about}
            sealed = {**whole, "seal": json_digest(whole)}
            write_through(place / ABOUT, json.dumps(sealed, indent=1).encode())
            sync_folder(place)
            os.replace(place, self.folder / f"{number:06}")
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            run = self.folder.parent
            last = "the one before is intact" if self.numbers() else "there is none before"
            raise RunError(
                f"the checkpoint cannot be written to {self.folder}: {reason(error)}; {last}: "
                f"make room, then go on with: epcx resume {run}"
            ) from None
        for old in self.numbers()[:-KEPT]:
            shutil.rmtree(self.folder / f"{old:06}", ignore_errors=True)

    def load(self, notify: Callable[[str], None]) -> Checkpoint | None:
        """The newest one that is whole; none if none was ever made."""
        numbers = self.numbers()
        for number in reversed(numbers):
            place = self.folder / f"{number:06}"
            try:
                return _read(place)
            except _DamagedError as damage:
                notify(f"checkpoint {place} is damaged ({damage}): trying the one before")
        if numbers:
            raise InputError(f"no checkpoint in {self.folder} is whole: train again")
        return None

    def clear(self) -> None:
        """Removes all: the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what a sudden death left half-written."""
        for place in self.folder.glob(f"{HALF_DONE}*"):
            shutil.rmtree(place, ignore_errors=True)


class _DamagedError(Exception):
    pass


def _read(place: Path) -> Checkpoint:
    try:
        whole = json.loads((place / ABOUT).read_text())
        seal = whole.pop("seal")
        if json_digest(whole) != seal:
            raise _DamagedError(f"{ABOUT} has another checksum")
        found = whole["format"]
        if found != FORMAT:
            raise InputError(f"{place} has format '{found}', but this version reads '{FORMAT}'")
        arrays = {}
        for name, expected in whole["files"].items():
            content = (place / f"{name}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != expected:
                raise _DamagedError(f"{name} has another checksum")
            arrays[name] = load(content)
        return Checkpoint(whole["about"], arrays)
    except OSError as error:
        raise _DamagedError(reason(error)) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _DamagedError(f"{ABOUT} is not as it was written") from None
    except SafetensorError:
        raise _DamagedError("its arrays cannot be read") from None
