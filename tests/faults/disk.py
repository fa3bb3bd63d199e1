"""Disks that are full, and files that are cut off: nothing is lost but the work since then."""

import contextlib
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from epcx.cli import main
from epcx.runs.run import METRICS, RunFolder
from tests.faults.injection import Faults, FullDisk
from tests.faults.kills import TRAININGS, difference
from tests.faults.tally import Tally

TRAINING = ["train", *TRAININGS[0], "--checkpoint-minutes", "0"]


def run(folder: Path, seed: int, number: int, say: Callable[[str], None]) -> list[Tally]:
    """Some disks are full, and some more files are cut off, in the proportion of 2 to 5."""
    rng, calm, counted = random.Random(seed), folder / "calm", Faults(lambda: None)
    with counted.inside(calm):
        answer(*TRAINING, "--out", calm)
    full = max(1, number * 2 // 7)
    return [
        fill_disks(folder, calm, chosen(rng, counted.counts["write"], full), say),
        cut_off_files(folder, calm, rng, number - full, say),
    ]


def fill_disks(folder: Path, calm: Path, writes: list[int], say: Callable[[str], None]) -> Tally:
    """The disk is full from some write on; later there is room, and the training is resumed."""
    tally = Tally("full disk, from the n-th write on", "one sentence; then resumed, bit-identical")
    for write in writes:
        path = folder / f"full-{write}"
        with FullDisk(write).inside(path):
            code, message = answer(*TRAINING, "--out", path)
        failure = not_one_sentence(message) or (None if code == 1 else f"exit code {code}")
        again = ["resume", path] if RunFolder.exists(path) else [*TRAINING, "--out", path]
        code, message = answer(*again)
        failure = failure or (message if code else difference(path, calm))
        tally.add(f"write {write}", failure)
        shutil.rmtree(path)
        say(f"{tally.tried} of {len(writes)} full disks")
    return tally


def cut_off_files(
    folder: Path, calm: Path, rng: random.Random, number: int, say: Callable[[str], None]
) -> Tally:
    """A file of an interrupted training is cut off somewhere, and the training is resumed."""
    tally = Tally(
        "a file of an interrupted training cut off",
        "the checkpoint before is used and the end is bit-identical, or one sentence",
    )
    broken_off = folder / "broken-off"
    interrupt_training(broken_off, reports=12)
    files = sorted(path for path in broken_off.rglob("*") if path.is_file() and path.stat().st_size)
    for _ in range(number):
        file = rng.choice(files)
        offset = rng.randrange(file.stat().st_size)
        path = shutil.copytree(broken_off, folder / "cut-off")
        os.truncate(path / file.relative_to(broken_off), offset)
        code, message = answer("resume", path)
        if code not in (0, 2) or "Traceback" in message:
            failure: str | None = f"exit code {code}: {message}"
        elif code:
            failure = not_one_sentence(message)
        elif file.name == METRICS:
            failure = lost_log(path, calm, message)
        else:
            failure = difference(path, calm)
        tally.add(f"{file.relative_to(broken_off)} at {offset}", failure)
        shutil.rmtree(path)
        say(f"{tally.tried} of {number} files cut off")
    return tally


def lost_log(path: Path, calm: Path, message: str) -> str | None:
    """Without some lines of the log, a training goes on, says so, and ends with the same agents."""
    if f"{METRICS} has lost lines" not in message:
        return "nobody was told"
    found, expected = RunFolder.open(path), RunFolder.open(calm)
    known = {line["episodes"] for line in expected.metrics()}
    same = found.digests() == expected.digests()
    return None if same and {x["episodes"] for x in found.metrics()} <= known else "other results"


def interrupt_training(path: Path, reports: int) -> None:
    """Ctrl-C after some reports of progress: what is there is what was done by then."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Faults(interrupt, "report", reports).inside(path):
        code, message = answer(*TRAINING, "--out", path)
    assert code == 130, message


def chosen(rng: random.Random, last: int, number: int) -> list[int]:
    """Numbers from 1 to `last`, spread evenly."""
    return [1 + int((i + rng.random()) * last / number) for i in range(number)]


def answer(*arguments: object) -> tuple[int, str]:
    """Exit code and error output of a command that is run in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, errors.getvalue()


def not_one_sentence(message: str) -> str | None:
    """Why an error output does not end with one sentence to the user."""
    lines = message.strip().splitlines()
    errors = [line for line in lines if line.startswith("epcx: ")]
    if len(errors) == 1 and lines[-1] == errors[0] and "Traceback" not in message:
        return None
    return f"not one sentence: {message[-300:]!r}"
