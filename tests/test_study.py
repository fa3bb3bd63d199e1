"""A comparison of runs: who plays whom, and what refuses to be compared."""

import shutil
from dataclasses import replace

import pytest

from epcx import presets
from epcx.errors import InputError
from epcx.evaluation.results import CROSSPLAY, CURVE, GENERALISATION, REFERENCE, SCORE
from epcx.evaluation.tournament import Tournament
from epcx.runs.run import Run
from epcx.study import Study, variant
from tests.made import made_run

POPULATIONS = ("1-1", "2-2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of EPC, and two trainings from scratch in one run for each population."""
    folder = tmp_path_factory.mktemp("study")
    grown = [
        made_run(folder / f"epc-{seed}", "grassland", "epc", POPULATIONS, seed, None, snapshots=2)
        for seed in (1, 0)
    ]
    scratch = [
        made_run(folder / f"maddpg-{p}", "grassland", "maddpg", (p,), matches=2)
        for p in POPULATIONS
    ]
    return [*scratch, *grown]


def chosen(study, purpose):
    return [entry for entry in study.entries() if entry.purpose == purpose]


def test_trials_are_seeds_or_matches(runs):
    study = Study(runs)
    assert study.populations == ["1-1", "2-2"]
    assert study.methods == ["maddpg", "epc"]  # in the order of the paper
    epc, maddpg = (study.trials["2-2"][method] for method in ("epc", "maddpg"))
    assert [trial.run.config["seed"] for trial in epc] == [0, 1]
    assert [trial.match for trial in epc] == [0, 0]
    assert [trial.match for trial in maddpg] == [0, 1]
    assert maddpg[0].run is maddpg[1].run


def test_everybody_plays_the_yardstick_of_its_own_trial(runs):
    study = Study(runs)
    scores = [e for e in chosen(study, SCORE) if e.population == "2-2"]
    assert len(scores) == 2 * (4 * 2)  # roles, methods with scripts, trials
    for entry in scores:
        (opponent,) = (who for role, who in entry.sides.items() if role != entry.role)
        assert entry.against == "epc"
        assert opponent.name == f"epc {entry.trial}"
        mine = entry.sides[entry.role].name
        assert mine in (f"{entry.method} {entry.trial}", "scripted", "random")
    fixed = chosen(study, REFERENCE)
    assert {entry.against for entry in fixed} == {"scripted"}
    assert {entry.method for entry in fixed} == {"epc", "maddpg", "scripted", "random"}


def test_cross_play_and_twice_as_many_are_at_the_largest_population(runs):
    study = Study(runs)
    pairs = {(e.role, e.method, e.against) for e in chosen(study, CROSSPLAY)}
    assert len(pairs) == 2 * 4 * 4
    assert {entry.population for entry in chosen(study, CROSSPLAY)} == {"2-2"}
    doubled = chosen(study, GENERALISATION)
    assert {entry.population for entry in doubled} == {"4-4"}
    assert {entry.method for entry in doubled} == {"epc", "scripted", "random"}  # no MLP


def test_curves_follow_the_match_that_was_promoted(runs):
    curves = chosen(Study(runs), CURVE)
    assert {(e.population, e.method) for e in curves} == {("2-2", "epc")}  # others have none
    assert sorted({entry.trained for entry in curves}) == [50, 60]
    for entry in curves:
        assert entry.sides[entry.role].match == 1
        (other,) = (who for role, who in entry.sides.items() if role != entry.role)
        assert other.name == f"epc {entry.trial}"


def test_variants_of_a_method_are_not_taken_for_its_trials(runs, tmp_path):
    slow = made_run(tmp_path / "slow", "grassland", "epc", POPULATIONS, 0, None, episodes=70)
    study = Study([*runs, slow])
    assert study.methods == ["maddpg", "epc (episodes 50)", "epc (episodes 70)"]
    assert [len(t) for t in study.trials["2-2"].values()] == [2, 2, 1]
    assert {entry.against for entry in chosen(study, SCORE)} == {"epc (episodes 50)"}
    once = [e for e in chosen(study, SCORE) if e.method == "epc (episodes 70)"]
    assert {entry.trial for entry in once} == {0}  # one training is one trial, whoever it meets
    with pytest.raises(InputError, match="slow is named twice"):
        Study([slow, Run.open(slow.path)])


def test_variants_are_named_after_presets():
    paper, best = (presets.make("grassland", "epc", preset) for preset in ("paper", "best"))
    hyper = replace(paper.hyper, learning_rate=0.1)
    bold = replace(paper, hyper=hyper)
    everybody = [paper, best, bold]
    named = [variant(training, everybody) for training in everybody]
    assert named == ["epc", "epc (best)", "epc (learning_rate 0.1)"]
    assert variant(best, [best]) == "epc"  # nothing to tell it from


def test_teams_are_averaged_only_if_they_are_the_same(tmp_path):
    even = made_run(tmp_path / "even", "adversarial-battle", "epc", ("2-2", "4-4"), 0, None)
    uneven = made_run(tmp_path / "uneven", "adversarial-battle", "epc", ("2-1",), 0, None)
    assert Study([even]).merged == "team1 and team2"
    assert Study([uneven]).merged is None


def test_it_is_signed_with_the_seeds_of_the_trainings(runs, tmp_path):
    seventh = made_run(tmp_path / "seventh", "grassland", "maddpg", ("1-1",), seed=7, matches=2)
    assert Study([*runs, seventh]).signature()["seeds"] == "0, 1, 7, 8"


def test_without_epc_the_yardstick_is_scripted(runs):
    study = Study(runs[:2])
    assert {entry.against for entry in chosen(study, SCORE)} == {"scripted"}
    assert not chosen(study, REFERENCE)
    assert not chosen(study, GENERALISATION)  # MLPs fit one population


def test_results_are_those_of_the_measured_role(runs, monkeypatch):
    def play(self, sides, episodes):
        return {
            role: {"reward": {"mean": float(len(side.kind)), "error": 0.0}, "kind": side.kind}
            for role, side in sides.items()
        }

    monkeypatch.setattr(Tournament, "play", play)
    seen = []
    results = Study(runs).play(100, watch=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(results), len(results))
    kinds = {"epc": "AttentionPolicy", "maddpg": "FlatPolicy", "scripted": "scripted"}
    for result in results:
        if result.method in kinds:
            assert result.statistics["kind"] == kinds[result.method]


def test_what_cannot_be_compared_is_named(runs, tmp_path):
    with pytest.raises(InputError, match="name at least one run"):
        Study([])
    food = made_run(tmp_path / "food", "food-collection", "epc", ("1", "2"), 0, None)
    with pytest.raises(InputError, match="different games: grassland, food-collection"):
        Study([runs[0], food])
    food.write("result.json", {"ended": "interrupted"})
    with pytest.raises(InputError, match="is not finished: epcx resume"):
        Study([food])
    shutil.rmtree(food.path / "agents")
    food.write("result.json", {"ended": "finished"})
    with pytest.raises(InputError, match="is damaged: it has no agents"):
        Study([food])
    (runs[0].path / "x").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        Run.open(runs[0].path / "x")
