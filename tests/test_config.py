"""The settings of a training: presets, plans, and settings that do not go together."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import jax
import pytest

import epcx
from epcx import estimate, games, methods, presets
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.errors import InputError
from epcx.evolution.curriculum import LEARNING
from epcx.execution.local import LocalExecutor
from epcx.execution.match_trainer import MatchTrainer
from epcx.games import FoodCollection
from epcx.learners.hyperparameters import FLAT_NETWORKS
from epcx.runs.run import RunFolder

# Matches of EPC in each stage of the paper: K at first, then all (K (K + 1) / 2) ^ roles mixtures.
PAPER_MATCHES = {
    "grassland": [2, 9, 9, 9],
    "adversarial-battle": [2, 9, 9],
    "food-collection": [3, 6, 6, 6],
    "predator-prey": [2, 9, 9],
}
EPC_MATCHES = {
    "paper": PAPER_MATCHES,
    "best": PAPER_MATCHES,
    "large": {
        game: [2, *[3] * (stages - 1)]
        for game, stages in zip(PAPER_MATCHES, (8, 7, 8, 6), strict=True)
    },
    "quick": {game: [8, 3, 3] for game in PAPER_MATCHES},
    "smoke": {game: [2, 3, 3] for game in PAPER_MATCHES},
}


class Orchard(FoodCollection):
    """A game without presets of its own."""

    name = "orchard"
    stages = ("2", "6")


def stages_of(config):
    return [(stage.population, stage.matches, stage.episodes) for stage in config.plan]


def test_large_preset_doubles_the_population_to_hundreds():
    grassland = presets.make_config("grassland", preset="large")
    episodes = [stage.episodes for stage in grassland.curriculum.stages]
    assert episodes == [100_000] + [10_000] * 7
    assert grassland.stage_matches == [2] + [3] * 7
    assert grassland.populations[1:3] == ("6-4", "12-8")
    assert grassland.populations[-1] == "384-256"
    for game, last in (
        ("food-collection", "384"),
        ("adversarial-battle", "256-256"),
        ("predator-prey", "96-64"),
    ):
        assert presets.make_config(game, preset="large").populations[-1] == last
    assert grassland.learner_config.neighbours == 8
    small, large = (grassland.at(population) for population in ("24-16", "384-256"))
    assert (large.num_food / small.num_food, large.half_side / small.half_side) == (16, 4)
    for learner, neighbours in (("maddpg", 12), ("matd3", 12), ("ippo", 8)):
        config = presets.make_config("grassland", preset="large", learner=learner)
        assert config.learner_config.neighbours == neighbours


def test_preset_with_neighbourhoods_goes_with_every_method():
    """Networks of one population have none."""
    for method in methods.METHODS:
        config = presets.make_config("grassland", method, "large")
        config.check()
        flat = config.learner_config.network in FLAT_NETWORKS
        assert (config.learner_config.neighbours is None) == flat


def test_paper_preset_has_the_schedule_of_the_paper():
    """Appendix B, with all mixtures: 9 matches of K = 2 in two roles, 6 of K = 3 in one."""
    assert stages_of(presets.make_config("grassland")) == [
        ("3-2", 2, 100_000),
        ("6-4", 9, 50_000),
        ("12-8", 9, 50_000),
        ("24-16", 9, 50_000),
    ]
    assert stages_of(presets.make_config("food-collection")) == [
        ("3", 3, 50_000),
        ("6", 6, 20_000),
        ("12", 6, 20_000),
        ("24", 6, 20_000),
    ]
    assert stages_of(presets.make_config("adversarial-battle")) == [
        ("4-4", 2, 50_000),
        ("8-8", 9, 20_000),
        ("16-16", 9, 20_000),
    ]
    assert stages_of(presets.make_config("food-collection", "vanilla-pc")) == [
        ("3", 1, 50_000),
        ("6", 1, 20_000),
        ("12", 1, 20_000),
        ("24", 1, 20_000),
    ]


def test_best_preset_has_the_schedule_of_the_paper_with_another_learner():
    paper, best = (presets.make_config("grassland", preset=name) for name in ("paper", "best"))
    assert (paper.learner, best.learner) == ("maddpg", "mappo")
    assert replace(best, learner="maddpg", learner_config=paper.learner_config) == paper


def test_best_preset_of_maddpg_differs_from_the_paper_in_the_learning_rate_only():
    paper = presets.make_config("grassland")
    best = presets.make_config("grassland", preset="best", learner="maddpg")
    assert best.learner_config == replace(paper.learner_config, learning_rate=0.003)
    assert replace(best, learner_config=paper.learner_config) == paper
    baseline = presets.make_config("grassland", "att-maddpg", "best", ("3-2",))
    assert baseline.learner_config == best.learner_config


@pytest.mark.parametrize("game", PAPER_MATCHES)
@pytest.mark.parametrize("preset", get_args(presets.Preset))
@pytest.mark.parametrize("method", methods.METHODS)
def test_preset_has_a_plan_for_every_game_and_method(game, preset, method):
    config = presets.make_config(game, method, preset)
    expected = EPC_MATCHES[preset][game]
    if not config.grows:
        expected = [1]
    elif not methods.find(method).evolves:
        expected = [1] * len(expected)
    assert config.stage_matches == expected
    assert len(config.curriculum.stages) == len(expected)
    sizes = [stage.game.population.counts for stage in config.curriculum.stages]
    for before, after in pairwise(sizes):
        assert all(new > old for old, new in zip(before, after, strict=True))
    if preset in ("paper", "best"):
        assert config.populations == games.find(game).stages[: len(expected)]


@pytest.mark.parametrize(
    ("population", "lineage", "total", "matches"),
    [
        ("3", 50_000, 150_000, 3),
        ("6", 70_000, 270_000, 4),  # 3.9, rounded up
        ("24", 110_000, 510_000, 5),
        ("4", 70_000, 270_000, 4),  # as the first stage that is as large
        ("48", 110_000, 510_000, 5),  # as the last
    ],
)
def test_training_from_scratch_gets_the_episodes_that_epc_has_accumulated(
    population, lineage, total, matches
):
    evolving = presets.make_config("food-collection", "epc", "paper")
    assert evolving.accumulated(population) == (lineage, total)
    alone, control = (
        presets.make_config("food-collection", "maddpg", "paper", (population,), budget)
        for budget in get_args(methods.Budget)
    )
    assert (alone.episodes, alone.stage_matches, alone.selects) == (lineage, [1], False)
    assert alone.accumulated(population) == (lineage, lineage)
    assert (control.episodes, control.stage_matches, control.selects) == (lineage, [matches], True)
    assert control.accumulated(population) == (lineage, matches * lineage)
    assert (alone.curriculum.sets, control.curriculum.sets) == (None, 3)


def test_budget_total_is_for_methods_from_scratch(error_of):
    for method in ("epc", "vanilla-pc"):
        shown = error_of("train", "grassland", "--method", method, "--budget", "total")
        assert f"budget total does not go with {method}: it is for methods from" in shown
    assert "takes lineage or total, not 'all'" in error_of("train", "grassland", "--budget", "all")


def test_trainings_by_different_methods_have_keys_of_their_own():
    configs = [
        presets.make_config("food-collection", method, "smoke", ("2",), budget)
        for method in methods.METHODS
        for budget in get_args(methods.Budget)
        if budget == "lineage" or not methods.find(method).grows
    ]

    def key(curriculum):
        return curriculum.key(curriculum.stages[0], LEARNING)

    keys = {tuple(jax.random.key_data(key(config.curriculum)).tolist()) for config in configs}
    draws = {
        config.curriculum.rng(config.curriculum.stages[0], LEARNING).integers(2**60)
        for config in configs
    }
    assert len(keys) == len(draws) == len(configs) == 12
    again = presets.make_config("food-collection", "maddpg", "best", ("2",)).curriculum
    same = presets.make_config("food-collection", "maddpg", "paper", ("2",)).curriculum
    assert key(again) == key(same)


def test_settings_are_named_after_presets_whatever_the_method():
    for preset in get_args(presets.Preset):
        names = {
            presets.name_settings(presets.make_config("grassland", method, preset))
            for method in methods.METHODS
        }
        assert names == {f"preset {preset}"}
    changed = [
        epcx.configure("grassland", method=method, learning_rate=0.005, tau=0.02)
        for method in ("epc", "maddpg")
    ]
    assert {presets.name_settings(c) for c in changed} == {"learning-rate 0.005, tau 0.02"}


def test_game_without_presets_of_its_own_gets_the_defaults():
    config = presets.make_config(Orchard)
    assert config.game == f"{__name__}:Orchard"
    assert stages_of(config) == [("2", 2, 50_000), ("6", 4, 20_000)]
    assert presets.make_config(Orchard, preset="smoke").population == ("1", "2", "4")


@pytest.fixture
def no_estimates(monkeypatch):
    """Estimates take seconds, and have tests of their own."""

    def refuse(learner):
        raise estimate.UnknownCostError("it is not tested here")

    monkeypatch.setattr(estimate, "update_cost", refuse)


def test_options_override_the_preset(capsys, no_estimates):
    options = "--preset smoke --buffer-size 500 --sets 3 --population 1 3 --dry-run --json"
    main(["train", "food-collection", *options.split()])
    shown = json.loads(capsys.readouterr().out)
    assert shown["learner_config"]["buffer_size"] == 500
    assert shown["learner_config"]["batch_size"] == 16  # as the preset has it
    assert [(stage["population"], stage["matches"]) for stage in shown["plan"]["stages"]] == [
        ("1", 3),
        ("3", 3),  # of ten
    ]


def test_dry_run_prints_the_plan(capsys, no_estimates):
    main(["train", "grassland", "--dry-run"])
    shown = capsys.readouterr().out
    assert "time: no estimate, because" in shown
    assert "grassland, epc, K = 2" in shown
    assert "24-16" in shown
    assert "250,000 along a lineage, 1,550,000 in total" in shown
    assert "fitness: 247 games of 2,000 episodes" in shown  # 2 x 2 and three times 9 x 9


@pytest.mark.parametrize("method", methods.METHODS)
def test_config_survives_writing_and_reading(tmp_path, method):
    config = presets.make_config("grassland", method, "quick")
    run = RunFolder.create(tmp_path / "run", config.to_json(), {})
    assert TrainConfig.of(RunFolder.open(run.path)) == config


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"learner_config": {"batch": 3}}, "unknown settings"),
        ({"learner_config": 3}, "unknown settings"),
        ({"colour": "red"}, "unknown settings"),
        ({"learner": "ppo"}, "unknown learner 'ppo'"),
        ({"sets": 0}, "sets 0 is too small: a whole number"),
        ({"method": "ppo"}, "unknown method 'ppo'"),
    ],
)
def test_damaged_config_is_refused(tmp_path, changes, complaint):
    settings = presets.make_config("grassland", preset="smoke").to_json()
    run = RunFolder.create(tmp_path / "run", {**settings, **changes}, {})
    with pytest.raises(InputError, match=complaint):
        TrainConfig.of(RunFolder.open(run.path))


def test_run_of_epcx_0_1_is_refused_in_one_sentence(error_of, tmp_path):
    """Its settings have other names: `hyper` is now `learner_config`."""
    config = {
        "game": "food-collection",
        "method": "epc",
        "population": ["3", "6"],
        "seed": 0,
        "hyper": {"learning_rate": 0.01, "discount": 0.95, "batch": 1024, "replay": 1_000_000},
        "made_with": {"epcx": "0.1.0"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for command in ("evaluate", "resume", "lineage", "replay"):
        assert f"{tmp_path} was written by epcx 0.1" in error_of(command, tmp_path)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"method": "ppo"}, "unknown method 'ppo': the methods are epc, vanilla-pc, scratch, att-"),
        ({"learner": "ppo"}, "unknown learner 'ppo': did you mean ippo?"),
        ({"sets": 0}, "sets 0 is too small: a whole number from 1 to 100 is needed"),
        ({"method": "vanilla-pc"}, "sets 2 do not go with vanilla-pc, which has 1: use epc"),
        ({"method": "maddpg", "population": ("3", "6")}, "population 3 6: maddpg trains at one"),
        ({"matches": 1}, "matches 1 are fewer than the 2 sets"),
        ({"initial_matches": 1}, "initial-matches 1 are fewer"),
        ({"population": ("3", "6", "6")}, "population 6 after 6 does not grow"),
        ({"population": ("6", "3")}, "population 3 after 6 does not grow"),
        ({"population": ("3-2",)}, "population '3-2' does not fit food-collection"),
        ({"fitness_rounds": 0}, "fitness-rounds 0"),
        ({"stage_episodes": 10}, "episodes 10 end before the first update"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(setting, complaint):
    with pytest.raises(InputError, match=complaint):
        _ = TrainConfig("food-collection", **setting).curriculum


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train chess", "unknown game 'chess'"),
        ("train grassland --method ppo", "unknown method 'ppo': the methods are epc"),
        (
            "train grassland --preset huge",
            "--preset takes paper, best, large, quick or smoke, not 'huge'",
        ),
        ("train grassland --population 3", "population '3' does not fit grassland"),
        ("train grassland --population x", "population 'x' is malformed"),
        ("train grassland --episodes 0", "episodes 0"),
        ("train grassland --episodes 10", "episodes 10 end before the first update"),
        ("train grassland --matches 0", "matches 0"),
        ("train grassland --seed -1", "seed -1"),
        ("train grassland --learning-rate nan", "learning-rate nan"),
        ("train grassland --gamma 0", "gamma 0"),
        ("train grassland --neighbours 0", "neighbours 0"),
        ("train grassland --method maddpg --neighbours 8", "do not go with network mlp"),
        ("train tests.games.ring:Ring --neighbours 8", "ring has no neighbourhoods"),
        ("train grassland --batch-size 2000 --buffer-size 1000", "larger than buffer-size 1000"),
        ("train grassland --buffer-size 10000000000", "use --buffer-size"),
        ("train grassland --checkpoint-minutes -1", "checkpoint-minutes -1"),
        ("resume nowhere", "nowhere is not a run"),
        ("lineage nowhere", "nowhere is not a run"),
        ("digest nowhere", "nowhere is not a run"),
        ("evaluate nowhere", "nowhere is not a run"),
        ("evaluate nowhere --episodes 0", "episodes 0"),
        ("replay grassland --match 1", "--match 1 does not go with the game"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(
    error_of, tmp_path, monkeypatch, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    assert sentence in error_of(*arguments.split())
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_not_touched(error_of, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "precious").write_text("data")
    message = error_of("train", "food-collection", "--preset", "smoke", "--out", folder)
    assert "exists already" in message
    assert [path.name for path in folder.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("method", "option"), [("att-maddpg", "matches"), ("epc", "initial_matches")]
)
def test_memory_check_names_options_that_help(method, option):
    config = TrainConfig("grassland", method, population=("3-2",), **{option: 8})
    executor = LocalExecutor(1)
    trainer = MatchTrainer(config.make_learner(config.games[0]), 8, executor.devices)
    executor.free_bytes = 2 * trainer.bytes_per_device
    config.check_memory(executor)
    executor.free_bytes = trainer.bytes_per_device // 2
    with pytest.raises(InputError) as refused:
        config.check_memory(executor)
    advice = "at 3-2 use --buffer-size ([0-9]+) or less, or --([a-z-]+) ([0-9]) or fewer$"
    size, name, matches = re.search(advice, str(refused.value)).groups()
    assert (name, matches) == (option.replace("_", "-"), "3")  # 40% of 8
    assert 390_000 < int(size) < 400_000  # of a million; networks need some of the memory
    less = replace(config.learner_config, buffer_size=int(size))
    replace(config, learner_config=less).check_memory(executor)
    replace(config, **{option: int(matches)}).check_memory(executor)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"shaped_fitness": "no"}, "shaped_fitness is 'no', not true or false"),
        ({"population": "2-1"}, "population is '2-1', not a list"),
        ({"population": [3]}, r"population\[0\] is 3, not text"),
        ({"population": []}, "population is empty"),
        ({"population": ["9" * 5000]}, "population"),
        ({"seed": 10**4000}, "seed is 1000.*, not a whole number"),
        ({"episodes": 1.5}, "episodes is 1.5, not a whole number"),
        ({"episodes": True}, "episodes is True, not a whole number"),
        ({"matches": "all"}, "matches is 'all', not a whole number or null"),
        ({"budget": "all"}, "budget is 'all', not 'lineage' or 'total'"),
        ({"game": None}, "game is None, not text"),
        ({"learner": []}, r"learner is \[\], not text"),
        ({"learner_config": {"batch_per_agent": "no"}}, "learner_config.batch_per_agent is 'no'"),
        ({"learner_config": {"batch_size": 2**70}}, "learner_config.batch_size is 1180"),
        ({"learner_config": {"gamma": "x"}}, "learner_config.gamma is 'x', not a number"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_in_one_sentence(tmp_path, changes, complaint):
    settings = presets.make_config("grassland", preset="smoke").to_json()
    run = RunFolder.create(tmp_path / "run", {**settings, **changes}, {})
    with pytest.raises(InputError, match=complaint) as caught:
        _ = TrainConfig.of(RunFolder.open(run.path)).games
    assert "\n" not in str(caught.value)


def test_version_with_too_many_digits_is_refused(tmp_path):
    settings = presets.make_config("grassland", preset="smoke").to_json()
    run = RunFolder.create(tmp_path / "run", settings, {"epcx": "9" * 5000})
    with pytest.raises(InputError, match="newer than this"):
        RunFolder.open(run.path)
