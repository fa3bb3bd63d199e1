"""IPPO in the manner of JaxMARL's scripts learns on the games, as on JaxMARL's own MPE."""

import jax
import numpy as np
import pytest

from epcx.adapters.jaxmarl import JaxMARLGame
from tests.clients.ippo import NUM_ENVS, NUM_STEPS, make_train
from tests.games.worlds import PARTICLE_GAMES

import jaxmarl  # isort: skip - the adapter keeps it from printing

pytestmark = pytest.mark.slow


def train(env, updates):
    """Parameters, and infos [updates, steps, agents, envs]."""
    state, infos = jax.jit(make_train(env, updates))(jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    shape = (updates, NUM_STEPS, env.num_agents, NUM_ENVS)
    return {name: np.asarray(x).reshape(shape) for name, x in infos.items()}


ENVIRONMENTS = {
    **{name: lambda name=name: JaxMARLGame(name) for name in PARTICLE_GAMES},
    "MPE_simple_spread_v3": lambda: jaxmarl.make("MPE_simple_spread_v3"),
}


@pytest.mark.parametrize("name", ["food-collection", "MPE_simple_spread_v3"])
def test_ippo_learns(name):
    infos = train(ENVIRONMENTS[name](), 60)
    ended, returns = infos["returned_episode"], infos["returned_episode_returns"]
    first, last = (returns[part][ended[part]].mean() for part in (slice(6), slice(-6, None)))
    assert last > first + 2


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_ippo_logs_whole_episodes(name):
    env = ENVIRONMENTS[name]()
    longest = getattr(env, "horizon", 26)  # JaxMARL's MPE plays one step more than its `max_steps`
    infos = train(env, 4)
    ended = infos["returned_episode"]
    np.testing.assert_array_equal(ended.any(2), ended.all(2))  # of all agents at once
    lengths = infos["returned_episode_lengths"][ended]
    assert lengths.max() == longest
    unfinished = ended.size - lengths.sum()  # steps of episodes that are still running
    assert 0 <= unfinished < longest * ended[0, 0].size
