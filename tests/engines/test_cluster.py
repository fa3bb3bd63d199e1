"""A Ray cluster gives the same bits as this machine, whatever dies on the way."""

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import jax
import numpy as np
import pytest

from epcx import games, trainer
from epcx.engines.cluster import Cluster, padded, trimmed
from epcx.engines.work import Order, Report
from epcx.errors import InputError, RunError
from epcx.interrupts import Interrupts
from epcx.learners import Hyperparameters
from epcx.learners.maddpg import MADDPG
from epcx.runs.run import Run
from epcx.training import Training
from tests.engines.rays import kill_a_worker, nodes, training_workers
from tests.processes import epcx, same_results
from tests.test_cli import fails
from tests.test_trainer import Said

TINY = Hyperparameters(batch=32, warm_up=100, worlds=4, replay=400)
GROWN = Training("food-collection", "epc", ("1",), 150, sets=2, fitness_episodes=20, hyper=TINY)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What GROWN becomes on this machine."""
    return trained_alone(GROWN, tmp_path_factory.mktemp("runs") / "here")


def trained_alone(training, folder):
    """By a process with one device, as a task has: what it compiles serves tasks, too."""
    code = (
        "import pickle, sys; from epcx.trainer import train; train(*pickle.load(sys.stdin.buffer))"
    )
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    given = pickle.dumps((training, folder))
    subprocess.run([sys.executable, "-c", code], input=given, env=environment, check=True)
    return folder


THREE = Training("food-collection", "mean-field", ("1",), 300, matches=3, snapshots=2, hyper=TINY)


@pytest.fixture(scope="module")
def three_here(tmp_path_factory):
    return trained_alone(THREE, tmp_path_factory.mktemp("runs") / "three")


@pytest.fixture(scope="module")
def two_nodes():
    with nodes(2) as cluster:
        yield cluster


@pytest.fixture
def site(two_nodes):
    return Cluster(state_seconds=0.0)


def test_a_cluster_gives_the_same_bits(site, here, tmp_path):
    said = Said()
    run = trainer.train(GROWN, tmp_path / "run", watcher=said, site=site)
    same_results(run.path, here)
    assert "1: 2 tasks of 1 match with 1 CPU each, on a cluster of 2" in said.lines


def test_a_killed_worker_costs_some_time_only(site, three_here, tmp_path):
    said, killed = Said(), threading.Event()

    def kill_once():
        if not killed.is_set() and training_workers():
            killed.set()
            kill_a_worker(random.Random(0))

    said.then = kill_once
    run = trainer.train(THREE, tmp_path / "run", watcher=said, site=site)
    assert killed.is_set()
    assert any("its worker died; it is done again from update" in line for line in said.lines)
    same_results(run.path, three_here)
    assert run.snapshots("1") == Run.open(three_here).snapshots("1")


@pytest.mark.slow
def test_a_driver_that_is_stopped_goes_on_here_or_there(site, three_here, tmp_path):
    """States of some matches, others that have ended, and others that have not begun."""
    said = Said(lambda: signal.raise_signal(signal.SIGINT))
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        trainer.train(THREE, tmp_path / "run", False, said, interrupts, 0.0, site)
    wait_until_nobody_trains()
    assert Run.open(tmp_path / "run").result["ended"] == "interrupted"
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        trainer.resume(tmp_path / "run", said, interrupts, 0.0)  # here
    trainer.resume(tmp_path / "run", site=site)
    same_results(tmp_path / "run", three_here)


def wait_until_nobody_trains():
    end = time.monotonic() + 30
    while training_workers():
        assert time.monotonic() < end, "tasks go on without their driver"
        time.sleep(0.05)


def order_for(learner, **more):
    key = np.asarray(jax.random.key_data(jax.random.key(0)))
    wanted = {"name": "match 7 of seed 3", "numbers": (7,), "agents": None, "updates": 2}
    return Order(learner=learner, key=key, lines=(1, 2), **{**wanted, **more})


@dataclass(frozen=True)
class Doomed(MADDPG):
    def start(self, key, agents):
        os._exit(1)


def test_a_match_that_keeps_failing_is_reported_by_name(site):
    learner = Doomed(*vars(GROWN.learner(GROWN.games[0])).values())
    said = []
    with pytest.raises(RunError, match="match 7 of seed 3 has failed 4 times in a row: its worker"):
        list(site.train([order_for(learner)], said.append))
    assert len(said) == 3


def test_what_a_task_refuses_is_told_as_it_is(site):
    """At once: it would be refused everywhere."""
    learner = GROWN.learner(GROWN.games[0])
    order = order_for(learner, state=[{"nonsense": np.zeros((1, 2))}], done=1)
    with pytest.raises(InputError, match="of other settings, or another version"):
        list(site.train([order], print))


def test_slices(two_nodes):
    assert Cluster().slices(3) == [(0,), (1,), (2,)]
    assert Cluster(matches_per_task=2).slices(5) == [(0, 1), (2, 3), (4,)]
    assert Cluster(matches_per_task=9).slices(5) == [(0, 1, 2, 3, 4)]


def test_slices_of_one_width_have_spare_places():
    agents = {"x": np.arange(6).reshape(2, 3)}
    wide = padded(order_for(GROWN.learner(GROWN.games[0]), numbers=(4, 5), agents=agents), 4)
    assert wide.numbers == (4, 5, 5, 5)
    np.testing.assert_array_equal(wide.agents["x"][1:], [[3, 4, 5]] * 3)
    stopped = np.array([True, False, False, False])
    report = Report(1, 1, {"reward": np.ones((4, 3))}, stopped, wide.agents, True)
    narrow = trimmed(report, 2)
    assert narrow.metrics["reward"].shape == narrow.agents["x"].shape == (2, 3)
    assert narrow.diverged.tolist() == [True, False]


def test_a_match_that_is_too_large_for_any_node_is_refused(site):
    learner = games.make("food-collection", "3")
    learner = Training("food-collection", hyper=Hyperparameters(replay=10**9)).learner(learner)
    with pytest.raises(InputError, match=r"takes .* GB, and no node of the cluster has"):
        site.check_memory(learner, 3, lambda engine: "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus_per_task": 1}, "gpus-per-task 1: no node of the cluster has more than 0 GPUs"),
        ({"cpus_per_task": 2}, "cpus-per-task 2: no node of the cluster has more than 1 CPUs"),
        ({"cpus_per_task": 0}, "cpus-per-task 0 is not a whole number of at least 1"),
        ({"matches_per_task": 0}, "matches-per-task 0 is not a whole number of at least 1"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(two_nodes, options, sentence):
    with pytest.raises(InputError, match=sentence):
        Cluster(**options)


def test_nodes_with_other_versions_are_refused(two_nodes, monkeypatch):
    monkeypatch.setattr("epcx.__version__", "9.9")
    with pytest.raises(InputError, match=r"node .* has epcx .*, the driver has 9.9: install the"):
        Cluster()


def test_ray_must_be_installed(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    told = fails(
        capsys, "train", "food-collection", "--engine", "ray", "--out", str(tmp_path / "r")
    )
    assert "engine ray needs the package ray: pip install 'epcx[cluster]'" in told
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--address 10.0.0.1:6379", "address 10.0.0.1:6379 does not go with engine local"),
        ("--engine ray --devices 2", "devices 2 does not go with engine ray"),
        ("--devices 99", "devices 99 is not a whole number from 1 to"),
    ],
)
def test_options_that_do_not_go_together(capsys, tmp_path, options, sentence):
    arguments = f"train food-collection --preset smoke {options} --out".split()
    assert sentence in fails(capsys, *arguments, str(tmp_path / "run"))


def test_clusters_that_cannot_be_reached():
    """In a process of its own: this one may have joined a cluster already."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        told = epcx(
            *["train", "food-collection", "--preset", "smoke", "--engine", "ray", "--address"],
            address,
        )
    assert told.returncode == 2
    assert told.stderr.startswith(f"epcx: no cluster answers at address {address}: ")
    assert len(told.stderr.splitlines()) == 1
    assert time.monotonic() - begin < 30
    told = epcx(*["train", "food-collection", "--engine", "ray", "--address", "ray://head:10001"])
    assert "address 'ray://head:10001' is not that of a head node, such as" in told.stderr
