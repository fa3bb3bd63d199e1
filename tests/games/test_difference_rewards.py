"""Difference rewards of the particle games, against the rules without one agent at a time."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.errors import InputError
from tests.games.ring import Ring
from tests.games.worlds import PARTICLE_GAMES, make_population, random_world


@cache
def crowded(name):
    """A game, and worlds in which agents touch food and each other."""
    game = games.make(name, make_population(name, 5, 4))
    worlds = [random_world(game, seed, 0.3)[0] for seed in range(40)]
    return game, jax.tree.map(lambda *x: jnp.stack(x, -1), *worlds)


def team_rewards(game, worlds, position):
    """The sum over the members of each agent's role."""
    reward = np.asarray(game.resolve(worlds, position).reward)
    sums = [np.broadcast_to(reward[m].sum(0), reward[m].shape) for m in game.members.values()]
    return np.concatenate(sums)


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_difference_reward_is_what_the_team_loses_if_the_agent_is_far_away(name):
    game, worlds = crowded(name)
    found = game.resolve(worlds, worlds.position).difference
    together = team_rewards(game, worlds, worlds.position)
    for agent in range(game.num_agents):
        without = team_rewards(game, worlds, worlds.position.at[agent].set(1000.0 + agent))
        np.testing.assert_allclose(found[agent], (together - without)[agent], atol=1e-4)


@pytest.mark.parametrize(("name", "shared"), list(zip(PARTICLE_GAMES, (0, 1, 1, 1), strict=True)))
def test_difference_rewards_differ_from_rewards_where_these_are_shared(name, shared):
    game, worlds = crowded(name)
    decided = game.resolve(worlds, worlds.position)
    assert decided.difference.any()
    assert bool((decided.difference != decided.reward).any()) == shared


def test_game_without_difference_rewards_says_what_it_lacks():
    with pytest.raises(InputError, match=r"difference-rewards .* ring, .* `difference` of its"):
        games.make(Ring).check_difference_rewards()
    games.make("grassland").check_difference_rewards()
