"""A published run plays as the run does, and is small."""

import json

import pytest
from safetensors import safe_open

from epcx import trained
from epcx.cli import main
from epcx.publish import publish, thinned
from epcx.runs.run import Run
from tests.made import made_run
from tests.test_cli import fails


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return made_run(folder, "food-collection", "epc", ["1", "2"], matches=3, snapshots=2)


@pytest.fixture(scope="module")
def copy(run, tmp_path_factory):
    return publish(run, tmp_path_factory.mktemp("runs") / "copy", sets=1, lines=5)


def test_it_plays_as_the_run_does(run, copy):
    ours, theirs = (trained.load(r.path, "4").play(20) for r in (run, copy))
    assert ours == theirs


def test_it_has_the_policies_of_the_best_sets_only(run, copy):
    assert copy.stages() == run.stages()
    assert [copy.ranks(stage) for stage in copy.stages()] == [1, 1]
    with safe_open(copy.weights("2", 0, "collector"), "np") as file:
        names = set(file.keys())
    assert names
    assert all(name.startswith("policy.") for name in names)
    assert not (copy.path / "snapshots").exists()
    assert not (copy.path / "lock").exists()
    assert copy.config == run.config
    assert copy.result == run.result
    assert copy.lineage() == run.lineage()


def test_lines_of_the_log_are_means_of_lines():
    rows = [
        {"stage": s, "match": m, "episodes": 10 * i, "reward/x": float(i), "diverged": True}
        for s in range(2) for m in range(2) for i in range(1, 8)
    ]  # fmt: skip
    short = list(thinned(rows, 3))
    assert len(short) == 2 * 2 * 3
    # The last line is the last: the first one may stand for fewer.
    assert [row["episodes"] for row in short[:3]] == [10, 40, 70]
    assert [row["reward/x"] for row in short[:3]] == [1.0, 3.0, 6.0]
    assert list(thinned(rows, 7)) == rows


def test_the_command(capsys, run, tmp_path):
    main(["publish", str(run.path), "--out", str(tmp_path / "copy")])
    shown = capsys.readouterr().out
    assert f"try: epcx evaluate {tmp_path / 'copy'}" in shown
    assert Run.open(tmp_path / "copy").ranks("2") == run.ranks("2")
    told = fails(capsys, "publish", str(run.path), "--out", str(tmp_path / "copy"))
    assert "exists already" in told
    told = fails(capsys, "publish", str(run.path), "--out", str(tmp_path / "x"), "--sets", "0")
    assert "sets 0 is not a whole number of at least 1" in told
    assert not (tmp_path / "x").exists()


def test_a_run_that_is_not_finished_is_not_published(capsys, run, tmp_path):
    half = Run.create(tmp_path / "half", run.settings)
    half.release()
    told = fails(capsys, "publish", str(half.path), "--out", str(tmp_path / "copy"))
    assert "is not finished" in told
    assert not (tmp_path / "copy").exists()


def test_the_paper_stands_beside_the_evaluation(capsys, run):
    main(["evaluate", str(run.path), "--population", "3", "--episodes", "10", "--json"])
    assert json.loads(capsys.readouterr().out)["paper"] == {"reward": 64.822, "coverage": 0.723}
    main(["evaluate", str(run.path), "--population", "3", "--episodes", "10"])
    assert "in the paper" in capsys.readouterr().out
    main(["evaluate", str(run.path), "--population", "2", "--episodes", "10"])
    assert "in the paper" not in capsys.readouterr().out
