"""Scripted players are yardsticks: each must play its game clearly better than chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from epcx import games
from epcx.evaluation.scripted import random, scripted, share_out

EPISODES = 64


def play(game, sides):
    """Task reward per agent and episode [N]; `sides[i]` decides for role i."""

    def advance(world, key):
        choice, chance = jax.random.split(key)
        actions = jnp.concatenate(
            [
                act(choice, world)[members]
                for act, members in zip(sides, game.members.values(), strict=True)
            ]
        )
        after, outcome = game.step(chance, world, actions)
        return after, (outcome.reward, actions)

    def episode(key):
        keys = jax.random.split(key, game.horizon + 1)
        return jax.lax.scan(advance, game.reset(keys[0]), keys[1:])[1]

    reward, actions = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES))
    assert (np.asarray(actions) >= 0).all()
    assert (np.asarray(actions).sum(-1) <= 1 + 1e-5).all()
    return np.asarray(reward).sum(1).mean(0)


@pytest.mark.parametrize(
    ("name", "population"),
    [("grassland", "6-4"), ("adversarial-battle", "4-4"), ("predator-prey", "3-2")],
)
def test_each_scripted_role_beats_a_random_one(name, population):
    game = games.make(name, population)
    chance, script = random(game), scripted(game)
    base = play(game, (chance, chance))
    for i, members in enumerate(game.members.values()):
        sides = [chance, chance]
        sides[i] = script
        assert play(game, sides)[members].sum() > base[members].sum() + 1


def test_collectors_spread_out_over_the_food():
    """The reward of a perfect team would be 6 per step and agent, 150 in all."""
    game = games.make("food-collection", "6")
    assert play(game, (random(game),)).mean() < 20
    assert play(game, (scripted(game),)).mean() > 105


@pytest.mark.parametrize(("agents", "food"), [(6, 6), (4, 7), (7, 3)])
def test_collectors_take_the_shortest_ways_in_sum(agents, food):
    """As scipy has them; who is left over stays where it is."""
    game = games.make("food-collection", agents, food=food)
    for seed in range(5):
        world = game.reset(jax.random.key(seed))
        aims = np.asarray(jax.jit(share_out, static_argnums=0)(game, world))
        ways = np.linalg.norm(world.position[:, None] - world.food[None], axis=2)
        expected = ways[linear_sum_assignment(ways)].sum()
        np.testing.assert_allclose(
            np.linalg.norm(aims - world.position, axis=1).sum(), expected, 1e-5
        )
        places = {tuple(aim) for aim in aims} & {tuple(place) for place in np.asarray(world.food)}
        assert len(places) == min(agents, food)
