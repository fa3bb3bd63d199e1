"""Played episodes and their statistics, against a plain loop over episodes and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.evaluation.summary import summarise
from epcx.execution.arena import PARALLEL_EPISODES, Arena


def scripted_policy(game):
    """Scripted players, who need no key, in a batch of worlds."""
    act = jax.vmap(game.scripted, (None, -1), -1)
    return lambda key, agents, worlds: act(key, worlds)


@pytest.mark.parametrize(
    ("name", "population"),
    [("grassland", "3-2"), ("food-collection", "3"), ("predator-prey", "2-1")],
)
def test_arena_agrees_with_a_loop_over_steps(name, population):
    game = games.make(name, population)
    key = jax.random.key(3)
    (played,) = Arena(game, scripted_policy(game)).play([None], key, 3)

    reset_key, rng = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), 0))
    starts = jax.random.split(reset_key, PARALLEL_EPISODES)
    act, reset, step = (jax.jit(f) for f in (game.scripted, game.reset, game.step))
    for episode in range(3):
        world = reset(starts[episode])
        sums = {name: np.zeros(game.num_agents) for name in ("reward", *game.statistics)}
        for step_key in jax.random.split(rng, game.horizon):
            keys = jax.random.split(jax.random.split(step_key)[1], PARALLEL_EPISODES)
            world, outcome = step(keys[episode], world, act(key, world))
            sums["reward"] += outcome.reward
            for statistic in game.statistics:
                sums[statistic] += getattr(outcome.events, statistic)
        for statistic, expected in sums.items():
            np.testing.assert_allclose(played[statistic][:, episode], expected, atol=1e-4)
        if name == "food-collection":
            distances = np.linalg.norm(world.position[:, None] - world.food[None], axis=2)
            covered = np.mean(distances.min(0) < game.roles[0].size + game.food_size)
            np.testing.assert_allclose(played["coverage"][0, episode], covered)


def test_summary_sums_teams_and_averages_collectors():
    values = np.array([[1.0, 3.0], [2.0, 4.0], [6.0, 8.0]])

    def summary(game, **others):
        names = ("reward", "shaping", *game.statistics)
        return summarise(game, dict.fromkeys(names, values) | others)

    two = summary(games.make("grassland", "2-1"))
    assert two["sheep"]["reward"] == {"mean": 5.0, "error": 2.0}
    assert two["wolf"]["reward"]["mean"] == 7.0
    shared = summary(games.make("predator-prey", "1-2"))
    assert shared["predator"]["reward"]["mean"] == 5.0  # all get the same, which counts once
    assert shared["predator"]["touched"]["mean"] == 10.0
    one = summary(games.make("food-collection", 3), coverage=np.array([[0.5, 1.0]]))["collector"]
    assert one["reward"]["mean"] == 4.0
    assert one["coverage"]["mean"] == 0.75


def test_survival_is_the_share_that_lives_to_the_end():
    game = games.make("grassland", "2-1")
    zeros = np.zeros((3, 4))
    died = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    played = dict.fromkeys(("reward", "shaping", *game.statistics), zeros) | {"died": died}
    summary = summarise(game, played)
    assert summary["sheep"]["survival"]["mean"] == 1 - (1 + 0.5) / 4
    assert summary["wolf"]["survival"]["mean"] == 1


def test_arena_plays_more_episodes_than_fit_at_once():
    game = games.make("food-collection", 1)
    idle = lambda key, agents, worlds: jnp.zeros((1, 5, PARALLEL_EPISODES))  # noqa: E731
    (played,) = Arena(game, idle).play([None], jax.random.key(0), PARALLEL_EPISODES + 7)
    assert played["reward"].shape == (1, PARALLEL_EPISODES + 7)


def test_arena_on_many_devices_gives_the_results_of_one():
    """Each team has its own episodes, wherever and beside whom it plays."""
    game = games.make("food-collection", 2)

    def act(key, agents, worlds):
        return jnp.broadcast_to(agents["push"][:, :, None], (2, 5, PARALLEL_EPISODES))

    pushes = np.eye(5, dtype=np.float32)[[[0, 1], [2, 3], [4, 0]]]
    teams = [{"push": push} for push in pushes]
    key, episodes = jax.random.key(0), PARALLEL_EPISODES + 3
    one = Arena(game, act, jax.devices()[:1]).play(teams, key, episodes)
    many = Arena(game, act, jax.devices()[:4]).play(iter(teams), key, episodes)
    assert len(one) == len(many) == 3
    for a, b in zip(one, many, strict=True):
        assert a["reward"].shape == (2, episodes)
        np.testing.assert_array_equal(a["reward"], b["reward"])
        np.testing.assert_array_equal(a["coverage"], b["coverage"])
    assert not np.array_equal(one[0]["shaping"], one[1]["shaping"])
    gpu = Arena(game, act, jax.devices()[:1])
    gpu.rows = 3
    np.testing.assert_allclose(gpu.play(teams, key, 5)[2]["reward"], one[2]["reward"][:, :5])
