"""What a training is asked to do: presets, plans, and settings that do not go together."""

import dataclasses
import json

import jax
import pytest

from epcx import games, presets, training
from epcx.cli import main
from epcx.errors import InputError
from epcx.runs.run import Run
from epcx.training import Training, plan
from tests.test_cli import fails


def rows(wanted):
    return [(row.population, row.matches, row.episodes) for row in plan(wanted)]


def test_the_papers_schedule():
    """Appendix B, with all mixtures: 9 matches of K = 2 in two roles, 6 of K = 3 in one."""
    assert rows(presets.make("grassland")) == [
        ("3-2", 2, 100_000),
        ("6-4", 9, 50_000),
        ("12-8", 9, 50_000),
        ("24-16", 9, 50_000),
    ]
    assert rows(presets.make("food-collection")) == [
        ("3", 3, 50_000),
        ("6", 6, 20_000),
        ("12", 6, 20_000),
        ("24", 6, 20_000),
    ]
    assert presets.make("adversarial-battle").sets == 2
    assert rows(presets.make("food-collection", "vanilla-pc"))[1:] == [
        ("6", 1, 20_000),
        ("12", 1, 20_000),
        ("24", 1, 20_000),
    ]


@pytest.mark.parametrize("game", games.GAMES)
@pytest.mark.parametrize("preset", ["paper", "quick", "smoke"])
@pytest.mark.parametrize("method", training.METHODS)
def test_every_preset_has_a_plan(game, preset, method):
    wanted = presets.make(game, method, preset)
    stages = plan(wanted)
    assert len(stages) == (3 if wanted.grows and preset != "paper" else len(wanted.population))
    assert wanted.grows or len(stages) == 1


@pytest.mark.parametrize(
    ("population", "lineage", "total"),
    [
        ("3", 50_000, 150_000),
        ("6", 70_000, 270_000),
        ("24", 110_000, 510_000),
        ("4", 70_000, 270_000),  # as the first stage that is as large
        ("48", 110_000, 510_000),  # as the last
    ],
)
def test_methods_from_scratch_get_as_many_episodes(population, lineage, total):
    def episodes(budget):
        return presets.make("food-collection", "maddpg", "paper", (population,), budget).episodes

    assert (episodes("lineage"), episodes("total")) == (lineage, total)


def test_a_new_game_has_presets_too(monkeypatch):
    class Orchard(games.GAMES["food-collection"]):
        name = "orchard"
        stages = ("2", "6")

    monkeypatch.setitem(games.GAMES, "orchard", Orchard)
    assert rows(presets.make("orchard")) == [("2", 2, 50_000), ("6", 4, 20_000)]
    assert presets.make("orchard", preset="smoke").population == ("1", "2", "4")


def test_every_field_can_be_overridden(capsys):
    options = "--preset smoke --replay 500 --sets 3 --population 1 3 --dry-run --json"
    main(["train", "food-collection", *options.split()])
    shown = json.loads(capsys.readouterr().out)
    assert shown["hyper"]["replay"] == 500
    assert shown["hyper"]["batch"] == 16  # as the preset has it
    assert [(row["population"], row["matches"]) for row in shown["plan"]["stages"]] == [
        ("1", 3),
        ("3", 3),  # of ten
    ]


def test_the_plan_is_shown(capsys):
    main(["train", "grassland", "--dry-run"])
    shown = capsys.readouterr().out
    assert "grassland, epc, K = 2" in shown
    assert "24-16" in shown
    assert "250,000 along a lineage, 1,550,000 in total" in shown
    assert "fitness: 247 games of 2,000 episodes" in shown  # 2 x 2 and three times 9 x 9


def test_a_config_comes_back(tmp_path):
    wanted = presets.make("grassland", "epc", "quick")
    run = Run.create(tmp_path / "run", wanted.config())
    assert Training.of(Run.open(run.path)) == wanted


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"method": "ppo"}, "unknown method 'ppo': the methods are epc, vanilla-pc, att-maddpg"),
        ({"sets": 0}, "sets 0"),
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
def test_settings_that_do_not_go_together(setting, complaint):
    with pytest.raises(InputError, match=complaint):
        Training("food-collection", **setting).curriculum()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "chess"], "chess"),
        (["train", "grassland", "--method", "ppo"], "unknown method 'ppo': the methods are epc"),
        (["train", "grassland", "--preset", "huge"], "huge"),
        (["train", "grassland", "--population", "3"], "population '3' does not fit grassland"),
        (["train", "grassland", "--population", "x"], "population 'x' is malformed"),
        (["train", "grassland", "--episodes", "0"], "episodes 0"),
        (["train", "grassland", "--episodes", "10"], "episodes 10 end before the first update"),
        (["train", "grassland", "--matches", "0"], "matches 0"),
        (["train", "grassland", "--seed", "-1"], "seed -1"),
        (["train", "grassland", "--learning-rate", "nan"], "learning-rate nan"),
        (["train", "grassland", "--discount", "0"], "discount 0"),
        (["train", "grassland", "--batch", "2000", "--replay", "1000"], "larger than replay 1000"),
        (["train", "grassland", "--replay", "10000000000"], "use --replay"),
        (["train", "grassland", "--checkpoint-minutes", "-1"], "checkpoint-minutes -1"),
        (["resume", "nowhere"], "nowhere is not a run"),
        (["lineage", "nowhere"], "nowhere is not a run"),
        (["digest", "nowhere"], "nowhere is not a run"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["evaluate", "nowhere", "--episodes", "0"], "episodes 0"),
        (["replay", "grassland", "--match", "1"], "--match 1 does not go with the game"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, *arguments)
    assert says in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_exists_is_left_alone(capsys, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "precious").write_text("data")
    message = fails(capsys, "train", "food-collection", "--preset", "smoke", "--out", str(folder))
    assert "exists already" in message
    assert [path.name for path in folder.iterdir()] == ["precious"]


def test_what_makes_a_replay_fit_is_named():
    wanted = Training("grassland", "att-maddpg", ("3-2",), matches=8)
    (stage,) = wanted.curriculum().stages
    engine = training.LocalEngine(wanted.learner(stage.game), 8, jax.devices()[:1])
    engine.free = engine.bytes // 2
    advice = "at 3-2 use --replay 400000 or less, or --matches 3 or fewer"
    assert training.advice(wanted, stage, engine) == advice
    growing = dataclasses.replace(wanted, method="epc")
    assert "--initial-matches 3" in training.advice(growing, stage, engine)
    with pytest.raises(InputError, match="use --replay 400000"):
        engine.check_memory(lambda: training.advice(wanted, stage, engine))
