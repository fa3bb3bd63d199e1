"""Equivariant networks in worlds that are mirrored and turned by matrices in NumPy."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples.grid_battle import GridBattle

from epcx import games, learners
from epcx.errors import InputError
from epcx.learners import IPPO, MAPPO, MADDPGConfig, MAPPOConfig
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.neighbourhood import NearViews
from epcx.networks.seat import seats
from tests.games.test_neighbours import worlds_of
from tests.games.worlds import SYMMETRIES, transformed, transformed_actions
from tests.networks.helpers import SizedGame

WORLDS = 6
CASES = [  # with neighbours, or everybody
    ("grassland", "3-2", None),
    ("adversarial-battle", "4-3", 2),
    ("food-collection", "4", None),
    ("predator-prey", "4-3", 2),
]
all_cases = pytest.mark.parametrize(("name", "population", "neighbours"), CASES)
all_symmetries = pytest.mark.parametrize("matrix", SYMMETRIES, ids=lambda x: str(x.tolist()))


class Outputs(NamedTuple):
    """Of all agents in all worlds."""

    probabilities: jax.Array  # [agents, actions, worlds]
    q_value: jax.Array  # [agents, worlds]
    q_value_of_taken: jax.Array  # by another way, of the same actions
    q_value_of_other: jax.Array
    value: jax.Array  # MAPPO's
    local_value: jax.Array  # IPPO's


@cache
def setting(name, population):
    """A game, some worlds, the actions taken there, and other ones [agents, actions, worlds]."""
    game = games.make(name, population)
    shape = 2, WORLDS, game.num_agents
    taken, other = jax.random.dirichlet(jax.random.key(1), jnp.ones(5), shape).transpose(0, 2, 3, 1)
    return game, worlds_of(game, WORLDS), taken, other


@cache
def networks_of(name, population, neighbours, network):
    """All outputs as a compiled function of worlds, actions taken and other actions."""
    game = setting(name, population)[0]
    architecture = ARCHITECTURES[network].with_neighbours(neighbours)
    kinds = architecture.policy, architecture.critic, MAPPO.critics[network], IPPO.critics[network]
    keys = jax.random.split(jax.random.key(0), len(kinds))
    fresh = [kind(key, game) for kind, key in zip(kinds, keys, strict=True)]
    # Biases, too, should matter.
    policy, critic, value, local_value = jax.tree.map(lambda x: x + 0.1, fresh)

    @jax.jit
    def outputs(worlds, taken, other):
        views, alive = architecture.views(game, worlds), game.alive_batch(worlds)
        assert isinstance(views, NearViews) == (neighbours is not None)
        features_first = taken.swapaxes(0, 1)

        def of_agent(seat, taken, other):
            context = critic.encode(views, features_first, alive, seat)
            return Outputs(
                jax.nn.softmax(policy(jax.tree.map(seat.mine, views)), 0),
                critic.q_value(context),
                critic.q_value_of(context, taken),
                critic.q_value_of(context, other),
                value(views, alive, seat),
                local_value(views, alive, seat),
            )

        return jax.vmap(of_agent)(seats(game), taken, other)

    return outputs


def before_and_after(name, population, neighbours, network, matrix):
    """Outputs in the worlds, and in the transformed ones, where actions are, too."""
    _, worlds, taken, other = setting(name, population)
    outputs = networks_of(name, population, neighbours, network)
    turned = [jnp.asarray(transformed_actions(x, matrix), jnp.float32) for x in (taken, other)]
    return outputs(worlds, taken, other), outputs(transformed(worlds, matrix), *turned)


@all_symmetries
@all_cases
def test_policy_acts_alike_in_a_transformed_world(name, population, neighbours, matrix):
    before, after = before_and_after(name, population, neighbours, "equivariant", matrix)
    expected = transformed_actions(before.probabilities, matrix)
    np.testing.assert_allclose(after.probabilities, expected, atol=1e-5)


@all_symmetries
@all_cases
def test_critics_value_a_transformed_world_alike(name, population, neighbours, matrix):
    before, after = before_and_after(name, population, neighbours, "equivariant", matrix)
    for field in Outputs._fields[1:]:
        scale = max(1.0, float(jnp.abs(getattr(before, field)).max()))
        np.testing.assert_allclose(
            getattr(after, field), getattr(before, field), atol=1e-5 * scale, err_msg=field
        )


@pytest.mark.parametrize("matrix", SYMMETRIES[1:], ids=lambda x: str(x.tolist()))
def test_relational_networks_distinguish_transformed_worlds(matrix):
    """Policies and critics of all kinds: what equivariant networks add is not there anyway."""
    before, after = before_and_after(*CASES[0], "relational", matrix)
    expected = transformed_actions(before.probabilities, matrix)
    assert np.abs(after.probabilities - expected).max() > 0.01
    for field in Outputs._fields[1:]:
        assert np.abs(getattr(after, field) - getattr(before, field)).max() > 0.01, field


@all_cases
def test_probabilities_and_values_depend_on_what_is_seen_and_done(name, population, neighbours):
    """Constants would be equivariant, too."""
    _, worlds, taken, other = setting(name, population)
    outputs = networks_of(name, population, neighbours, "equivariant")(worlds, taken, other)
    assert (jnp.ptp(outputs.probabilities, axis=1) > 0.01).any()
    for values in outputs:
        assert (jnp.ptp(values, axis=-1) > 0.01).all()
    assert (jnp.abs(outputs.q_value_of_other - outputs.q_value) > 1e-3).any()


@all_cases
def test_q_value_of_the_action_taken_is_the_q_value(name, population, neighbours):
    _, worlds, taken, other = setting(name, population)
    outputs = networks_of(name, population, neighbours, "equivariant")(worlds, taken, other)
    np.testing.assert_allclose(outputs.q_value_of_taken, outputs.q_value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [SizedGame, GridBattle])
@pytest.mark.parametrize(
    ("learner", "config"), [("mappo", MAPPOConfig), ("ippo", MAPPOConfig), ("maddpg", MADDPGConfig)]
)
def test_game_without_a_frame_is_refused(kind, learner, config):
    game = games.make(kind)
    with pytest.raises(InputError, match=f"equivariant does not go with {game.name}, .*`frame`"):
        learners.make(learner, game, config(network="equivariant"))
    learners.make(learner, game, config(network="relational"))
