"""The example game: its rules, and its way through the whole package by its full name."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples.grid_battle import ATTACK, HIT_POINTS, Battlefield, GridBattle

import epcx
from epcx import games
from epcx.cli import main
from tests.processes import run_epcx

NAME = "examples.grid_battle:GridBattle"
STAY, RIGHT, LEFT, UP, DOWN = range(5)


def step(cells, actions, hit_points=None, population="2-1"):
    """One step from a position, given as cells and actions of everybody."""
    game = games.make(GridBattle, population)
    points = jnp.full(len(cells), HIT_POINTS) if hit_points is None else jnp.array(hit_points)
    world = Battlefield(jnp.array(cells), points)
    return game.step(jax.random.key(0), world, jax.nn.one_hot(jnp.array(actions), ATTACK + 1))


def test_soldiers_move_and_stop_at_the_border():
    world, _ = step([(0, 0), (3, 3), (5, 5)], [LEFT, RIGHT, UP])
    assert world.cell.tolist() == [[0, 0], [4, 3], [5, 5]]


def test_soldiers_do_not_enter_a_cell_that_is_taken_or_wanted_by_another():
    world, _ = step([(0, 0), (1, 0), (4, 4)], [RIGHT, STAY, STAY])
    assert world.cell.tolist()[0] == [0, 0]
    world, _ = step([(0, 0), (2, 0), (4, 4)], [RIGHT, LEFT, STAY])
    assert world.cell.tolist()[:2] == [[0, 0], [2, 0]]


def test_attack_hits_enemies_within_one_cell_and_is_rewarded():
    world, outcome = step([(2, 2), (0, 0), (3, 3)], [ATTACK, ATTACK, STAY])
    assert world.hit_points.tolist() == [3, 3, 2]
    assert outcome.reward.tolist() == [1.0, 0.0, -1.0]
    assert outcome.events.hits.tolist() == [1, 0, 0]


def test_last_hit_kills_and_the_dead_do_nothing():
    world, outcome = step([(2, 2), (2, 3), (3, 3)], [ATTACK, ATTACK, ATTACK], [3, 1, 2])
    assert world.hit_points.tolist() == [2, 0, 0]
    assert outcome.events.died.tolist() == [False, True, True]
    assert outcome.events.killed.tolist() == [1, 1, 1]
    assert outcome.reward.tolist() == [1 + 5 - 1, 1 + 5 - 1 - 5, 2 + 5 - 2 - 5]
    assert outcome.done.tolist() == [False, True, True]
    world, outcome = step([(2, 2), (2, 3), (3, 3)], [STAY, RIGHT, ATTACK], [2, 0, 0])
    assert world.cell.tolist()[1] == [2, 3]
    assert outcome.reward.tolist() == [0.0, 0.0, 0.0]


def test_observation_masks_the_dead_and_oneself():
    game = games.make(GridBattle, "2-1")
    world = Battlefield(jnp.array([(2, 2), (2, 3), (3, 3)]), jnp.array([3, 0, 1]))
    seen = game.observe(world)
    assert seen.entities["teammates"].mask.tolist() == [
        [False] * 3,
        [True, False, False],
        [False] * 3,
    ]
    assert seen.entities["enemies"].mask[0].tolist() == [False, False, True]
    np.testing.assert_allclose(seen.entities["enemies"].features[0, 2], [0.25, 0.25, 1.0, 1 / 3])


@pytest.mark.parametrize("population", ["4-4", "16-16", "3-7"])
def test_no_two_living_soldiers_share_a_cell(population):
    game = games.make(GridBattle, population)

    @jax.jit
    def episode(key):
        def play(world, key):
            actions = jax.random.normal(key, (game.num_agents, ATTACK + 1))
            world, _ = game.step(key, world, jax.nn.one_hot(actions.argmax(1), ATTACK + 1))
            return world, world

        world = game.reset(key)
        return jax.lax.scan(play, world, jax.random.split(key, game.horizon))[1]

    for seed in range(3):
        worlds = episode(jax.random.key(seed))
        for cells, points in zip(worlds.cell, worlds.hit_points, strict=True):
            living = [tuple(cell) for cell in np.asarray(cells)[np.asarray(points) > 0]]
            assert len(set(living)) == len(living)


def test_soldiers_see_the_nearest():
    game = games.make(GridBattle, "3-1")
    world = Battlefield(jnp.array([[0, 0], [5, 0], [2, 0], [3, 3]]), jnp.array([3, 3, 3, 3]))
    features, mask = game.observe_nearest(world, 1).entities["teammates"]
    np.testing.assert_array_equal(mask[:, 0], [True, True, True, False])
    np.testing.assert_allclose(features[:, 0, 0], [0.5, -0.75, -0.5, 0.0])
    everybody, seen = game.observe(world), game.observe_nearest(world, 4)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), everybody, seen))


def test_scripted_soldiers_beat_random_ones():
    game = games.make(GridBattle, "4-4")
    from epcx.evaluation.players import FixedPlayers
    from epcx.evaluation.tournament import Tournament

    scripted, random = FixedPlayers("scripted"), FixedPlayers("random")
    players = {"red": scripted.player(game, "red"), "blue": random.player(game, "blue")}
    played = Tournament(game).play(players, 200)
    assert played["red"]["reward"]["mean"] > 10 > 0 > played["blue"]["reward"]["mean"]


def test_example_goes_through_the_command_line(tmp_path, capsys):
    """Trained, evaluated, cross-played and replayed, by its full name."""
    run = str(tmp_path / "run")
    options = ["--preset", "smoke", "--population", "1-1", "--method", "mean-field"]
    main(["train", NAME, *options, "--out", run])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["game"] == NAME
    main(["evaluate", run, "--episodes", "10", "--json"])
    main(["crossplay", run, "random", "--episodes", "10"])
    main(["replay", run, "--out", str(tmp_path / "battle.html")])
    assert "grid-battle 1-1" in capsys.readouterr().out
    assert "grid-battle" in (tmp_path / "battle.html").read_text()


def test_run_of_a_game_that_cannot_be_imported_says_what_to_do(tmp_path, monkeypatch):
    config = epcx.configure("food-collection", preset="smoke")
    folder = tmp_path / "run"
    folder.mkdir()
    settings = {**config.to_json(), "game": "no_such_package.games:Chess"}
    (folder / "config.json").write_text(json.dumps({"format": "epcx run 2", **settings}))
    done = run_epcx("evaluate", folder)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "epcx: game 'no_such_package.games:Chess' cannot be imported: there is no module "
        "'no_such_package'; install the package that has it, or run epcx in the folder of "
        "no_such_package"
    )


def test_example_is_small_and_no_particle_game():
    source = Path(__file__).parent.parent / "examples" / "grid_battle.py"
    assert len(source.read_text().splitlines()) <= 200
    assert not issubclass(GridBattle, games.ParticleGame)
    assert issubclass(Battlefield, eqx.Module)


@pytest.mark.slow
def test_epc_beats_random_play_clearly(tmp_path):
    """Minutes on a CPU: 4-4 grown to 16-16."""
    run = tmp_path / "run"
    done = run_epcx("train", NAME, "--preset", "quick", "--out", run)
    assert done.returncode == 0, done.stderr
    played = epcx.crossplay([run, "random"], episodes=500)
    epcx.report([run], episodes=100, out=tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Enemies hit per episode" in page
    rewards, _ = played.matrix("red")
    assert rewards[0, 1] > 20  # EPC's red against random blue
    assert rewards[1, 0] < -10  # random red against EPC's blue
