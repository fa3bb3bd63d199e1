"""Recording of episodes: games of epcx, and any other game that has 2-D positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.cli import main
from epcx.errors import InputError
from epcx.evaluation.players import FixedPlayers
from epcx.games import Entities, Game, Observation, Outcome, Role, Scene
from epcx.reports import replay
from epcx.reports.recording import Recorder, record


class Walk(Game):
    """Agents that step to the right or stay; the world is nothing but their positions."""

    name = "walk"
    roles = (Role("walker", num_actions=2, colour="#aa3377", size=0.1), Role("watcher", 2))
    stages = ("2-1",)
    horizon = 4

    def reset(self, key):
        return jax.random.uniform(key, (self.num_agents, 2), minval=-1.0)

    def step(self, key, world, actions):
        reward = actions[:, 1]
        nobody = jnp.zeros(self.num_agents)
        return world.at[:, 0].add(0.5 * reward), Outcome(reward, nobody, nobody > 0)

    def observe(self, world):
        others = Entities(jnp.broadcast_to(world, (len(world), *world.shape)), jnp.eye(3) == 0)
        return Observation(world, {"others": others})

    def scene(self, world):
        return Scene(world)


class Matrix(Walk):
    """A game without positions."""

    name = "matrix"
    scene = Game.scene


def play(game, name="random", seed=0):
    players = {role: FixedPlayers(name).player(game, role) for role in game.members}
    return record(game, players, jax.random.key(seed), "An episode")


@pytest.mark.parametrize("name", ["grassland", "food-collection", "predator-prey"])
def test_recorded_frames_are_consistent_with_the_events(name):
    game = games.make(name)
    episode = play(game, "scripted")
    assert episode.steps == game.horizon
    assert not episode.reward[0].any()
    np.testing.assert_array_equal(episode.alive[1:], episode.alive[:-1] & ~episode.died[1:])
    moved = (np.diff(episode.food, axis=0) != 0).any(-1)
    assert not (moved & ~episode.occupied[1:]).any()
    assert episode.touched.any() == episode.touched[1:].any()
    assert len(episode.obstacles) == getattr(game, "obstacles", 0)
    assert episode.walls == (name != "predator-prey")


@pytest.mark.parametrize("suffix", [".html", ".gif", ".png", ".json"])
def test_a_game_with_nothing_but_positions_is_recorded_and_written(suffix, tmp_path):
    episode = play(games.make(Walk))
    assert [(role.name, role.colour, role.size) for role in episode.roles] == [
        ("walker", "#aa3377", 0.1),
        ("watcher", "#4f8fd9", 0.05),
    ]
    np.testing.assert_allclose(np.diff(episode.position[..., 0], axis=0), 0.5 * episode.reward[1:])
    assert episode.alive.all()
    assert episode.food.shape == (5, 0, 2)
    assert not np.any([episode.ate, episode.died, episode.killed, episode.touched])
    path = tmp_path / f"walk{suffix}"
    replay.write(episode, path)
    assert path.stat().st_size > 500
    if suffix == ".json":
        np.testing.assert_allclose(replay.load(path).position, episode.position, atol=1e-4)


def test_record_refuses_a_game_without_positions():
    with pytest.raises(InputError, match="matrix cannot be replayed"):
        play(games.make(Matrix))


def test_replay_command_explains_that_a_game_has_no_positions(capsys, tmp_path):
    out = tmp_path / "matrix.html"
    with pytest.raises(SystemExit) as stopped:
        main(["replay", f"{__name__}:Matrix", "--players", "random", "--out", str(out)])
    assert stopped.value.code == 2
    assert "matrix cannot be replayed" in capsys.readouterr().err
    assert not out.exists()


def test_recorder_holds_the_worlds_and_outcomes_that_it_was_given():
    game, key = games.make("grassland", "3-2"), jax.random.key(1)
    world = jax.jit(game.reset)(key)
    step = jax.jit(game.step)
    recorder, worlds, outcomes = Recorder(game, world), [world], []
    assert recorder.replay("The start").steps == 0
    for time in range(20):
        chase = game.scripted(jax.random.fold_in(key, time), world)
        world, outcome = step(key, world, chase)
        recorder.add(world, outcome)
        worlds.append(world)
        outcomes.append(outcome)
    episode = recorder.replay("An episode")
    assert episode.steps == 20
    assert episode.died.any()
    for name in ("position", "alive", "food"):
        np.testing.assert_array_equal(
            getattr(episode, name), [getattr(world, name) for world in worlds]
        )
    for name in ("ate", "killed", "died", "touched", "occupied"):
        assert not getattr(episode, name)[0].any()
        np.testing.assert_array_equal(
            getattr(episode, name)[1:], [getattr(outcome.events, name) for outcome in outcomes]
        )
    np.testing.assert_array_equal(episode.reward[1:], [outcome.reward for outcome in outcomes])


def test_a_world_that_grew_is_recorded_in_full_size():
    game = games.make("grassland", "48-32", "constant")
    episode = play(game, "scripted")
    assert episode.world_size == game.half_side == pytest.approx(2**0.5)
    assert episode.food.shape[1] == 8
    assert 1.2 < np.abs(episode.position).max() <= episode.world_size
