"""The option `neighbours`: for everybody it is full attention, and what it refuses."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, learners
from epcx.errors import InputError
from epcx.learners import IPPO, MADDPG, MAPPO, MATD3, MADDPGConfig, MAPPOConfig, MATD3Config
from epcx.networks import neighbourhood
from epcx.networks.neighbourhood import NearViews
from tests.games.ring import Ring

SIZES = {"batch_size": 16, "buffer_size": 400, "num_envs": 4, "learning_starts": 100}
LEARNERS = {
    "maddpg": MADDPG(games.make("grassland", "2-2"), MADDPGConfig(**SIZES)),
    "matd3": MATD3(games.make("food-collection", "3"), MATD3Config(**SIZES)),
    "mappo": MAPPO(games.make("grassland", "2-1"), MAPPOConfig(num_envs=3, epochs=2)),
    "ippo": IPPO(games.make("food-collection", "3"), MAPPOConfig(num_envs=3, epochs=1)),
}


def with_neighbours(learner, k, **layout):
    return replace(learner, config=replace(learner.config, neighbours=k), **layout)


def trained(learner, updates=1):
    @jax.jit
    def train():
        first, second = jax.random.split(jax.random.key(0))
        state = learner.start(second, learner.init(first))
        state, metrics = learner.advance(state, jnp.int32(updates))
        return learner.agents(state), metrics

    return train()


def assert_close(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("maddpg", {"slices": 2, "agents_at_once": 2}),
        pytest.param("mappo", {"agents_at_once": 1}, marks=pytest.mark.slow),
    ],
)
def test_updates_with_neighbourhoods_of_everybody_are_those_of_full_attention(
    monkeypatch, name, layout
):
    """Whatever the layout: slices of the batch, and some agents at once."""
    expected = trained(LEARNERS[name])
    monkeypatch.setattr(neighbourhood, "covers_everybody", lambda game, k: False)
    learner = with_neighbours(LEARNERS[name], 5, **layout)
    worlds = learner.game.reset_batch(jax.random.split(jax.random.key(0), 2))
    assert isinstance(learner.networks.views(learner.game, worlds), NearViews)
    assert_close(trained(learner), expected)


@pytest.mark.parametrize("name", ["maddpg", "mappo"])
def test_enough_neighbours_give_the_same_program(name):
    """Grassland has four pellets, and here fewer agents of each role."""

    def program(learner):
        key = jax.random.key(0)
        state = jax.eval_shape(lambda: learner.start(key, learner.init(key)))
        return str(jax.make_jaxpr(learner.advance)(state, jnp.int32(1)))

    same, different = (program(with_neighbours(LEARNERS[name], k)) for k in (4, 3))
    assert same == program(LEARNERS[name]) != different


@pytest.mark.parametrize("name", ["matd3", "ippo"])
def test_learners_train_with_neighbourhoods(name):
    agents, metrics = trained(with_neighbours(LEARNERS[name], 1))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((agents, metrics)))


def test_actions_come_from_the_nearest_that_agents_see():
    """Nobody beyond the neighbourhood matters."""
    game = games.make("food-collection", "5")
    learner = learners.make("maddpg", game, MADDPGConfig(neighbours=2, **SIZES))
    policies = learner.policies(learner.init(jax.random.key(0)))
    place = jnp.asarray([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.8, 0.0], [0.9, 0.0]])
    world = replace(game.reset(jax.random.key(1)), position=place)
    moved = replace(world, position=place.at[4, 1].set(0.5))

    @partial(jax.jit, static_argnums=1)
    def act(world, k):
        other = with_neighbours(learner, k)
        seen = other.observe(jax.tree.map(lambda x: x[..., None], world), "collector")
        return other.act(jax.random.key(2), policies, seen)[0, :, 0]

    np.testing.assert_array_equal(act(world, 2), act(moved, 2))
    assert (act(world, 4) != act(moved, 4)).any()


@pytest.mark.parametrize("k", [8, 12])
def test_memory_of_a_critic_follows_its_neighbourhood(k):
    """On CPUs hidden units of 1 + 2 k agents with k sheep, k wolves and 4 pellets each."""
    learner = MADDPG(games.make("grassland", "384-256"), MADDPGConfig(neighbours=k))
    hidden = learner.networks.hidden_bytes(learner.game)
    assert hidden == (1 + 2 * k) * (2 * k + 4) * 32 * 4
    assert learner.networks.activation_bytes(learner.game) <= hidden


def test_layout_on_a_gpu_fits_hundreds_of_agents(monkeypatch):
    """24 of the widest layers of all agents, in slices, beside the buffer."""
    learner = MADDPG(games.make("grassland", "384-256"), MADDPGConfig(neighbours=12))
    memory, state = 100 * 10**9, learner.state_bytes()
    laid_out = learner.with_layout("gpu", memory, 1, 1)
    per_sample = 640 * learner.networks.activation_bytes(learner.game)
    assert state + 24 * per_sample * 1024 // laid_out.slices <= memory
    assert laid_out.slices <= 64


def test_memory_advice_is_true_for_hundreds_of_agents():
    learner = MADDPG(games.make("grassland", "384-256"), MADDPGConfig(neighbours=12))
    limit = 10 * 10**9
    assert learner.state_bytes() > 2 * limit
    advised = int(learner.memory_advice(limit).split()[1])
    fitting = replace(learner, config=replace(learner.config, buffer_size=advised))
    assert 0.95 * limit < fitting.state_bytes() <= limit


@pytest.mark.parametrize("network", ["mlp", "mean-field", "mean-field-local"])
def test_networks_of_one_population_refuse_neighbourhoods(network):
    with pytest.raises(InputError, match=f"neighbours 8 .* network {network}.*: use network"):
        MADDPGConfig(network=network, neighbours=8)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (0, "is too small: a whole number from 1"),
        (-1, "is too small: a whole number from 1"),
        (True, "is not a whole number from 1"),
    ],
)
@pytest.mark.parametrize("config", [MADDPGConfig, MATD3Config, MAPPOConfig])
def test_neighbours_are_a_positive_number(config, value, fault):
    with pytest.raises(InputError, match=f"neighbours {value} {fault}"):
        config(neighbours=value)


def test_game_that_knows_no_distances_is_refused():
    with pytest.raises(InputError, match="neighbours 3: ring has no neighbourhoods"):
        learners.make("maddpg", games.make(Ring), MADDPGConfig(neighbours=3))
