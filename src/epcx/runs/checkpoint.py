"""Checkpoints: there completely or not at all, with checksums, two kept.

checkpoints/000012/checkpoint.json             facts, and the checksums of all files it needs
checkpoints/000012/match-0.safetensors         named arrays
checkpoints/segments/match-0-9f3a.safetensors  rows of ring buffers, each written once

A ring buffer is most of a training state, and only some of its rows change between two checkpoints.
These rows are a segment; a checkpoint names the segments that together are the buffer. Files are
written by other threads while training goes on.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from epcx.errors import InputError, RunError, reason
from epcx.runs.files import (
    MAX_WEIGHTS,
    check_file,
    json_digest,
    read_text,
    sync_folder,
    write_through,
)

KEPT = 2
ABOUT = "checkpoint.json"
SEGMENTS = "segments"
FORMAT = "epcx checkpoint 4"
HALF_DONE = ".writing-"
THREADS = 8
DTYPES = {  # of safetensors, by their names in NumPy
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
    "bfloat16": "BF16",
}
NUMPY_DTYPES = {kind: jnp.dtype(name) for name, kind in DTYPES.items()}
Arrays = dict[str, np.ndarray]


class Rows(NamedTuple):
    """Some rows of ring buffers: `arrays` have them on their second axis, after the shards."""

    rows: Int[np.ndarray, "rows"]
    arrays: Arrays


class MatchState(NamedTuple):
    """The training state of a match, or what has changed: rows, oldest first, and the rest."""

    arrays: Arrays
    rows: Sequence[Rows] = ()


class MatchUpdate(NamedTuple):
    """What a match has changed between two counts of updates; `since` 0: from the beginning."""

    since: int
    until: int
    state: MatchState


@dataclass(frozen=True)
class Segment:
    """A file of rows, as a checkpoint names it."""

    file: str
    checksum: str
    rows: tuple[int, ...]
    until: int  # updates


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: `about` as JSON, arrays by name, and rows of ring buffers by match."""

    about: dict[str, Any]
    arrays: dict[str, Arrays]
    rows: dict[str, list[Rows]] = field(default_factory=dict)

    def state(self, name: str) -> MatchState:
        return MatchState(self.arrays.get(name, {}), self.rows.get(name, []))


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.segments: dict[str, list[Segment]] = {}  # of the newest checkpoint, by match
        self.written = 0  # bytes, by this process
        self._pool: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def numbers(self) -> list[int]:
        """Oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdecimal())

    def save(
        self,
        about: dict[str, Any],
        files: Mapping[str, Arrays],
        updates: Mapping[str, MatchUpdate] | None = None,
    ) -> None:
        """Begins to write one more, in the background; `wait` returns when it lasts.

        `updates` are changes of matches since the checkpoint before. Arrays must not change any
        more. Raises if the checkpoint before could not be written.
        """
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS + 1, "checkpoint")
        self._writing = self._pool.submit(self._save, about, files, updates or {})

    @property
    def busy(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Until what was begun is on disk; raises if that failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def load(self, notify: Callable[[str], None]) -> Checkpoint | None:
        """The newest one that is whole; none if none was ever made."""
        numbers, damaged = self.numbers(), []
        for number in reversed(numbers):
            place = self.folder / f"{number:06}"
            try:
                checkpoint, self.segments = _read(place)
            except _DamagedError as damage:
                damaged.append(f"checkpoint {place} is damaged ({damage}): trying the one before")
            else:
                for message in damaged:
                    notify(message)
                return checkpoint
        if numbers:
            raise InputError(f"no checkpoint in {self.folder} is whole: train again")
        return None

    def clear(self) -> None:
        """Removes all: the run is finished."""
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Waits for what is being written, whether it succeeds or not."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    # In the background

    def _save(
        self,
        about: dict[str, Any],
        files: Mapping[str, Arrays],
        updates: Mapping[str, MatchUpdate],
    ) -> None:
        """Writes one more, then removes the oldest; a failure leaves the others intact."""
        number = max(self.numbers(), default=0) + 1
        place = self.folder / f"{HALF_DONE}{secrets.token_hex(4)}"
        new: list[Path] = []
        try:
            (self.folder / SEGMENTS).mkdir(parents=True, exist_ok=True)
            self._sweep()
            place.mkdir()
            arrays = {**files, **{name: update.state.arrays for name, update in updates.items()}}
            sums = self._write_all(
                {place / f"{name}.safetensors": some for name, some in arrays.items()}
            )
            segments: dict[str, list[Segment]] = {}
            added: dict[Path, tuple[str, Rows, int]] = {}
            for name, update in updates.items():
                before = self.segments.get(name, [])
                segments[name] = [one for one in before if one.until <= update.since]
                if update.since and update.state.rows:
                    assert segments[name], f"{name} has no rows of its first updates"
                    assert segments[name][-1].until == update.since, f"rows of {name} are missing"
                for rows in update.state.rows:
                    path = self.folder / SEGMENTS / f"{name}-{secrets.token_hex(6)}.safetensors"
                    added[path] = name, rows, update.until
            new = list(added)
            checksums = self._write_all({path: rows.arrays for path, (_, rows, _) in added.items()})
            for path, (name, rows, until) in added.items():
                numbers = tuple(rows.rows.tolist())
                segments[name].append(Segment(path.name, checksums[path], numbers, until))
            segments = {name: without_overwritten(some) for name, some in segments.items()}
            sync_folder(self.folder / SEGMENTS)
            whole = {
                "format": FORMAT,
                "files": {path.stem: checksum for path, checksum in sums.items()},
                "segments": {name: [vars(one) for one in some] for name, some in segments.items()},
                "about": about,
            }
            sealed = {**whole, "seal": json_digest(whole)}
            write_through(place / ABOUT, json.dumps(sealed, indent=1).encode())
            sync_folder(place)
            os.replace(place, self.folder / f"{number:06}")
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            for path in new:
                path.unlink(missing_ok=True)
            run = self.folder.parent
            last = "the one before is intact" if self.numbers() else "there is none before"
            raise RunError(
                f"the checkpoint cannot be written to {self.folder}: {reason(error)}; {last}: "
                f"make room, then go on with: epcx resume {run}"
            ) from None
        self.segments = segments
        self._remove_old()

    def _write_all(self, files: Mapping[Path, Arrays]) -> dict[Path, str]:
        """Writes files in parallel; their checksums."""
        assert self._pool is not None
        return dict(zip(files, self._pool.map(self._write, files, files.values()), strict=True))

    def _write(self, path: Path, arrays: Arrays) -> str:
        content = safetensors(arrays)
        write_through(path, *content)
        checksum = hashlib.sha256()
        for part in content:
            checksum.update(part)
        self.written += sum(map(len, content))
        return checksum.hexdigest()

    def _remove_old(self) -> None:
        """All but the last checkpoints, and the segments that they do not name."""
        numbers = self.numbers()
        for old in numbers[:-KEPT]:
            shutil.rmtree(self.folder / f"{old:06}", ignore_errors=True)
        named = {one.file for some in self.segments.values() for one in some}
        for number in numbers[-KEPT:-1]:
            try:
                about = json.loads(read_text(self.folder / f"{number:06}" / ABOUT))
                named |= {one["file"] for some in about["segments"].values() for one in some}
            except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
                continue  # damaged: it cannot be resumed from
        for path in (self.folder / SEGMENTS).iterdir():
            if path.name not in named:
                with contextlib.suppress(OSError):  # it is no file, or gone
                    path.unlink()

    def _sweep(self) -> None:
        """Removes what a sudden death left half-written."""
        for place in self.folder.glob(f"{HALF_DONE}*"):
            shutil.rmtree(place, ignore_errors=True)


def safetensors(arrays: Arrays) -> list[bytes | memoryview]:
    """The content of a safetensors file, in parts that share the memory of the arrays.

    The library's `save` and `load` copy gigabytes, and keep other threads waiting meanwhile.
    """
    header, parts, end = {}, [], 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        kind = DTYPES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *parts]


def from_safetensors(content: bytes) -> Arrays:
    """Arrays that share the memory of a file's content."""
    begin = 8 + int.from_bytes(content[:8], "little")
    arrays = {}
    for name, facts in json.loads(content[8:begin]).items():
        first, last = facts["data_offsets"]
        data = np.frombuffer(content, np.uint8, last - first, begin + first)
        arrays[name] = data.view(NUMPY_DTYPES[facts["dtype"]]).reshape(facts["shape"])
    return arrays


@runtime_checkable
class HasRows(Protocol):
    @property
    def rows(self) -> tuple[int, ...]: ...


Changed = TypeVar("Changed", bound=HasRows)


def without_overwritten(changes: Sequence[Changed]) -> list[Changed]:
    """The last one, and those of which some rows have not been written again since."""
    later: set[int] = set()
    kept: list[Changed] = []
    for change in reversed(changes):
        if not kept or not later.issuperset(change.rows):
            kept.append(change)
        later |= set(change.rows)
    return kept[::-1]


class _DamagedError(Exception):
    pass


def _read(place: Path) -> tuple[Checkpoint, dict[str, list[Segment]]]:
    """A checkpoint and its segments; files are read in parallel."""
    try:
        whole = json.loads(read_text(place / ABOUT))
        seal = whole.pop("seal")
        if json_digest(whole) != seal:
            raise _DamagedError(f"{ABOUT} has another checksum")
        found = whole["format"]
        if found != FORMAT:
            raise InputError(f"{place} has format '{found}', but this version reads '{FORMAT}'")
        segments = {
            name: [Segment(**{**one, "rows": tuple(one["rows"])}) for one in some]
            for name, some in whole["segments"].items()
        }
        listed = [one for some in segments.values() for one in some]
        wanted = {place / f"{name}.safetensors": s for name, s in whole["files"].items()}
        wanted |= {place.parent / SEGMENTS / one.file: one.checksum for one in listed}
        with ThreadPoolExecutor(THREADS) as pool:
            arrays = dict(zip(wanted, pool.map(_read_arrays, wanted.items()), strict=True))
        rows = {
            name: [
                Rows(np.array(one.rows), arrays[place.parent / SEGMENTS / one.file]) for one in some
            ]
            for name, some in segments.items()
        }
        files = {name: arrays[place / f"{name}.safetensors"] for name in whole["files"]}
        return Checkpoint(whole["about"], files, rows), segments
    except OSError as error:
        raise _DamagedError(reason(error)) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise _DamagedError(f"{ABOUT} is not as it was written") from None


def _read_arrays(wanted: tuple[Path, str]) -> Arrays:
    path, checksum = wanted
    check_file(path, MAX_WEIGHTS)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise _DamagedError(f"{path.stem} has another checksum")
    return from_safetensors(content)
