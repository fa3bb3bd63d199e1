"""Curricula that are killed at any moment end as if nothing had happened."""

import json
import random
import signal
import subprocess
import time

import jax
import pytest

from epcx import games
from epcx.cli import main
from epcx.runs.run import Run
from epcx.runs.weights import load_weights
from epcx.training import Training
from tests.processes import command, environment, epcx, same_results

SMALL = ["food-collection", "--preset", "smoke", "--population", "1", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A small curriculum of two stages, uninterrupted."""
    run = tmp_path_factory.mktemp("runs") / "grown"
    done = epcx("train", *SMALL, "--out", run)
    assert done.returncode == 0, done.stderr
    return run, done


def test_a_curriculum_keeps_its_stages_and_its_lineage(grown):
    path, done = grown
    run = Run.open(path)
    assert run.stages() == ["1", "2"]
    assert [run.ranks(stage) for stage in run.stages()] == [2, 2]
    assert [(s["matches"], s["population"]) for s in run.result["stages"]] == [(2, "1"), (3, "2")]
    assert run.result["best"]["collector"]["name"].startswith("collector-1.")
    assert {row["stage"] for row in run.metrics()} == {0, 1}
    assert "1: promoted 2 of 2, by fitness: collector-0." in done.stderr


def test_targets_travel_with_the_agents(grown):
    """What a stage leaves has policies, critics and the targets of both, and no optimiser."""
    run = Run.open(grown[0])
    learner = Training.of(run).learner(games.make("food-collection", "2"))
    like = jax.eval_shape(learner.init, jax.random.key(0))
    agents = load_weights(run.weights("2", 0, "collector"), like, {})
    policies, targets = map(jax.tree.leaves, (agents.policy, agents.target_policy))
    assert any((x != y).any() for x, y in zip(policies, targets, strict=True))


def test_the_lineage_is_shown(capsys, grown):
    main(["lineage", str(grown[0])])
    shown = capsys.readouterr().out
    best = Run.open(grown[0]).result["best"]["collector"]["name"]
    assert shown.startswith(f"{best}  2  fitness ")
    assert "── collector-0." in shown
    main(["lineage", str(grown[0]), "--json"])
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 2 + 3
    assert all(parent.startswith("collector-0.") for r in records[2:] for parent in r["parents"])


def checkpoint_number(run):
    return max((int(p.name) for p in (run / "checkpoints").glob("[0-9]*")), default=0)


def killed_and_resumed(run, start, kills, seed):
    """Starts a run, kills it after some checkpoints each time, and lets it finish at last."""
    chance = random.Random(seed)
    arguments = ["train", *start, "--out", run]
    for _ in range(kills):
        wait_for = checkpoint_number(run) + chance.randint(1, 12)
        process = subprocess.Popen(
            command(*arguments, "--checkpoint-minutes", "0"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and checkpoint_number(run) < wait_for:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (run / "config.json").exists()
        arguments = ["resume", run]
    done = epcx("resume", run)
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_that_was_killed_ends_with_the_same_bits(grown, tmp_path):
    killed_and_resumed(tmp_path / "killed", SMALL, kills=2, seed=0)
    same_results(tmp_path / "killed", grown[0])


@pytest.mark.slow
def test_a_whole_curriculum_survives_many_deaths(tmp_path):
    start = ["grassland", "--preset", "smoke"]
    whole = tmp_path / "whole"
    assert epcx("train", *start, "--out", whole).returncode == 0
    for seed in range(3):
        killed_and_resumed(tmp_path / str(seed), start, kills=6, seed=seed)
        same_results(tmp_path / str(seed), whole)
