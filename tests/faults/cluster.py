"""Ray clusters that lose workers, nodes and drivers: results are those of a calm training."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from epcx import trainer
from epcx.config import TrainConfig
from epcx.execution.local import LocalExecutor
from epcx.execution.ray import RayExecutor
from epcx.runs.run import RunFolder
from epcx.stage_progress import StageProgress
from tests.execution.ray_cluster import NODE, TINY, kill_a_worker, nodes, training_workers
from tests.factories import RecordingCallback
from tests.faults.kills import difference
from tests.faults.tally import Tally
from tests.processes import command, environment, run_epcx

PROMISE = "bit-identical to a training on one machine"
NAMES = {
    "worker": "Ray: a worker killed",
    "node": "Ray: a node lost, and replaced",
    "nodes": "Ray: all nodes but the driver's lost at once, and replaced",
    "driver": "Ray: the driver killed, and resumed",
}
DRIVERS = 0.2  # their share of all faults
DRIVEN = ["food-collection", "--preset", "smoke", "--episodes", "60", "--population", "1", "2"]
EACH = 6  # faults of a training
PAUSE = (1, 20)  # reports between two faults


def run(folder: Path, seed: int, number: int, say: Callable[[str], None]) -> list[Tally]:
    rng = random.Random(seed)
    tallies = {fault: Tally(name, PROMISE) for fault, name in NAMES.items()}
    drivers = round(DRIVERS * number)
    faults = [rng.choice(("worker", "worker", "node", "nodes")) for _ in range(number - drivers)]
    break_clusters(folder, rng, faults, tallies, say)
    kill_drivers(folder, rng, drivers, tallies["driver"], say)
    return [tally for tally in tallies.values() if tally.tried]


def break_clusters(
    folder: Path,
    rng: random.Random,
    faults: list[str],
    tallies: dict[str, Tally],
    say: Callable[[str], None],
) -> None:
    config = TrainConfig(
        "food-collection", population=("1", "2", "4"), episodes=800, stage_episodes=500, sets=2,
        matches=3, fitness_episodes=20, learner_config=TINY,
    )  # fmt: skip
    calm = trainer.train(config, folder / "calm", LocalExecutor()).path
    left, turn = list(faults), 0
    while left:
        path, planned = folder / f"broken-{turn}", left[:EACH]
        with quiet(), nodes(3) as cluster:
            suffered, callback = Faults(cluster, rng, planned), RecordingCallback()
            with mock.patch.object(trainer.RunTrainer, "_report", suffered.report):
                trainer.train(config, path, RayExecutor(state_seconds=1.0), callback)
        failure = difference(path, calm)
        if not any("it is repeated" in line for line in callback.messages):
            failure = failure or "no task was repeated"
        for fault in suffered.done:
            tallies[fault].add(f"training {turn}", failure)
        left, turn = left[len(suffered.done) :], turn + 1
        say(f"{len(faults) - len(left)} of {len(faults)} workers and nodes lost")
        shutil.rmtree(path)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Ray's own reports of what has died, which take pages of standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class Faults:
    """Kills workers, and nodes, which are replaced: by progress, not by the clock.

    A fault comes some reports after all tasks have got further than at the fault before: a task
    that dies again and again without progress is given up, and rightly so.
    """

    def __init__(self, cluster: Any, rng: random.Random, planned: list[str]):
        self.cluster, self.rng, self.planned = cluster, rng, list(planned)
        self.done: list[str] = []
        self.progress: StageProgress | None = None
        self.before: Any = None  # updates of each match at the fault before
        self.reports = 0
        self.next = rng.randint(*PAUSE)
        self.real_report = trainer.RunTrainer._report

    @property
    def report(self) -> Callable[..., None]:
        """In place of the trainer's own."""

        def report(one: trainer.RunTrainer, *facts: Any) -> None:
            self.real_report(one, *facts)
            self.note(facts[-1])

        return report

    def note(self, progress: StageProgress) -> None:
        if progress is not self.progress:
            self.progress, self.before = progress, np.zeros_like(progress.done)
        trains = np.array([agents is None for agents in progress.agents])
        self.reports += bool((progress.done > self.before)[trains].all())
        # Reports of tasks that have ended may still be on their way.
        if self.planned and trains.any() and self.reports >= self.next and training_workers():
            self.strike(self.planned.pop(0))
            self.before, self.reports = progress.done.copy(), 0
            self.next = self.rng.randint(*PAUSE)

    def strike(self, fault: str) -> None:
        if fault == "worker":
            kill_a_worker(self.rng)
        else:
            others = [node for node in self.cluster.list_all_nodes() if not node.head]
            lost = [self.rng.choice(others)] if fault == "node" else others
            for node in lost:
                self.cluster.remove_node(node, allow_graceful=False)
            for _ in lost:
                self.cluster.add_node(**NODE)
        self.done.append(fault)


def kill_drivers(
    folder: Path, rng: random.Random, number: int, tally: Tally, say: Callable[[str], None]
) -> None:
    """With SIGKILL, after some checkpoints; another one resumes the training with the cluster."""
    done = run_epcx("train", *DRIVEN, "--devices", "1", "--out", folder / "calm-driver")
    assert done.returncode == 0, done.stderr
    turn = 0
    while tally.tried < number:
        path = folder / f"driver-{turn}"
        arguments, killed = ["train", *DRIVEN, "--out", path], 0
        while killed < min(3, number - tally.tried):
            process = subprocess.Popen(
                command(*arguments, "--engine", "ray", "--checkpoint-minutes", "0"),
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wait_for_checkpoints(path, process, rng.randint(1, 4))
            process.send_signal(signal.SIGKILL)
            if process.wait() != -signal.SIGKILL:
                break  # it had ended
            killed += 1
            arguments = ["resume", path]
        done = run_epcx("resume", path, "--engine", "ray")
        failure = (
            done.stderr[-300:] if done.returncode else difference(path, folder / "calm-driver")
        )
        if not killed:
            failure = failure or "the driver ended before it was killed"
        for _ in range(max(1, killed)):
            tally.add(f"training {turn}", failure)
        turn += 1
        say(f"{tally.tried} of {number} drivers killed")


def wait_for_checkpoints(path: Path, process: "subprocess.Popen[bytes]", number: int) -> None:
    """Until a process has written that many more than there were, or has ended."""
    before = newest_checkpoint(path)
    while process.poll() is None and newest_checkpoint(path) < before + number:
        time.sleep(0.01)


def newest_checkpoint(path: Path) -> int:
    return max(RunFolder(path, {}).checkpoints.numbers(), default=0)
