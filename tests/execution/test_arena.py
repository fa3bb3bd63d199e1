"""Episodes of a game from outside the package, against a plain loop."""

import jax
import numpy as np

from epcx import games
from epcx.execution import arena
from epcx.execution.arena import PARALLEL_EPISODES, Arena, joint_policy, parallel_episodes
from tests.execution.toy import Options, RandomSearch, Walk


def test_arena_sums_statistics_and_keeps_final_ones_as_a_loop_does():
    game = Walk(2)
    learner = RandomSearch(game, Options())
    team, key = learner.init(jax.random.key(1)), jax.random.key(0)
    (played,) = Arena(game, joint_policy(learner), jax.devices()[:1]).play([team], key, 3)
    assert list(played) == ["reward", "shaping", "moved", "furthest"]
    assert played["furthest"].shape == (1, 3)

    reset, rng = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), 0))
    worlds = game.reset_batch(jax.random.split(reset, PARALLEL_EPISODES))
    reward, moved = np.zeros((2, PARALLEL_EPISODES)), np.zeros((2, PARALLEL_EPISODES))
    for step_key in jax.random.split(rng, game.horizon):
        action_key, noise = jax.random.split(step_key)
        actions = learner.act(action_key, team, learner.observe(worlds))
        keys = jax.random.split(noise, PARALLEL_EPISODES)
        worlds, outcome = game.step_batch(keys, worlds, actions)
        reward, moved = reward + outcome.reward, moved + outcome.events.moved
    np.testing.assert_allclose(played["reward"], reward[:, :3], rtol=1e-5)
    np.testing.assert_array_equal(played["moved"], moved[:, :3])
    furthest = np.abs(worlds.place).max(0, keepdims=True)
    np.testing.assert_allclose(played["furthest"], furthest[:, :3], rtol=1e-5)


def test_large_populations_play_fewer_episodes_in_parallel():
    for population, expected in (("24-16", 500), ("48-32", 500), ("96-64", 125), ("384-256", 8)):
        assert parallel_episodes(games.make("grassland", population)) == expected
    assert parallel_episodes(games.make("food-collection", "10000")) == 1


def test_arena_plays_all_episodes_whatever_is_played_in_parallel(monkeypatch):
    game = Walk(2)
    learner = RandomSearch(game, Options())
    team, key = learner.init(jax.random.key(1)), jax.random.key(0)
    monkeypatch.setattr(arena, "PARALLEL_EPISODES", 12)
    monkeypatch.setattr(arena, "CROWD", 1)  # agents: three episodes are played in parallel
    (played,) = Arena(game, joint_policy(learner), jax.devices()[:2]).play([team], key, 8)
    assert played["reward"].shape == (2, 8)
    assert played["furthest"].shape == (1, 8)
    assert len(np.unique(played["reward"][0])) > 3  # rounds have keys of their own
