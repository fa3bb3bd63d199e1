"""A comparison of runs: who plays whom, and which runs cannot be compared."""

import shutil
from dataclasses import replace

import pytest

from epcx import presets
from epcx.errors import InputError
from epcx.evaluation.results import CROSSPLAY, CURVE, GENERALISATION, REFERENCE, SCORE
from epcx.evaluation.study import Study, variant
from epcx.evaluation.tournament import Tournament
from epcx.runs.run import RunFolder
from tests.factories import make_run

POPULATIONS = ("1-1", "2-2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of EPC, and two trainings from scratch in one run for each population."""
    folder = tmp_path_factory.mktemp("study")
    epc = [
        make_run(folder / f"epc-{seed}", "grassland", "epc", POPULATIONS, seed, snapshots=2)
        for seed in (1, 0)
    ]
    scratch = [
        make_run(folder / f"maddpg-{p}", "grassland", "maddpg", (p,), matches=2)
        for p in POPULATIONS
    ]
    return [*scratch, *epc]


def entries_of(study, purpose):
    return [entry for entry in study.entries() if entry.purpose == purpose]


def opponent_of(entry):
    (opponent,) = (who for role, who in entry.players.items() if role != entry.role)
    return opponent


def test_trials_are_seeds_of_a_curriculum_or_matches_from_scratch(runs):
    study = Study(runs)
    assert study.populations == ["1-1", "2-2"]
    assert study.methods == ["maddpg", "epc"]  # in the order of the paper
    epc, maddpg = (study.trials["2-2"][method] for method in ("epc", "maddpg"))
    assert [trial.run.config["seed"] for trial in epc] == [0, 1]
    assert [trial.match for trial in epc] == [0, 0]
    assert [trial.match for trial in maddpg] == [0, 1]
    assert maddpg[0].run is maddpg[1].run


def test_scores_are_against_epc_of_the_same_trial(runs):
    study = Study(runs)
    scores = [entry for entry in entries_of(study, SCORE) if entry.population == "2-2"]
    assert len(scores) == 2 * (4 * 2)  # roles, methods with fixed players, trials
    for entry in scores:
        assert entry.against == "epc"
        assert opponent_of(entry).name == f"epc {entry.trial}"
        mine = entry.players[entry.role].name
        assert mine in (f"{entry.method} {entry.trial}", "scripted", "random")
    references = entries_of(study, REFERENCE)
    assert {entry.against for entry in references} == {"scripted"}
    assert {entry.method for entry in references} == {"epc", "maddpg", "scripted", "random"}


def test_crossplay_and_generalisation_are_at_the_largest_population(runs):
    study = Study(runs)
    crossplay = entries_of(study, CROSSPLAY)
    assert len({(entry.role, entry.method, entry.against) for entry in crossplay}) == 2 * 4 * 4
    assert {entry.population for entry in crossplay} == {"2-2"}
    doubled = entries_of(study, GENERALISATION)
    assert {entry.population for entry in doubled} == {"4-4"}
    assert {entry.method for entry in doubled} == {"epc", "scripted", "random"}  # no MLP


def test_curves_follow_the_match_that_was_promoted(runs):
    curves = entries_of(Study(runs), CURVE)
    assert {(e.population, e.method) for e in curves} == {("2-2", "epc")}  # others have none
    assert sorted({entry.trained for entry in curves}) == [50, 60]
    for entry in curves:
        assert entry.players[entry.role].match == 1
        assert opponent_of(entry).name == f"epc {entry.trial}"


def test_variants_of_a_method_are_methods_of_their_own(runs, tmp_path):
    longer = make_run(tmp_path / "longer", "grassland", "epc", POPULATIONS, episodes=70)
    study = Study([*runs, longer])
    assert study.methods == ["maddpg", "epc (episodes 50)", "epc (episodes 70)"]
    assert [len(trials) for trials in study.trials["2-2"].values()] == [2, 2, 1]
    scores = entries_of(study, SCORE)
    assert {entry.against for entry in scores} == {"epc (episodes 50)"}
    # One training is one trial, whoever it meets.
    assert {entry.trial for entry in scores if entry.method == "epc (episodes 70)"} == {0}
    with pytest.raises(InputError, match="longer is named twice"):
        Study([longer, RunFolder.open(longer.path)])


def test_variants_are_named_after_presets():
    paper, best = (presets.make_config("grassland", preset=name) for name in ("paper", "best"))
    other = replace(paper, learner_config=replace(paper.learner_config, learning_rate=0.1))
    everybody = [paper, best, other]
    names = [variant(config, everybody) for config in everybody]
    assert names == ["epc", "epc (best)", "epc (learning_rate 0.1)"]
    assert variant(best, [best]) == "epc"  # nothing to tell it from


def test_roles_are_merged_if_they_are_symmetric(tmp_path):
    even = make_run(tmp_path / "even", "adversarial-battle", "epc", ("2-2", "4-4"))
    uneven = make_run(tmp_path / "uneven", "adversarial-battle", "epc", ("2-1",))
    assert Study([even]).merged == "team1 and team2"
    assert Study([uneven]).merged is None


def test_signature_has_the_seeds_of_all_trials(runs, tmp_path):
    seventh = make_run(tmp_path / "seventh", "grassland", "maddpg", ("1-1",), seed=7, matches=2)
    assert Study([*runs, seventh]).signature()["seeds"] == "0, 1, 7, 8"


def test_without_epc_scores_are_against_scripted_players(runs):
    study = Study(runs[:2])
    assert {entry.against for entry in entries_of(study, SCORE)} == {"scripted"}
    assert not entries_of(study, REFERENCE)
    assert not entries_of(study, GENERALISATION)  # MLPs fit one population


def test_results_are_those_of_the_measured_role(runs, monkeypatch):
    def play(self, players, episodes):
        return {
            role: {
                "reward": {"mean": float(len(player.kind)), "error": 0.0},
                "role": role,
                "kind": player.kind,
            }
            for role, player in players.items()
        }

    monkeypatch.setattr(Tournament, "play", play)
    reports = []
    results = Study(runs).play(100, on_played=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (len(results), len(results))
    kinds = {
        "epc": "maddpg attention",
        "maddpg": "maddpg mlp",
        "scripted": "scripted",
        "random": "random",
    }
    assert {result.method for result in results} == set(kinds)
    for result in results:
        assert result.statistics["role"] == result.role
        assert result.statistics["kind"].startswith(kinds[result.method])


def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match="name at least one run"):
        Study([])
    food = make_run(tmp_path / "food", "food-collection", "epc", ("1", "2"))
    with pytest.raises(InputError, match="different games: grassland, food-collection"):
        Study([runs[0], food])
    food.write("result.json", {"ended": "interrupted"})
    with pytest.raises(InputError, match="is not finished: epcx resume"):
        Study([food])
    shutil.rmtree(food.path / "agents")
    food.write("result.json", {"ended": "finished"})
    with pytest.raises(InputError, match="is damaged: it has no agents"):
        Study([food])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        RunFolder.open(tmp_path / "empty")
