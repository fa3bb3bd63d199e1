"""Curricula that are killed at any moment end with the results of an uninterrupted one."""

import json
import random
import signal
import subprocess
import time

import jax
import pytest

from epcx import games
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.runs.run import RunFolder
from epcx.runs.weights import load_weights
from tests.processes import assert_same_results, command, environment, run_epcx

SMALL = ["food-collection", "--preset", "smoke", "--population", "1", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory):
    """A small curriculum of two stages, uninterrupted."""
    run = tmp_path_factory.mktemp("runs") / "curriculum"
    done = run_epcx("train", *SMALL, "--out", run)
    assert done.returncode == 0, done.stderr
    return run, done


def test_curriculum_keeps_the_agents_and_results_of_its_stages(curriculum):
    path, done = curriculum
    run = RunFolder.open(path)
    assert run.stages() == ["1", "2"]
    assert [run.ranks(stage) for stage in run.stages()] == [2, 2]
    assert [(s["matches"], s["population"]) for s in run.result["stages"]] == [(2, "1"), (3, "2")]
    assert run.result["best"]["collector"]["name"].startswith("collector-1.")
    assert {row["stage"] for row in run.metrics()} == {0, 1}
    assert "1: promoted 2 of 2, by fitness: collector-0." in done.stderr


def test_saved_agents_have_target_networks(curriculum):
    """What a stage leaves has policies, critics and the targets of both, and no optimiser."""
    run = RunFolder.open(curriculum[0])
    learner = TrainConfig.of(run).make_learner(games.make("food-collection", "2"))
    like = jax.eval_shape(learner.init, jax.random.key(0))
    agents = load_weights(run.weights("2", 0, "collector"), like, {})
    policies, targets = map(jax.tree.leaves, (agents.policy, agents.target_policy))
    assert any((x != y).any() for x, y in zip(policies, targets, strict=True))


def test_lineage_command_shows_the_ancestors_of_the_best(capsys, curriculum):
    run = RunFolder.open(curriculum[0])
    main(["lineage", str(run.path)])
    shown = capsys.readouterr().out
    assert shown.startswith(f"{run.result['best']['collector']['name']}  2  fitness ")
    assert "── collector-0." in shown
    main(["lineage", str(run.path), "--json"])
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 2 + 3
    assert all(parent.startswith("collector-0.") for r in records[2:] for parent in r["parents"])


def newest_checkpoint(run):
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)


def train_with_kills(run, start, kills, seed):
    """Starts a run, kills it after some checkpoints each time, and lets it finish at last."""
    rng, killed = random.Random(seed), 0
    arguments = ["train", *start, "--out", run]
    for _ in range(kills):
        wait_for = newest_checkpoint(run) + rng.randint(1, 12)
        process = subprocess.Popen(
            command(*arguments, "--checkpoint-minutes", "0"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and newest_checkpoint(run) < wait_for:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert (run / "config.json").exists()
        arguments = ["resume", run]
    assert killed, "it was over each time"
    done = run_epcx("resume", run)
    assert done.returncode == 0, done.stderr


def test_resume_after_kills_gives_identical_results(curriculum, tmp_path):
    train_with_kills(tmp_path / "killed", SMALL, kills=2, seed=0)
    assert_same_results(tmp_path / "killed", curriculum[0])


@pytest.mark.slow
def test_resume_after_many_kills_gives_identical_results(tmp_path):
    start = ["grassland", "--preset", "smoke"]
    uninterrupted = tmp_path / "uninterrupted"
    assert run_epcx("train", *start, "--out", uninterrupted).returncode == 0
    for seed in range(3):
        train_with_kills(tmp_path / str(seed), start, kills=6, seed=seed)
        assert_same_results(tmp_path / str(seed), uninterrupted)
