"""Episodes of a game from outside the package, against a plain loop."""

import jax
import numpy as np

from epcx.execution.arena import PARALLEL_EPISODES, Arena, joint_policy
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
