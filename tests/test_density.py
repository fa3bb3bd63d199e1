"""Constant density from the command line to exported programs."""

import json

import jax
import numpy as np
import pytest

import epcx
from epcx import games
from epcx.adapters.pettingzoo import parallel_env
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.evaluation.players import FixedPlayers
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.study import Study
from epcx.evaluation.tournament import Tournament
from epcx.games import FoodCollection
from epcx.publish import publish
from epcx.runs.run import RunFolder
from tests.factories import make_run


class Collection(FoodCollection):
    """Food Collection, whose worlds grow from three agents on."""

    name = "collection"
    stages = ("1", "2")


GAME = "tests.test_density:Collection"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    for density in ("paper", "constant"):
        make_run(path / density, GAME, "epc", ["1", "2", "4"], density=density)
    return path


def test_training_takes_place_in_worlds_that_grow(tmp_path, monkeypatch):
    sizes = []
    observe = Collection.observe

    def observed(self, world):
        sizes.append((str(self.population), self.half_side))
        return observe(self, world)

    monkeypatch.setattr(Collection, "observe", observed)
    run = epcx.train(
        GAME,
        method="scratch",
        preset="smoke",
        population="4",
        density="constant",
        out=tmp_path / "run",
    )
    assert set(sizes) == {("4", 2**0.5)}
    assert json.loads((run.path / "config.json").read_text())["density"] == "constant"
    assert run.config.density == "constant"
    assert run.team().game == games.make(Collection, "4", "constant")


def test_runs_without_a_density_are_of_the_paper(folder):
    run = RunFolder.open(folder / "paper")
    assert TrainConfig.of(run).density == "paper"
    assert run.settings["density"] == "paper"
    del run.config["density"]  # as of runs that were made before there were densities
    assert TrainConfig.of(run).density == "paper"


def test_agents_play_at_the_density_of_their_run_or_another(folder):
    for trained in ("paper", "constant"):
        run = folder / trained
        assert epcx.load(run).game.density == trained
        assert epcx.load(run, density="constant").game.half_side == pytest.approx(2**0.5)
        assert epcx.evaluate(run, episodes=1).options == games.options_of(epcx.load(run).game)
    played = [
        epcx.evaluate(folder / trained, episodes=20, match=0, density=density).roles()
        for trained, density in (("constant", None), ("constant", "paper"), ("paper", "constant"))
    ]
    assert played[0] == played[2] != played[1]  # the agents are the same


def test_crossplay_and_reports_need_runs_of_one_density(folder, error_of, tmp_path):
    runs = [folder / "paper", folder / "constant"]
    complaint = "the runs are of different densities: paper, constant"
    assert complaint in error_of("crossplay", *runs, "--episodes", 1)
    assert complaint in error_of("report", *runs, "--out", tmp_path / "report")
    played = epcx.crossplay(runs, episodes=1, density="constant")
    assert played.options == {"density": "constant"}


def test_studies_play_in_the_worlds_that_grow(folder):
    study = Study([RunFolder.open(folder / "constant")])
    assert [study.at(population).half_side for population in ("2", "8")] == [1.0, 2.0]
    assert {entry.population for entry in study.generalisation()} == {"8"}


def test_results_of_different_densities_are_cached_apart(tmp_path):
    found = []
    for density in ("paper", "constant", "paper"):
        game = games.make(Collection, "4", density)
        players = {"collector": FixedPlayers("scripted").player(game, "collector")}
        cache = ResultCache(tmp_path / "cache")
        found.append(Tournament(game, cache=cache).play(players, 20))
    assert found[0] == found[2] != found[1]


def test_evaluation_is_headed_by_the_density(folder, capsys):
    main(["evaluate", str(folder / "constant"), "--episodes", "1", "--match", "0"])
    assert "collection 4, density constant: means per agent" in capsys.readouterr().out
    main(["crossplay", str(folder / "constant"), "scripted", "--episodes", "1"])
    assert "collection 4, density constant: task reward" in capsys.readouterr().out


def test_plan_shows_the_density(capsys):
    main(["train", "grassland", "--preset", "smoke", "--density", "constant", "--dry-run"])
    assert "grassland, epc, K = 2, density constant, seed 0" in capsys.readouterr().out


def test_replays_of_runs_and_of_fixed_players_have_the_density(folder, tmp_path):
    assert epcx.replay(folder / "constant").world_size == pytest.approx(2**0.5)
    assert epcx.replay(folder / "paper").world_size == 1.0
    assert epcx.replay(folder / "paper", density="constant").world_size == pytest.approx(2**0.5)
    out = tmp_path / "replay.json"
    main(["replay", GAME, "--population", "8", "--density", "constant", "--out", str(out)])
    assert json.loads(out.read_text())["world_size"] == 2.0


def test_published_run_keeps_the_density(folder, tmp_path):
    copy = publish(RunFolder.open(folder / "constant"), tmp_path / "copy")
    assert epcx.load(copy.path).game == games.make(Collection, "4", "constant")
    words = ["publish", str(folder / "constant"), "--out", str(tmp_path / "card"), "--episodes"]
    main([*words, "1"])
    card = (tmp_path / "card" / "README.md").read_text()
    assert "The world grows with the population." in card
    assert "--density constant" in card


def test_exported_program_takes_worlds_that_grew(folder, tmp_path):
    team = epcx.load(folder / "constant")
    path = tmp_path / "team.jaxexport"
    main(["export", str(folder / "constant"), "--out", str(path), "--inputs", "worlds", "--greedy"])
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    world = team.game.reset(jax.random.key(0))
    arrays = {
        name: np.asarray(getattr(world, name))[None]
        for name in ("position", "velocity", "alive", "food", "time")
    }
    acted = program.call(np.uint32(0), arrays)["collector"][0]
    expected = team.act(jax.random.key(0), world, greedy=True)
    np.testing.assert_allclose(acted, expected, atol=1e-5)
    main(["export", str(folder / "constant"), "--out", str(tmp_path / "team.npz")])
    about = json.loads(str(np.load(tmp_path / "team.npz")["about"]))
    assert about["options"] == {"density": "constant"}


def test_adapters_take_the_density():
    env = parallel_env("grassland", "48-32", density="constant")
    assert env.game.half_side == pytest.approx(2**0.5)


def test_growing_worlds_start_from_agents_of_the_paper(folder, tmp_path):
    run = epcx.train(
        GAME,
        preset="smoke",
        population=["4"],
        density="constant",
        init_from=f"{folder / 'paper'}@2",
        out=tmp_path / "run",
    )
    assert run.lineage().records[0].population == "2"


def test_bad_densities_are_refused(error_of, tmp_path):
    message = error_of("train", "grassland", "--density", "constnat")
    assert message == (
        "epcx: option --density takes paper or constant, not 'constnat': did you mean constant?"
    )
    sentence = "density constant does not go with grid-battle, whose worlds do not grow: use paper"
    grid = "examples.grid_battle:GridBattle"
    out = ["--out", tmp_path / "out.json"]
    assert sentence in error_of("train", grid, "--density", "constant", "--preset", "smoke")
    assert sentence in error_of("replay", grid, "--density", "constant", *out)
    main(["replay", grid, "--density", "paper", "--out", str(tmp_path / "out.json")])
