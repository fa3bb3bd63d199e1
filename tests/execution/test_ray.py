"""A Ray cluster gives the same bits as this machine, whatever dies on the way."""

import importlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from epcx import games, learners, trainer
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError
from epcx.execution.arena import Arena, joint_policy
from epcx.execution.code_shipping import local_sources
from epcx.execution.local import LocalExecutor
from epcx.execution.match_trainer import MatchTrainer
from epcx.execution.ray import RayExecutor, pad, trim
from epcx.execution.tasks import Progress
from epcx.learners import MADDPG, MADDPGConfig, MAPPOConfig
from epcx.runs.checkpoint import MatchState
from epcx.runs.run import RunFolder
from tests.execution import toy
from tests.execution.ray_cluster import (
    TINY,
    kill_a_worker,
    make_task,
    nodes,
    training_workers,
    wait_until_no_worker_trains,
)
from tests.factories import RecordingCallback
from tests.processes import assert_same_results, run_epcx

GAME = games.make("food-collection", "1")
LEARNER = learners.make("maddpg", GAME, TINY)
EPC = TrainConfig(
    "food-collection", population=("1",), episodes=150, sets=2, fitness_episodes=20,
    learner_config=TINY,
)  # fmt: skip
MAPPO_EPC = replace(
    EPC, learner="mappo", learner_config=MAPPOConfig(num_envs=10, epochs=1, minibatches=2)
)
THREE = TrainConfig(
    "food-collection", "mean-field", population=("1",), episodes=300, matches=3, snapshots=2,
    learner_config=replace(TINY, network="mean-field"),
)  # fmt: skip


def trained_locally(config, folder):
    """By a process with one device, as a task has: what it compiles serves tasks, too."""
    code = (
        "import pickle, sys; from epcx.trainer import train; "
        "from epcx.execution.local import LocalExecutor; "
        "train(*pickle.load(sys.stdin.buffer), LocalExecutor())"
    )
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    given = pickle.dumps((config, folder))
    subprocess.run([sys.executable, "-c", code], input=given, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def local_epc(tmp_path_factory):
    return trained_locally(EPC, tmp_path_factory.mktemp("runs") / "epc")


@pytest.fixture(scope="module")
def local_three(tmp_path_factory):
    return trained_locally(THREE, tmp_path_factory.mktemp("runs") / "three")


@pytest.fixture(scope="module")
def two_nodes():
    with nodes(2) as cluster:
        yield cluster


@pytest.fixture
def executor(two_nodes):
    return RayExecutor(state_seconds=0.0)


def test_ray_gives_the_same_bits_as_this_machine(executor, local_epc, tmp_path):
    callback = RecordingCallback()
    run = trainer.train(EPC, tmp_path / "run", executor, callback)
    assert_same_results(run.path, local_epc)
    assert "1: 2 tasks of 1 match with 1 CPU each, on a cluster of 2" in callback.messages


@pytest.mark.slow
def test_mappo_has_the_same_bits_on_ray(executor, tmp_path):
    run = trainer.train(MAPPO_EPC, tmp_path / "run", executor)
    assert_same_results(run.path, trained_locally(MAPPO_EPC, tmp_path / "local"))


def test_task_of_a_killed_worker_is_repeated(executor, local_three, tmp_path):
    callback, killed = RecordingCallback(), threading.Event()

    def kill_once():
        if not killed.is_set() and training_workers():
            killed.set()
            kill_a_worker(random.Random(0))

    callback.on_report = kill_once
    run = trainer.train(THREE, tmp_path / "run", executor, callback)
    assert killed.is_set()
    assert any("its worker died; it is repeated from update" in x for x in callback.messages)
    assert_same_results(run.path, local_three)
    assert run.snapshots("1") == RunFolder.open(local_three).snapshots("1")


@pytest.mark.slow
def test_interrupted_driver_resumes_on_any_executor(executor, local_three, tmp_path):
    """States of some matches, others that have ended, and others that have not begun."""
    callback = RecordingCallback(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(THREE, tmp_path / "run", executor, callback, checkpoint_seconds=0.0)
    wait_until_no_worker_trains()
    assert RunFolder.open(tmp_path / "run").result["ended"] == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        trainer.resume(tmp_path / "run", LocalExecutor(), callback, checkpoint_seconds=0.0)
    trainer.resume(tmp_path / "run", executor)
    assert_same_results(tmp_path / "run", local_three)


def test_code_outside_packages_travels_with_its_tasks(executor, tmp_path, monkeypatch):
    """A module in a folder that workers do not know, with classes that JAX must know."""
    (tmp_path / "only_here.py").write_text(Path(toy.__file__).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_here")
    learner = module.RandomSearch(module.Walk("2"), module.Options())
    key, team = jax.random.key(0), learner.init(jax.random.key(1))
    try:
        *_, (index, progress) = filter(None, executor.train([make_task(learner)], print))
        (played,) = executor.play(learner, [team], key, 2, print)
    finally:
        del sys.modules["only_here"]
    assert (index, progress.ended) == (0, True)
    assert isinstance(progress.agents, module.Walker)
    same = toy.RandomSearch(toy.Walk("2"), toy.Options())
    here = MatchTrainer(same, 1, jax.devices()[:1])
    here.start(key, ids=(7,))
    here.advance(2)
    np.testing.assert_array_equal(progress.agents.logits, here.agents().logits)
    arena = Arena(same.game, joint_policy(same), jax.devices()[:1])
    (expected,) = arena.play([same.init(jax.random.key(1))], key, 2)
    np.testing.assert_array_equal(played["furthest"], expected["furthest"])


def test_installed_code_does_not_travel():
    assert local_sources(LEARNER) == {}
    sources = local_sources(toy.RandomSearch(toy.Walk("2"), toy.Options()))
    assert {"tests", "tests.execution", "tests.execution.toy"} <= sources.keys()
    assert not [name for name in sources if name.startswith(("epcx", "jax", "numpy"))]


@dataclass(frozen=True)
class Doomed(MADDPG):
    def start(self, key, agents):
        os._exit(1)


def test_task_that_keeps_failing_is_reported_by_name(executor):
    messages = []
    with pytest.raises(RunError, match="match 7 of seed 3 has failed 4 times in a row: its worker"):
        list(executor.train([make_task(Doomed(GAME, TINY))], messages.append))
    assert len(messages) == 3


def test_input_error_of_a_task_is_raised_at_once(executor):
    """Also of a learner that has been used here, with what it has cached."""
    jax.eval_shape(lambda key: LEARNER.start(key, LEARNER.init(key)), jax.random.key(0))
    task = make_task(LEARNER, state=[MatchState({"nonsense": np.zeros((1, 2))})], done=1)
    with pytest.raises(InputError, match="of other settings, or another version"):
        list(executor.train([task], print))


def test_task_whose_reports_end_too_early_is_repeated():
    """The end of a task is not its result: a worker may die after a report."""
    first = Progress(1, 1, {}, np.array([False]), None, False)
    last = Progress(2, 1, {}, np.array([False]), {"w": np.zeros((1, 1))}, True)
    submitted = [iter([(first, None)]), iter([(first, None), (last, None)])]
    executor = object.__new__(RayExecutor)
    executor.width, executor.ray = 1, FakeRay()
    executor._submit = lambda one: submitted.pop(0)
    messages = []
    reports = list(executor.train([make_task(LEARNER)], messages.append))
    assert [(index, progress.done) for index, progress in reports] == [(0, 1), (0, 1), (0, 2)]
    assert len(messages) == 1
    assert "its reports ended too early; it is repeated from update 0" in messages[0]


class FakeRay:
    """References are the things themselves."""

    exceptions = SimpleNamespace(RayError=OSError, ObjectLostError=OSError)

    def wait(self, references, **options):
        return references, []

    def get(self, reference):
        return reference

    def cancel(self, reference, **options):
        pass


def test_slices_have_the_width_that_was_asked_for(two_nodes):
    assert RayExecutor().slices(3) == [(0,), (1,), (2,)]
    assert RayExecutor(matches_per_task=2).slices(5) == [(0, 1), (2, 3), (4,)]
    assert RayExecutor(matches_per_task=9).slices(5) == [(0, 1, 2, 3, 4)]


def test_padding_of_a_task_is_trimmed_from_its_progress():
    agents = {"x": np.arange(6).reshape(2, 3)}
    padded = pad(make_task(LEARNER, matches=(4, 5), agents=agents), 4)
    assert padded.matches == (4, 5, 5, 5)
    np.testing.assert_array_equal(padded.agents["x"][1:], [[3, 4, 5]] * 3)
    diverged = np.array([True, False, False, False])
    progress = Progress(1, 1, {"reward": np.ones((4, 3))}, diverged, padded.agents, True)
    trimmed = trim(progress, 2)
    assert trimmed.metrics["reward"].shape == trimmed.agents["x"].shape == (2, 3)
    assert trimmed.diverged.tolist() == [True, False]


def test_match_that_is_too_large_for_any_node_is_refused(executor):
    learner = learners.make("maddpg", GAME, MADDPGConfig(buffer_size=10**9))
    with pytest.raises(InputError, match=r"takes .* GB, and no node of the cluster has"):
        executor.check_memory(learner, 3, lambda trainer: "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus_per_task": 1}, "gpus-per-task 1: no node of the cluster has more than 0 GPUs"),
        ({"cpus_per_task": 2}, "cpus-per-task 2: no node of the cluster has more than 1 CPUs"),
        ({"cpus_per_task": 0}, "cpus-per-task 0 is too small: a whole number of at least 1"),
        ({"matches_per_task": 0}, "matches-per-task 0 is too small: a whole number of at least 1"),
    ],
)
def test_resources_that_no_node_has_are_refused(two_nodes, options, sentence):
    with pytest.raises(InputError, match=sentence):
        RayExecutor(**options)


def test_nodes_with_other_versions_are_refused(two_nodes, monkeypatch):
    monkeypatch.setattr("epcx.__version__", "9.9")
    with pytest.raises(InputError, match=r"node .* has epcx .*, the driver has 9.9: install the"):
        RayExecutor()


def test_missing_ray_is_refused(error_of, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = error_of("train", "food-collection", "--engine", "ray", "--out", tmp_path / "r")
    assert "engine ray needs the package ray: pip install 'epcx[cluster]'" in message
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--address 10.0.0.1:6379", "address 10.0.0.1:6379 does not go with engine local"),
        ("--engine ray --devices 2", "devices 2 does not go with engine ray"),
        ("--devices 99", "devices 99 is too large: a whole number from 1 to"),
    ],
)
def test_options_of_the_other_engine_are_refused(error_of, tmp_path, options, sentence):
    arguments = f"train food-collection --preset smoke {options} --out".split()
    assert sentence in error_of(*arguments, tmp_path / "run")


def test_cluster_that_does_not_answer_is_refused():
    """In a process of its own: this one may have joined a cluster already."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        done = run_epcx(
            *["train", "food-collection", "--preset", "smoke", "--engine", "ray", "--address"],
            address,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"epcx: no cluster answers at address {address}: ")
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - begin < 30
    done = run_epcx(
        *["train", "food-collection", "--engine", "ray", "--address", "ray://head:10001"]
    )
    assert "address 'ray://head:10001' is not that of a head node, such as" in done.stderr
