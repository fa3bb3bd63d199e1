"""Clusters and drivers that die at random moments: trainings end as if nothing had happened."""

import random
import signal
import subprocess
import time

import pytest

from epcx import trainer
from epcx.engines.cluster import Cluster
from epcx.learners import Hyperparameters
from epcx.training import Training
from tests.engines.rays import NODE, kill_a_worker, nodes, training_workers
from tests.processes import command, environment, epcx, same_results
from tests.test_trainer import Said

TINY = Hyperparameters(batch=32, warm_up=100, worlds=4, replay=400)


class Misfortune:
    """Every few seconds a worker is killed, or a node, for which another one comes."""

    def __init__(self, cluster, seed):
        self.cluster, self.chance = cluster, random.Random(seed)
        self.lost = {"workers": 0, "nodes": 0}
        self.plan()

    def plan(self):
        self.next = time.monotonic() + self.chance.uniform(10, 16)

    def __call__(self):
        if time.monotonic() < self.next:
            return
        if self.chance.random() < 0.6 and training_workers():
            kill_a_worker(self.chance)
            self.lost["workers"] += 1
        else:
            others = [node for node in self.cluster.list_all_nodes() if not node.head]
            self.cluster.remove_node(self.chance.choice(others), allow_graceful=False)
            self.cluster.add_node(**NODE)
            self.lost["nodes"] += 1
        self.plan()


@pytest.mark.slow
def test_a_cluster_that_dies_bit_by_bit(tmp_path):
    start = Training(
        "food-collection", "epc", ("1", "2", "4"), 800, 500, sets=2, matches=3,
        fitness_episodes=20, hyper=TINY,
    )  # fmt: skip
    whole = trainer.train(start, tmp_path / "whole").path
    said = Said()
    with nodes(3) as cluster:
        said.then = misfortune = Misfortune(cluster, seed=0)
        site = Cluster(state_seconds=1.0)
        run = trainer.train(start, tmp_path / "run", watcher=said, site=site)
    assert misfortune.lost["workers"] > 0
    assert misfortune.lost["nodes"] > 0
    assert any("it is done again" in line for line in said.lines), said.lines
    same_results(run.path, whole)


@pytest.mark.slow
def test_drivers_that_are_killed(tmp_path):
    """With `kill -9`, again and again; the last one finishes."""
    start = ["train", "food-collection", "--preset", "smoke"]
    assert epcx(*start, "--out", tmp_path / "a").returncode == 0
    chance = random.Random(1)
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
        time.sleep(chance.uniform(0, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["resume", tmp_path / "b", "--engine", "ray"]
    done = epcx("resume", tmp_path / "b", "--engine", "ray")
    assert done.returncode == 0, done.stderr
    same_results(tmp_path / "b", tmp_path / "a")
