"""Evaluation against a plain loop over episodes and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.engines.arena import AT_ONCE, Arena
from epcx.evaluation.evaluate import summarise
from epcx.evaluation.scripted import scripted


def scripts(game):
    """Scripted players, who need no key, for a batch of worlds."""
    act = jax.vmap(scripted(game), (None, -1), -1)
    return lambda key, agents, worlds: act(key, worlds)


@pytest.mark.parametrize(
    ("name", "population"),
    [("grassland", "3-2"), ("food-collection", "3"), ("predator-prey", "2-1")],
)
def test_counts_are_those_of_a_loop(name, population):
    game = games.make(name, population)
    key = jax.random.key(3)
    (played,) = Arena(game, scripts(game)).play([None], key, 3)

    first, chance = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), 0))
    starts = jax.random.split(first, AT_ONCE)
    act, reset, step = (jax.jit(f) for f in (scripted(game), game.reset, game.step))
    for episode in range(3):
        world = reset(starts[episode])
        sums = {name: np.zeros(game.num_agents) for name in ("reward", *game.statistics)}
        for step_key in jax.random.split(chance, game.horizon):
            keys = jax.random.split(jax.random.split(step_key)[1], AT_ONCE)
            world, outcome = step(keys[episode], world, act(key, world))
            sums["reward"] += outcome.reward
            for statistic in game.statistics:
                sums[statistic] += getattr(outcome.events, statistic)
        for statistic, expected in sums.items():
            np.testing.assert_allclose(played[statistic][:, episode], expected, atol=1e-4)
        if game.covers:
            covered = np.mean(outcome.events.occupied)
            np.testing.assert_allclose(played["coverage"][0, episode], covered)


def test_teams_are_summed_and_collectors_averaged():
    values = np.array([[1.0, 3.0], [2.0, 4.0], [6.0, 8.0]])
    two = summarise(games.make("grassland", "2-1"), {"reward": values})
    assert two["sheep"]["reward"] == {"mean": 5.0, "error": 2.0}
    assert two["wolf"]["reward"]["mean"] == 7.0
    shared = summarise(games.make("predator-prey", "1-2"), {"reward": values, "touched": values})
    assert shared["predator"]["reward"]["mean"] == 5.0  # all get the same, which counts once
    assert shared["predator"]["touched"]["mean"] == 10.0
    played = {"reward": values, "coverage": np.array([[0.5, 1.0]])}
    one = summarise(games.make("food-collection", 3), played)["collector"]
    assert one["reward"]["mean"] == 4.0
    assert one["coverage"]["mean"] == 0.75


def test_more_episodes_than_fit_at_once():
    game = games.make("food-collection", 1)
    idle = lambda key, agents, worlds: jnp.zeros((1, 5, AT_ONCE))  # noqa: E731
    (played,) = Arena(game, idle).play([None], jax.random.key(0), AT_ONCE + 7)
    assert played["reward"].shape == (1, AT_ONCE + 7)


def test_teams_play_on_many_devices_as_on_one():
    """Each team has its own episodes, wherever and beside whom it plays."""
    game = games.make("food-collection", 2)

    def act(key, agents, worlds):
        return jnp.broadcast_to(agents["push"][:, :, None], (2, 5, AT_ONCE))

    pushes = np.eye(5, dtype=np.float32)[[[0, 1], [2, 3], [4, 0]]]
    teams = [{"push": push} for push in pushes]
    key = jax.random.key(0)
    one = Arena(game, act, jax.devices()[:1]).play(teams, key, AT_ONCE + 3)
    many = Arena(game, act, jax.devices()[:4]).play(iter(teams), key, AT_ONCE + 3)
    assert len(one) == len(many) == 3
    for a, b in zip(one, many, strict=True):
        assert a["reward"].shape == (2, AT_ONCE + 3)
        np.testing.assert_array_equal(a["reward"], b["reward"])
        np.testing.assert_array_equal(a["coverage"], b["coverage"])
    assert not np.array_equal(one[0]["shaping"], one[1]["shaping"])
    gpu = Arena(game, act, jax.devices()[:1])
    gpu.rows = 3
    np.testing.assert_allclose(gpu.play(teams, key, 5)[2]["reward"], one[2]["reward"][:, :5])
