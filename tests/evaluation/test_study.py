"""A comparison of runs: who plays whom, and which runs cannot be compared."""

import shutil
from dataclasses import replace

import pytest

from epcx import presets
from epcx.errors import InputError
from epcx.evaluation.results import CROSSPLAY, CURVE, GENERALISATION, REFERENCE, SCORE
from epcx.evaluation.study import Study, game_episodes
from epcx.evaluation.tournament import Tournament
from epcx.evaluation.variants import summarise_trainings, variant
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
    assert {entry.against for entry in doubled} == {"epc"}


def test_curves_and_doubled_populations_have_shorter_games():
    assert [game_episodes(p, 10_000) for p in (SCORE, GENERALISATION, CURVE)] == [
        10_000,
        2_000,
        1_000,
    ]
    assert {game_episodes(p, 500) for p in (SCORE, CROSSPLAY, GENERALISATION, CURVE)} == {500}


def test_generalisation_is_against_all_methods_that_can_play(runs, tmp_path):
    vanilla = make_run(tmp_path / "vanilla", "grassland", "vanilla-pc", POPULATIONS)
    doubled = entries_of(Study([*runs, vanilla]), GENERALISATION)
    for method, trials in (("epc", {0, 1}), ("vanilla-pc", {0}), ("random", {0, 1})):
        for role in ("sheep", "wolf"):
            games = [e for e in doubled if (e.method, e.role) == (method, role)]
            assert {e.trial for e in games} == trials
            for trial in trials:
                met = [opponent_of(e).name for e in games if e.trial == trial]
                assert sorted(met) == [f"epc {trial}", "vanilla-pc 0"]


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
    assert list(study.groups.values()) == [study.methods]
    assert [len(trials) for trials in study.trials["2-2"].values()] == [2, 2, 1]
    scores = entries_of(study, SCORE)
    assert {entry.against for entry in scores} == {"epc (episodes 50)"}
    # One training is one trial, whoever it meets.
    assert {entry.trial for entry in scores if entry.method == "epc (episodes 70)"} == {0}
    with pytest.raises(InputError, match="longer is named twice"):
        Study([longer, RunFolder.open(longer.path)])


def test_variants_are_named_after_presets():
    paper, best = (
        presets.make_config("grassland", preset=name, learner="maddpg")
        for name in ("paper", "best")
    )
    other = replace(paper, learner_config=replace(paper.learner_config, learning_rate=0.1))
    everybody = [paper, best, other]
    names = [variant(config, everybody) for config in everybody]
    assert names == ["epc", "epc (best)", "epc (learning-rate 0.1)"]
    assert variant(best, [best]) == "epc"  # nothing to tell it from
    alone = presets.make_config("grassland", "maddpg", "best")
    assert variant(alone, [paper, alone]) == "maddpg (best)"  # though no other is of MADDPG
    assert variant(alone, [paper, alone], with_settings=False) == "maddpg"


def test_variants_name_learners_other_than_the_papers():
    everybody = [
        presets.make_config("food-collection", method, "paper", learner=learner)
        for method in ("epc", "scratch")
        for learner in ("maddpg", "mappo", "matd3")
    ]
    names = [variant(config, everybody) for config in everybody]
    assert names[:3] == ["epc", "epc (mappo)", "epc (matd3)"]
    assert names[3:] == ["scratch", "scratch (mappo)", "scratch (matd3)"]


def test_variants_of_the_total_budget_have_one_name_at_all_populations():
    populations = presets.make_config("food-collection").populations
    control = [
        presets.make_config("food-collection", "att-maddpg", "paper", (population,), "total")
        for population in populations
    ]
    assert len({config.matches for config in control}) > 1
    usual = presets.make_config("food-collection", "att-maddpg", "paper", populations[:1])
    everybody = [*control, usual, presets.make_config("food-collection")]
    assert {variant(config, everybody) for config in control} == {"att-maddpg (total budget)"}
    assert variant(usual, everybody) == "att-maddpg"
    best = presets.make_config("food-collection", "att-maddpg", "best", ("3",), "total")
    assert variant(best, [*everybody, best]) == "att-maddpg (total budget, best)"


def test_methods_are_grouped_by_their_settings(runs, tmp_path):
    maddpg = presets.make_config("grassland", preset="best", learner="maddpg")
    best = maddpg.learner_config.learning_rate
    epc, flat = (
        make_run(tmp_path / method, "grassland", method, POPULATIONS[-n:], learning_rate=best)
        for method, n in (("epc", 2), ("maddpg", 1))
    )
    study = Study([*runs, epc, flat])
    assert study.groups == {
        "preset paper": ["maddpg", "epc"],
        "preset best": ["maddpg (best)", "epc (best)"],
    }
    assert study.short_names["epc (best)"] == "epc"
    assert study.reference("2-2") == "epc"


def test_matches_that_compete_are_one_training(tmp_path):
    run = make_run(tmp_path / "run", "grassland", "maddpg", ("1-1",), matches=3, budget="total")
    study = Study([run])
    assert study.methods == ["maddpg (total budget)"]
    (trial,) = study.trials["1-1"]["maddpg (total budget)"]
    assert trial.match == 0  # the fittest
    assert study.episodes("maddpg (total budget)", "1-1") == (50, 150)


def test_episodes_are_those_up_to_a_population(runs):
    study = Study(runs)
    assert study.episodes("epc", "1-1") == (50, 100)
    lineage, total = study.episodes("epc", "2-2")
    assert (lineage, total) == (70, 100 + 20 * study.configs[-1].stage_matches[1])
    assert study.episodes("epc", "4-4") == (lineage, total)  # cloned
    assert study.episodes("maddpg", "2-2") == (50, 50)
    assert study.episodes("scripted", "2-2") is None


def test_roles_are_merged_if_they_are_symmetric(tmp_path):
    even = make_run(tmp_path / "even", "adversarial-battle", "epc", ("2-2", "4-4"))
    uneven = make_run(tmp_path / "uneven", "adversarial-battle", "epc", ("2-1",))
    assert Study([even]).merged == "team1 and team2"
    assert Study([uneven]).merged is None


def test_trainings_are_named_by_seed_and_match(runs, tmp_path):
    seventh = make_run(tmp_path / "seventh", "grassland", "maddpg", ("1-1",), seed=7, matches=2)
    study = Study([*runs, seventh])
    assert study.signature()["trainings"] == "seeds 0-1; seed 0 matches 0-1; seed 7 matches 0-1"
    scores = [e for e in entries_of(study, SCORE) if (e.population, e.role) == ("1-1", "sheep")]
    assert {(e.method, e.trial): e.training for e in scores if e.method != "random"} == {
        ("maddpg", 0): "seed 0 match 0",
        ("maddpg", 1): "seed 0 match 1",
        ("maddpg", 2): "seed 7 match 0",
        ("maddpg", 3): "seed 7 match 1",
        ("epc", 0): "seed 0",
        ("epc", 1): "seed 1",
        ("scripted", 0): None,
        ("scripted", 1): None,
    }
    assert {e.training for e in entries_of(study, CURVE)} == {"seed 0", "seed 1"}


def test_trainings_are_summarised_in_short():
    names = ["seed 0", "seed 2", "seed 1", "seed 5", "seed 3 match 1", "seed 3 match 0"]
    assert summarise_trainings(names) == "seeds 0-2, 5; seed 3 matches 0-1"
    assert summarise_trainings(["seed 4", "seed 4"]) == "seed 4"


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
