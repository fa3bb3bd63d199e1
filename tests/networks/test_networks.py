"""Networks against loops written from the equations, and what must not change their outputs."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.layers import attend
from epcx.networks.seat import seats
from tests.games.worlds import random_world
from tests.networks import reference

REFERENCES = {
    "relational": (reference.relational_logits, reference.relational_value),
    "equivariant": (reference.equivariant_logits, reference.equivariant_value),
}
POPULATION_INVARIANT = ["attention", "relational", "equivariant"]
CASES = [("grassland", "3-2"), ("adversarial-battle", "2-4"), ("food-collection", "3")]


def batch(tree, copies=1):
    """One world or array as a batch of one, or of several copies."""
    return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[..., None], copies, -1), tree)


@partial(jax.jit, static_argnums=(0, 1, 4))
def all_logits(game, architecture, agents, world, copies=1):
    """The logits of every agent in one world [N, 5]."""
    views = ARCHITECTURES[architecture].views(game, batch(world, copies))
    return jax.vmap(lambda policy, view: policy(view), (0, -2))(agents.policy, views)[..., 0]


@partial(jax.jit, static_argnums=(0, 1, 5))
def all_q_values(game, architecture, agents, world, actions, copies=1):
    """Q of every agent in one world [N]."""
    views = ARCHITECTURES[architecture].views(game, batch(world, copies))

    def one(critic, seat):
        return q_value(critic, views, batch(actions.T, copies), batch(world.alive, copies), seat)

    return jax.vmap(one)(agents.critic, seats(game))[:, 0]


def q_value(critic, views, actions, alive, seat):
    return critic.q_value(critic.encode(views, actions, alive, seat))


@partial(jax.jit, static_argnums=(0, 1))
def new_agents(architecture, game, seed):
    return ARCHITECTURES[architecture].agents(jax.random.key(seed), game)


@partial(jax.jit, static_argnums=0)
def observe(game, world):
    return game.observe(world)


@partial(jax.jit, static_argnums=0)
def logits_of(game, agent, world, seat):
    """The logits of one agent, of any population, in a seat."""
    view = jax.tree.map(
        lambda x: x[..., seat, :], ARCHITECTURES["attention"].views(game, batch(world))
    )
    return agent.policy(view)[..., 0]


@partial(jax.jit, static_argnums=0)
def q_value_of(game, agent, world, actions, number):
    """Q of one agent, of any population, in a seat."""
    seat = jax.tree.map(lambda x: jnp.asarray(x)[number], seats(game))
    views = ARCHITECTURES["attention"].views(game, batch(world))
    return q_value(agent.critic, views, batch(actions.T), batch(world.alive), seat)[0]


def one(tree, i):
    return jax.tree.map(lambda x: np.asarray(x)[i], tree)


def to_jax(tree):
    return jax.tree.map(jnp.asarray, tree)


@pytest.mark.parametrize(
    ("network", "name", "population", "copies"),  # few rows are plain JAX, and many are C++
    [
        *(("attention", *case, copies) for case in CASES for copies in (1, 9)),
        ("attention-separate", "grassland", "3-2", 9),
        *((network, *case, 2) for network in REFERENCES for case in CASES),
    ],
)
def test_networks_equal_the_equations(network, name, population, copies):
    game = games.make(name, population)
    agents = new_agents(network, game, 0)
    agents = jax.tree.map(lambda x: x + 0.1, agents)  # biases, too, should matter
    world, actions = random_world(game, seed=4)
    view = observe(game, world)
    logits = all_logits(game, network, agents, world, copies)
    values = all_q_values(game, network, agents, world, actions, copies)
    logits_by, value_by = REFERENCES.get(network, (reference.logits, reference.value))
    for i in range(game.num_agents):
        agent = one(agents, i)
        expected = logits_by(agent.policy, view, i)
        np.testing.assert_allclose(logits[i], expected, rtol=1e-3, atol=1e-4)
        expected = value_by(agent.critic, game, view, actions, world.alive, i)
        np.testing.assert_allclose(values[i], expected, rtol=1e-3, atol=1e-4)


def test_flat_networks_equal_a_loop():
    game = games.make("grassland", "2-2")
    world, actions = random_world(game, seed=4)
    view = np.asarray(game.observe_flat(world), float)
    alive = np.asarray(world.alive)
    assert not alive.all()
    for name in ("mlp", "mean-field", "mean-field-local"):
        agents = new_agents(name, game, 0)
        logits = all_logits(game, name, agents, world)
        values = all_q_values(game, name, agents, world, actions)
        for i in range(4):
            agent = one(agents, i)
            np.testing.assert_allclose(
                logits[i], reference.mlp(agent.policy.mlp, view[i]), rtol=1e-4, atol=1e-5
            )
            others = [np.asarray(actions[j], float) for j in range(4) if j != i and alive[j]]
            acted = [actions[i], np.mean(others, 0) if others else np.zeros(5)]
            inputs = {
                "mlp": np.concatenate([view.ravel(), np.asarray(actions, float).ravel()]),
                "mean-field": np.concatenate([view.ravel(), *acted]),
                "mean-field-local": np.concatenate([view[i], *acted]),
            }[name]
            expected = reference.mlp(agent.critic.mlp, inputs)[0]
            np.testing.assert_allclose(values[i], expected, rtol=1e-4, atol=1e-5)


def test_separate_attention_has_weights_for_each_group():
    shared = new_agents("attention", games.make("grassland", "1-1"), 0).critic
    separate = new_agents("attention-separate", games.make("grassland", "1-1"), 0).critic
    alone = new_agents("attention-separate", games.make("food-collection", "2"), 0).critic
    counts = [(len(critic.queries), len(critic.keys)) for critic in (shared, separate, alone)]
    assert counts == [(1, 1), (2, 2), (1, 1)]
    first, second = (np.asarray(query.weight) for query in separate.queries)
    assert (first != second).all()


def permuted(world, order):
    return replace(
        world,
        position=world.position[order],
        velocity=world.velocity[order],
        alive=world.alive[order],
    )


@pytest.mark.parametrize("network", POPULATION_INVARIANT)
@pytest.mark.parametrize(("name", "population"), CASES)
def test_outputs_do_not_depend_on_the_order_of_others_and_food(name, population, network):
    game = games.make(name, population)
    agents = new_agents(network, game, 1)
    world, actions = random_world(game, seed=5)
    order = np.arange(game.num_agents)
    for members in game.members.values():  # agent 0 stays, the others of each role are reversed
        start = max(members.start, 1)
        order[start : members.stop] = order[start : members.stop][::-1]
    other = replace(permuted(world, order), food=world.food[::-1])
    first = to_jax(one(agents, 0))
    np.testing.assert_allclose(
        logits_of(game, first, world, 0), logits_of(game, first, other, 0), atol=1e-5
    )
    np.testing.assert_allclose(
        q_value_of(game, first, world, actions, 0),
        q_value_of(game, first, other, actions[order], 0),
        atol=1e-5,
    )


@pytest.mark.parametrize("network", POPULATION_INVARIANT)
def test_outputs_do_not_depend_on_dead_agents(network):
    small, large = games.make("grassland", "2-2"), games.make("grassland", "4-3")
    agents = new_agents(network, small, 1)
    world, actions = random_world(small, seed=6)
    world = replace(world, alive=jnp.ones(4, bool))
    crowd, more_actions = random_world(large, seed=7)
    rows = np.array([0, 1, 4, 5])  # the living: the first two of each role
    crowd = replace(
        crowd,
        position=crowd.position.at[rows].set(world.position),
        velocity=crowd.velocity.at[rows].set(world.velocity),
        alive=jnp.zeros(7, bool).at[rows].set(True),
        food=world.food,
    )
    more_actions = more_actions.at[rows].set(actions)
    for i, row in enumerate(rows):
        agent = to_jax(one(agents, i))
        np.testing.assert_allclose(
            logits_of(small, agent, world, i), logits_of(large, agent, crowd, row), atol=1e-5
        )
        np.testing.assert_allclose(
            q_value_of(small, agent, world, actions, i),
            q_value_of(large, agent, crowd, more_actions, row),
            atol=1e-5,
        )


@pytest.mark.parametrize("network", POPULATION_INVARIANT)
def test_agent_of_a_small_population_acts_in_a_large_one(network):
    logits_by, value_by = REFERENCES.get(network, (reference.logits, reference.value))
    small, large = games.make("grassland", "3-2"), games.make("grassland", "24-16")
    agent = to_jax(one(new_agents(network, small, 0), 0))
    world, actions = random_world(large, seed=1)
    view = observe(large, world)
    expected = logits_by(agent.policy, view, 7)
    np.testing.assert_allclose(logits_of(large, agent, world, 7), expected, rtol=1e-3, atol=1e-4)
    expected = value_by(agent.critic, large, view, actions, world.alive, 7)
    np.testing.assert_allclose(
        q_value_of(large, agent, world, actions, 7), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("network", POPULATION_INVARIANT)
def test_last_survivor_has_finite_values_and_gradients(network):
    """Every set but the food is empty."""
    game = games.make("grassland", "2-1")
    world, actions = random_world(game, seed=1)
    world = replace(world, alive=jnp.array([True, False, False]))
    agent = to_jax(one(new_agents(network, game, 0), 0))
    value, gradient = jax.jit(
        jax.value_and_grad(lambda agent: q_value_of(game, agent, world, actions, 0))
    )(agent)
    assert np.isfinite(value)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_attention_weights_are_zero_for_masked_entities_and_agents():
    game = games.make("grassland", "3-2")
    world, actions = random_world(game, seed=2)
    agent = to_jax(one(new_agents("attention", game, 0), 0))
    views = ARCHITECTURES["attention"].views(game, batch(world))
    weights = jax.jit(lambda agent: agent.policy.encoder.attention(views))(agent)
    for name, (_, mask) in views.entities.items():
        assert (np.asarray(weights[name])[~np.asarray(mask)] == 0).all()
        np.testing.assert_allclose(weights[name].sum(0), mask.any(0), atol=1e-6)
    seat = to_jax(one(seats(game), 0))

    @jax.jit
    def attention(critic):
        context = critic.encode(views, batch(actions.T), batch(world.alive), seat)
        return critic.attention(context)

    teammates, opponents = attention(agent.critic)
    for given, group in ((teammates, seat.teammates), (opponents, seat.opponents)):
        allowed = np.asarray(group & world.alive)
        assert (np.asarray(given[:, 0]) > 0).tolist() == allowed.tolist()


def plain_attention(query, keys, values, mask):
    """`attend`, left to automatic differentiation."""
    scores = (query[:, None] * keys).sum(0) / query.shape[0] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=0) * mask
    return (weights * values).sum(1)


def test_gradient_of_attention_equals_automatic_differentiation():
    keys = jax.random.split(jax.random.key(0), 4)
    query, ks, vs = (
        jax.random.normal(k, shape)
        for k, shape in zip(keys, [(16, 7), (16, 3, 7), (4, 3, 7)], strict=False)
    )
    mask = jax.random.bernoulli(keys[3], 0.6, (3, 7)).at[:, 0].set(False)
    scale = jnp.arange(7.0)
    ours = jax.jit(jax.grad(lambda *x: (attend(*x, mask) * scale).sum(), (0, 1, 2)))
    plain = jax.jit(jax.grad(lambda *x: (plain_attention(*x, mask) * scale).sum(), (0, 1, 2)))
    for a, b in zip(ours(query, ks, vs), plain(query, ks, vs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("network", POPULATION_INVARIANT)
def test_agents_share_no_weights(network):
    agents = new_agents(network, games.make("grassland", "3-2"), 0)
    for leaf in jax.tree.leaves((agents.policy, agents.critic)):
        if np.asarray(leaf).any():  # biases start at 0
            assert len(np.unique(np.asarray(leaf).reshape(5, -1), axis=0)) == 5
    for network, target in zip(
        jax.tree.leaves((agents.policy, agents.critic)),
        jax.tree.leaves((agents.target_policy, agents.target_critic)),
        strict=True,
    ):
        np.testing.assert_array_equal(network, target)
