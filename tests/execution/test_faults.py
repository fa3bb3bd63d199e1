"""Clusters and drivers that die at random moments: the results are those of a calm training."""

import random
import signal
import subprocess
import time

import pytest

from epcx import trainer
from epcx.config import TrainConfig
from epcx.execution.local import LocalExecutor
from epcx.execution.ray import RayExecutor
from tests.execution.ray_cluster import (
    NODE,
    TINY,
    kill_a_worker,
    nodes,
)
from tests.factories import RecordingCallback
from tests.processes import assert_same_results, command, environment, run_epcx


class Faults:
    """Kills workers, and nodes, which are replaced: by progress, not by the clock.

    After every few reports of training the next fault of a list follows, so that a training with
    one seed always suffers the same, however fast the machine is.
    """

    def __init__(self, cluster, seed, faults):
        self.cluster, self.rng = cluster, random.Random(seed)
        self.left = list(faults)
        self.reports = 0
        self.plan()

    def plan(self):
        self.next = self.reports + self.rng.randint(20, 40)

    def __call__(self):
        self.reports += 1
        if not self.left or self.reports < self.next:
            return
        if self.left.pop(0) == "worker":
            kill_a_worker(self.rng)
        else:
            others = [node for node in self.cluster.list_all_nodes() if not node.head]
            self.cluster.remove_node(self.rng.choice(others), allow_graceful=False)
            self.cluster.add_node(**NODE)
        self.plan()


@pytest.mark.slow
def test_training_survives_the_loss_of_workers_and_nodes(tmp_path):
    config = TrainConfig(
        "food-collection", population=("1", "2", "4"), episodes=800, stage_episodes=500, sets=2,
        matches=3, fitness_episodes=20, learner_config=TINY,
    )  # fmt: skip
    calm = trainer.train(config, tmp_path / "calm", LocalExecutor()).path
    callback = RecordingCallback()
    with nodes(3) as cluster:
        planned = ["worker", "node", "worker", "worker", "node", "worker"]
        callback.on_report = faults = Faults(cluster, 0, planned)
        executor = RayExecutor(state_seconds=1.0)
        run = trainer.train(config, tmp_path / "run", executor, callback)
    assert not faults.left, f"the training was over before {faults.left}"
    assert any("it is repeated" in line for line in callback.messages), callback.messages
    assert_same_results(run.path, calm)


@pytest.mark.slow
def test_training_survives_drivers_that_are_killed(tmp_path):
    """With `kill -9`, again and again; the last one finishes."""
    start = ["train", "food-collection", "--preset", "smoke"]
    assert run_epcx(*start, "--out", tmp_path / "a").returncode == 0
    rng = random.Random(1)
    arguments = [*start, "--engine", "ray", "--out", tmp_path / "b"]
    for _ in range(3):
        process = subprocess.Popen(
            command(*arguments, "--checkpoint-minutes", "0"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not (tmp_path / "b" / "checkpoints").exists():
            time.sleep(0.1)
        time.sleep(rng.uniform(0, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["resume", tmp_path / "b", "--engine", "ray"]
    done = run_epcx("resume", tmp_path / "b", "--engine", "ray")
    assert done.returncode == 0, done.stderr
    assert_same_results(tmp_path / "b", tmp_path / "a")
