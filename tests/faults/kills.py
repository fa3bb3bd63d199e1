"""Trainings that are killed with SIGKILL again and again, and end as if nothing had happened."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from epcx.errors import InputError
from epcx.runs.run import RunFolder
from tests.faults.injection import MOMENTS
from tests.faults.tally import Tally
from tests.processes import assert_same_results, environment

SETTINGS = ["--preset", "smoke", "--episodes", "60", "--stage-episodes", "20", "--devices", "1"]
TRAININGS = (
    ["food-collection", *SETTINGS, "--population", "1", "2"],
    ["predator-prey", *SETTINGS, "--population", "1-1", "2-2"],
)
EACH = 10  # kills of a training, before it may end
SOON = {"report": 12, "fitness": 3, "stage": 1, "file": 3}  # the n-th such moment, at most
NAMES = {
    "report": "between two reports of training",
    "fitness": "while games for the fitness are played",
    "stage": "at the end of a stage",
    "segment": "inside a write of rows of a replay buffer",
    "checkpoint": "inside a write of a checkpoint's other files",
    "file": "inside a write of agents, metrics or lineage",
    "rename": "before a new file takes its place",
}


def run(folder: Path, seed: int, number: int, say: Callable[[str], None]) -> list[Tally]:
    """Kills `number` processes; every training ends with the results of a calm one."""
    rng = random.Random(seed)
    tallies = {
        moment: Tally(f"SIGKILL {NAMES[moment]}", "resumed, bit-identical to a calm training")
        for moment in MOMENTS
    }
    left, turn = number, 0
    while left:
        which, path = turn % len(TRAININGS), folder / f"killed-{turn}"
        calm = folder / f"calm-{which}"
        if not calm.exists():
            start(["train", *TRAININGS[which], "--out", str(calm)], calm)
        killed = kill_again_and_again(TRAININGS[which], path, rng, min(left, EACH))
        failure = difference(path, calm)
        for moment in killed:
            tallies[moment].add(f"seed {seed}, training {turn}", failure)
        left, turn = left - len(killed), turn + 1
        say(f"{number - left} of {number} processes killed")
        shutil.rmtree(path)
    return [tally for tally in tallies.values() if tally.tried]


def kill_again_and_again(
    training: list[str], path: Path, rng: random.Random, times: int
) -> list[str]:
    """Starts a training and resumes it until it ends; the moments at which it was killed."""
    arguments = ["train", *training, "--out", str(path), "--checkpoint-minutes", "0"]
    killed: list[str] = []
    while len(killed) < times:
        moment = rng.choice(MOMENTS)
        if start(arguments, path, moment, rng.randint(1, SOON.get(moment, 6))) == 0:
            return killed  # over before that moment
        killed.append(moment)
        if RunFolder.exists(path):
            arguments = ["resume", str(path), "--checkpoint-minutes", "0"]
    start(arguments, path)
    return killed


def start(arguments: list[str], path: Path, moment: str = "none", number: int = 0) -> int:
    """Runs a command until it ends or is killed at a moment; anything else is an error."""
    program = [sys.executable, "-m", "tests.faults.injection", moment, str(number), str(path)]
    done = subprocess.run(
        [*program, *arguments], env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.returncode


def difference(path: Path, calm: Path) -> str | None:
    """What is not as in a calm training."""
    try:
        assert_same_results(path, calm)
    except (AssertionError, InputError) as error:
        return str(error).partition("\n")[0] or "other lines in the log"
    return None
