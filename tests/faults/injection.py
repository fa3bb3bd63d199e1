"""Faults at chosen moments of a run: the n-th write, rename, report, pairing or stage.

By progress, not by the clock: a campaign with one seed always does the same. As a program it is
the command line of epcx, killed at that moment of writing to a folder:

    python -m tests.faults.injection segment 3 run train food-collection --out run
"""

import builtins
import contextlib
import errno
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from epcx import cli
from epcx.trainer import RunTrainer

# A report of training, a pairing of the fitness, the end of a stage, writes into a segment of a
# checkpoint, its other files and those of the run, and a new file that takes its place.
MOMENTS = ("report", "fitness", "stage", "segment", "checkpoint", "file", "rename")


class Faults:
    """Counts moments, and calls `strike` at the n-th of a kind; what is written then is cut off.

    The kind `write` is any of the three kinds of writes.
    """

    def __init__(self, strike: Callable[[], None], moment: str = "", number: int = 0):
        self.strike, self.moment, self.number = strike, moment, number
        self.counts: Counter[str] = Counter()

    def meet(self, moment: str) -> bool:
        """Whether this is the moment of the fault."""
        self.counts[moment] += 1
        return moment == self.moment and self.counts[moment] == self.number

    def meet_write(self, path: Path) -> bool:
        """As `meet`; a write has two names."""
        inside = path.parent.parent.name == "checkpoints"
        kind = "segment" if path.parent.name == "segments" else "checkpoint" if inside else "file"
        met = [self.meet(kind), self.meet("write")]
        return any(met)

    def reach(self, moment: str) -> None:
        if self.meet(moment):
            self.strike()

    @contextlib.contextmanager
    def inside(self, folder: Path) -> Iterator[None]:
        """Within, files below the folder and trainings in this process meet the fault."""
        real_open, real_replace = builtins.open, os.replace
        report, play, keep = RunTrainer._report, RunTrainer.play, RunTrainer._keep

        def faulty_open(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            file = real_open(path, mode, *rest, **options)
            below = isinstance(path, str | Path) and Path(path).is_relative_to(folder)
            return FaultyFile(file, Path(path), self) if below and mode[0] in "wa" else file

        def faulty_replace(source: Any, target: Any) -> None:
            if Path(target).is_relative_to(folder):
                self.reach("rename")
            real_replace(source, target)

        def faulty_report(*arguments: Any) -> None:
            self.reach("report")
            report(*arguments)

        def faulty_play(trainer: RunTrainer, stage: Any, teams: Any, *rest: Any) -> Any:
            return play(trainer, stage, self.each_reaches("fitness", teams), *rest)

        def faulty_keep(*arguments: Any) -> None:
            self.reach("stage")
            keep(*arguments)

        with contextlib.ExitStack() as patches:
            for place, name, replaced in (
                (builtins, "open", faulty_open),
                (os, "replace", faulty_replace),
                (RunTrainer, "_report", faulty_report),
                (RunTrainer, "play", faulty_play),
                (RunTrainer, "_keep", faulty_keep),
            ):
                patches.enter_context(mock.patch.object(place, name, replaced))
            yield

    def each_reaches(self, moment: str, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.reach(moment)
            yield item


class FaultyFile:
    """A file that may be left half-written."""

    def __init__(self, file: Any, path: Path, faults: Faults):
        self.file, self.path, self.faults = file, path, faults

    def write(self, content: Any) -> Any:
        if self.faults.meet_write(self.path):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            self.faults.strike()
        return self.file.write(content)

    def writelines(self, lines: list[Any]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "FaultyFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()


class FullDisk(Faults):
    """From the n-th write on, none succeeds, as long as the process lives."""

    def __init__(self, number: int):
        super().__init__(no_space, "write", number)

    def meet(self, moment: str) -> bool:
        super().meet(moment)
        return moment == self.moment and self.counts[moment] >= self.number


def no_space() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    moment, number, folder, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    with Faults(kill, moment, int(number)).inside(Path(folder)):
        cli.main()


if __name__ == "__main__":
    main()
