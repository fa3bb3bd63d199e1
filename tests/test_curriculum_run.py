"""A small curriculum by the command line, and what it leaves in its folder."""

import json

import jax
import pytest

from epcx import games
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.runs.run import RunFolder
from epcx.runs.weights import load_weights
from tests.processes import run_epcx

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
