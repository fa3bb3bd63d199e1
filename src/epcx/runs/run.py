"""A run: a folder with everything one training produced.

config.json        the settings, with versions, machine and commit
metrics.jsonl      a line per stage, match and log interval
lineage.json       every agent set: its parents, its fitness, whether it was promoted
digests.jsonl      the checksum of every file of weights
agents/3-2/0/sheep.safetensors   the agent sets that came out of the stage 3-2, best first
snapshots/3-2/500/0/sheep.safetensors   the policies of match 0 after 500 episodes, if asked for
result.json        how it ended
checkpoints/       what is needed to go on, while it is not finished
tracking.json      what follows the training, if asked for: TensorBoard, Weights & Biases
tensorboard/       the same metrics for TensorBoard
"""

import fcntl
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import IO, Any

from epcx import __version__
from epcx.errors import InputError, RunError, reason
from epcx.runs.checkpoint import Checkpoints
from epcx.runs.files import (
    MAX_TEXT,
    append_json_line,
    check_file,
    file_digest,
    json_digest,
    read_json_lines,
    read_text,
    write_bytes,
)
from epcx.runs.weights import digest, save_weights

CONFIG = "config.json"
METRICS = "metrics.jsonl"
LINEAGE = "lineage.json"
RESULT = "result.json"
DIGESTS = "digests.jsonl"
TRACKING = "tracking.json"
LOCK = "lock"
AGENTS = "agents"
SNAPSHOTS = "snapshots"
PROVENANCE = "provenance"
FORMAT = "epcx run 2"


class RunFolder:
    """The folder of a run; `create` makes it, `open` reads it."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._lock_file: IO[str] | None = None
        self._checksums: dict[str, set[str]] = {}
        self._checksums_size = -1

    @classmethod
    def create(
        cls,
        path: Path,
        settings: dict[str, Any],
        provenance: dict[str, Any],
    ) -> "RunFolder":
        """A new folder, locked by this process; one that has files is never touched."""
        check_unused(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run folder {path} cannot be made: {reason(error)}") from None
        run = cls(path, {"format": FORMAT, **settings, PROVENANCE: provenance})
        run.lock()
        check_unused(path)  # by a process that had the lock before
        run.write(CONFIG, run.config)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        config = read_json(path, CONFIG)
        if config is None:
            why = f"it has no {CONFIG}" if path.exists() else "there is no such folder"
            raise InputError(f"{path} is not a run: {why}")
        if not isinstance(config, dict):
            raise InputError(f"{path / CONFIG} is damaged: it holds no settings")
        check_format(path, config)
        return cls(path, config)

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a run has begun there; a start that failed may have left a folder."""
        return (path / CONFIG).exists()

    @classmethod
    def is_finished(cls, path: Path) -> bool:
        return cls.exists(path) and cls.open(path).result.get("ended") == "finished"

    def lock(self) -> None:
        """Keeps other processes from training in this folder, until this one ends."""
        try:
            lock = open(self.path / LOCK, "a", opener=open_without_waiting)  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self.path} is in use by another process: wait for it, or stop it first"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path} cannot be written to: {reason(error)}") from None
        self._lock_file = lock

    def unlock(self) -> None:
        if self._lock_file:
            self._lock_file.close()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the outcome."""
        return {k: v for k, v in self.config.items() if k not in ("format", PROVENANCE)}

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, machine and commit, as far as they are known."""
        found = self.config.get(PROVENANCE)
        return found if isinstance(found, dict) else {}

    def setting(self, name: str) -> Any:
        if name not in self.config:
            raise InputError(f"{self.path / CONFIG} is damaged: it has no '{name}'")
        return self.config[name]

    def write(self, name: str, content: Any) -> None:
        self._write(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def _write(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {reason(error)}") from None

    # Metrics

    def append_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Appends lines to the metrics; numbers that are not finite become null."""
        lines = [
            json.dumps({k: v if is_finite(v) else None for k, v in row.items()}) + "\n"
            for row in rows
        ]
        try:
            with open(self.path / METRICS, "a", opener=open_without_waiting) as file:
                check_file(self.path / METRICS, MAX_TEXT)
                file.writelines(lines)
        except OSError as error:
            raise RunError(f"{self.path / METRICS} cannot be written: {reason(error)}") from None

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / METRICS
        try:
            rows = [parse_json(line) for line in read_text(path).splitlines()]
        except OSError as error:
            raise InputError(f"{path} cannot be read: {reason(error)}") from None
        except (ValueError, RecursionError):
            rows = [None]
        if not all(map(is_metrics, rows)):
            raise InputError(f"{path} is damaged: it has lines that are no metrics")
        return rows

    def metrics_size(self) -> int:
        path = self.path / METRICS
        return path.stat().st_size if path.exists() else 0

    def check_logs(self) -> None:
        """Refuses files that no line can be appended to, before a training goes on."""
        self._known_checksums()
        path = self.path / METRICS
        try:
            check_file(path, MAX_TEXT)
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{path} cannot be read: {reason(error)}") from None

    def truncate_metrics(self, size: int) -> bool:
        """Drops lines that were written after a checkpoint: they will be written again.

        False if lines before it are missing; a half of one is dropped, too.
        """
        found = self.metrics_size()
        if found > size:
            os.truncate(self.path / METRICS, size)
        elif found:
            whole = (self.path / METRICS).read_bytes().rfind(b"\n") + 1
            if whole < found:
                os.truncate(self.path / METRICS, whole)
        return found >= size

    def write_result(self, result: dict[str, Any]) -> None:
        self.write(RESULT, result)

    @property
    def result(self) -> dict[str, Any]:
        """How it ended; empty if it has not."""
        found = read_json(self.path, RESULT)
        if not isinstance(found, dict | None):
            raise InputError(f"{self.path / RESULT} is damaged: it does not say how the run ended")
        return found or {}

    # Agents

    def lineage(self) -> Any:
        found = read_json(self.path, LINEAGE)
        if found is None:
            raise InputError(f"{self.path} has no {LINEAGE} yet: no stage is finished")
        return found

    def stages(self) -> list[str]:
        """The populations that agents were kept of, smallest first."""
        places = (self.path / AGENTS).glob("*/0")
        names = [place.parent.name for place in places]
        return sorted(names, key=lambda name: [int(n) for n in name.split("-") if n.isdecimal()])

    def save_agents(
        self, population: str, rank: int, role: str, tree: Any, about: dict[str, str]
    ) -> None:
        path = self._weights_path(population, rank, role)
        self._write_weights(path, save_weights(tree, about))

    def ranks(self, population: str) -> int:
        """How many sets of each role were kept of a stage."""
        rank = 0
        while (self.path / AGENTS / population / str(rank)).is_dir():
            rank += 1
        return rank

    def weights(self, population: str, rank: int, role: str) -> Path:
        """The file of an agent set; if there is one, its checksum is as it was written."""
        return self._verified(self._weights_path(population, rank, role))

    def _weights_path(self, population: str, rank: int, role: str) -> Path:
        return self.path / AGENTS / population / str(rank) / f"{role}.safetensors"

    def snapshot(self, population: str, episodes: int, match: int, role: str) -> Path:
        """As `weights`; `episodes` counts those along the lineage, as the metrics do."""
        return self._verified(self._snapshot_path(population, episodes, match, role))

    def _snapshot_path(self, population: str, episodes: int, match: int, role: str) -> Path:
        place = self.path / SNAPSHOTS / population / str(episodes) / str(match)
        return place / f"{role}.safetensors"

    def save_snapshot(
        self,
        population: str,
        episodes: int,
        match: int,
        role: str,
        tree: Any,
        about: dict[str, str],
    ) -> None:
        path = self._snapshot_path(population, episodes, match, role)
        self._write_weights(path, save_weights(tree, about))

    def snapshots(self, population: str) -> list[int]:
        """After how many episodes there are some of a stage."""
        places = (self.path / SNAPSHOTS / population).glob("*")
        return sorted(int(place.name) for place in places if place.name.isdecimal())

    # Checksums of weights

    def _write_weights(self, path: Path, content: bytes) -> None:
        """The checksum comes first: a file without one is never there, whatever interrupts this.

        An older content stays valid until it is replaced, because its checksum stays in the list.
        """
        self.add_checksums()
        self._add_checksum(path, hashlib.sha256(content).hexdigest())
        self._write(path, content)

    def add_checksums(self) -> None:
        """Of all weights as they are now, for a run that has no list of checksums."""
        files = self._weights_files()
        if files and not (self.path / DIGESTS).exists():
            lines = [json.dumps(self._checksum_row(path, file_digest(path))) for path in files]
            self._write(self.path / DIGESTS, "".join(f"{line}\n" for line in lines).encode())

    def accept_weights(self) -> list[Path]:
        """Trusts all weights as they are now; the files whose checksums were not known."""
        self.add_checksums()
        accepted = []
        for path in self._weights_files():
            row = self._checksum_row(path, file_digest(path))
            if row["sha256"] not in self._known_checksums().get(row["file"], ()):
                self._add_checksum(path, row["sha256"])
                accepted.append(path)
        return accepted

    def _weights_files(self) -> list[Path]:
        folders = (self.path / AGENTS, self.path / SNAPSHOTS)
        return [path for folder in folders for path in sorted(folder.rglob("*.safetensors"))]

    def _checksum_row(self, path: Path, checksum: str) -> dict[str, str]:
        return {"file": path.relative_to(self.path).as_posix(), "sha256": checksum}

    def _add_checksum(self, path: Path, checksum: str) -> None:
        row = self._checksum_row(path, checksum)
        known = self._known_checksums().setdefault(row["file"], set())
        if checksum in known:
            return
        try:
            append_json_line(self.path / DIGESTS, row)
            self._checksums_size = (self.path / DIGESTS).stat().st_size
        except OSError as error:
            raise RunError(f"{self.path / DIGESTS} cannot be written: {reason(error)}") from None
        known.add(checksum)

    def _known_checksums(self) -> dict[str, set[str]]:
        """By file; one that was replaced has several. The list is read when it has changed."""
        path = self.path / DIGESTS
        try:
            size = path.stat().st_size if path.exists() else 0
            if size != self._checksums_size:
                rows = read_json_lines(path) if path.exists() else []
                self._checksums, self._checksums_size = {}, size
                for row in rows:
                    known = self._checksums.setdefault(str(row.get("file")), set())
                    known.add(str(row.get("sha256")))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {reason(error)}") from None
        return self._checksums

    def _verified(self, path: Path) -> Path:
        """The path; weights that this run has not written are refused.

        Runs of earlier versions have no list of checksums, and their weights are not verified.
        """
        if path.exists() and (self.path / DIGESTS).exists():
            name = path.relative_to(self.path).as_posix()
            try:
                intact = file_digest(path) in self._known_checksums().get(name, ())
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason(error)}") from None
            if not intact:
                raise InputError(
                    f"{path} is damaged, or of another run: its checksum is not in {DIGESTS}; to "
                    f"trust it as it is: epcx digest {self.path} --accept"
                )
        return path

    def digests(self) -> dict[str, str]:
        """Checksums of what a training decides: not of times, places and versions."""
        known = {CONFIG: self.settings, LINEAGE: read_json(self.path, LINEAGE)}
        found = {name: json_digest(content) for name, content in known.items()}
        for path in sorted((self.path / AGENTS).rglob("*.safetensors")):
            found[path.relative_to(self.path).as_posix()] = digest(path)
        return found


def read_json(folder: Path, name: str) -> Any:
    """The content of a file of a run; none if there is none."""
    try:
        text = read_text(folder / name)
        return json.loads(text) if name == CONFIG else parse_json(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{folder / name} cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{folder / name} is damaged: it is not JSON") from None


def check_format(path: Path, config: dict[str, Any]) -> None:
    """Refuses settings of other versions."""
    provenance = config.get(PROVENANCE)
    version = provenance.get("epcx") if isinstance(provenance, dict) else None
    if isinstance(version, str) and version_numbers(version) > version_numbers(__version__):
        raise InputError(
            f"{path} was written by epcx {version}, newer than this {__version__}: upgrade epcx"
        )
    if "hyper" in config:
        raise InputError(
            f"{path} was written by epcx 0.1, whose settings have other names: train it again, "
            "or use it with epcx 0.1"
        )
    if config.get("format") != FORMAT:
        found = config.get("format")
        raise InputError(f"{path} has format {found!r}, but this version reads {FORMAT!r}")


def version_numbers(version: str) -> list[int]:
    """Of a version, for comparison: 0.10.1 comes after 0.9."""
    return [int(part) for part in re.findall(r"[0-9]{1,9}", version)[:3]]


def parse_json(text: str) -> Any:
    """JSON whose numbers are all finite: settings may be infinite, results are not."""
    return json.loads(text, parse_float=finite_float, parse_constant=finite_float)


def finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


def is_metrics(row: Any) -> bool:
    """Whether a line of the metrics says what it is about, and all the rest are numbers."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("population"), str)
        and {"match", "episodes"} <= row.keys()
        and all(type(row.get(name, 0)) is int for name in ("stage", "match", "episodes"))
        and all(
            value is None or (isinstance(value, int | float) and abs(value) < 2**63)
            for name, value in row.items()
            if name != "population"
        )
    )


def check_unused(path: Path) -> None:
    """Refuses a folder that has files, unless a start that failed has left them."""
    try:
        used = path.exists() and any(
            file.name != LOCK and file.suffix != ".tmp" for file in path.iterdir()
        )
    except NotADirectoryError:
        used = True
    except OSError as error:
        raise InputError(f"run folder {path} cannot be read: {reason(error)}") from None
    if used:
        raise InputError(f"run folder {path} exists already: choose another --out, or remove it")


def open_without_waiting(path: str, flags: int) -> int:
    """An opener of files that fails where a pipe without a reader would wait."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
