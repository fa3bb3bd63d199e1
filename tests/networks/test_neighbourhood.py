"""Neighbourhoods against loops in NumPy, and against all agents where they cover everybody."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.networks import kernels, neighbourhood
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.kernels import CPP, XLA
from epcx.networks.kernels.pallas_attention import Options as AttentionOptions
from epcx.networks.kernels.pallas_encoder import Options
from epcx.networks.neighbourhood import NearViews, num_slots
from epcx.networks.relational import RelationalValue
from epcx.networks.seat import seats
from epcx.networks.values import AttentionValue
from tests.games.test_neighbours import worlds_of
from tests.networks import reference
from tests.networks.helpers import encoder_of, needs_compiler, values_and_gradients, view_of
from tests.networks.test_gpu_kernels import PALLAS, pallas_calls

CASES = [("grassland", "4-3"), ("adversarial-battle", "1-4"), ("food-collection", "5")]
NETWORKS = ("attention", "attention-separate", "relational", "equivariant")
VALUES = {  # others are the paper's
    "relational": reference.relational_value,
    "equivariant": reference.equivariant_value,
}


@pytest.fixture
def always_lists(monkeypatch):
    """Lists of neighbours also where they cover everybody."""
    monkeypatch.setattr(neighbourhood, "covers_everybody", lambda game, k: False)


def neighbours_of(game, world, agent, k):
    """Seats of the nearest teammates and opponents that live, by a loop."""
    place, alive = np.asarray(world.position), np.asarray(world.alive)
    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    near = []
    for same in (True, False):
        others = [j for j in range(game.num_agents) if j != agent and alive[j]]
        group = [j for j in others if (role[j] == role[agent]) == same]
        apart = {j: ((place[j] - place[agent]) ** 2).sum() for j in group}
        near.append(sorted(sorted(group, key=lambda j: apart[j])[:k]))
    return near


@pytest.mark.parametrize(("name", "population"), CASES)
def test_neighbourhoods_equal_a_loop(name, population, always_lists):
    game, k = games.make(name, population), 2
    worlds = worlds_of(game)
    views = jax.jit(lambda w: ARCHITECTURES["attention"].with_neighbours(k).views(game, w))(worlds)
    assert views.agents.shape == views.group.shape == (num_slots(game, k), game.num_agents, 6)
    for number in range(6):
        world = jax.tree.map(lambda x, i=number: x[..., i], worlds)
        for agent in range(game.num_agents):
            agents, group = (np.asarray(x[:, agent, number]) for x in (views.agents, views.group))
            found = [list(agents[group == i]) for i in (1, 2)]
            assert found == neighbours_of(game, world, agent, k)
            assert (agents[0], group[0]) == (agent, 0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("name", "population"), CASES)
def test_critic_attends_to_the_nearest_as_in_the_equations(name, population, network):
    game, k = games.make(name, population), 2
    near = ARCHITECTURES[network].with_neighbours(k)
    agents = near.agents(jax.random.key(0), game)
    worlds = worlds_of(game, 2)
    actions = jax.random.dirichlet(jax.random.key(1), jnp.ones(5), (2, game.num_agents))

    @jax.jit
    def values(critics):
        views, alive = near.views(game, worlds), game.alive_batch(worlds)
        assert isinstance(views, NearViews)

        def one(critic, seat):
            return critic.q_value(critic.encode(views, actions.transpose(2, 1, 0), alive, seat))

        return jax.vmap(one)(critics, seats(game))

    found = values(agents.critic)
    for number in range(2):
        world = jax.tree.map(lambda x, i=number: x[..., i], worlds)
        view = game.observe_nearest(world, k)
        for agent in range(game.num_agents):
            critic = jax.tree.map(lambda x, i=agent: x[i], agents.critic)
            attended = np.zeros(game.num_agents, bool)
            attended[np.concatenate(neighbours_of(game, world, agent, k)).astype(int)] = True
            value = VALUES.get(network, reference.value)
            expected = value(critic, game, view, actions[number], attended, agent)
            np.testing.assert_allclose(found[agent, number], expected, atol=1e-4)


@pytest.mark.parametrize("network", ["attention", "attention-separate", "equivariant"])
@pytest.mark.parametrize(("name", "population"), CASES)
def test_neighbourhoods_of_everybody_are_full_attention(name, population, network, always_lists):
    """Logits; Q of taken and other actions; gradients by the critic and by the other action."""
    game = games.make(name, population)
    architecture = ARCHITECTURES[network]
    agents = architecture.agents(jax.random.key(0), game)
    worlds, n = worlds_of(game), game.num_agents
    taken, other = jax.random.dirichlet(jax.random.key(1), jnp.ones(5), (2, 6, n)).transpose(
        0, 3, 2, 1
    )

    def everything(architecture):
        views, alive = architecture.views(game, worlds), game.alive_batch(worlds)

        def values(critic, action, seat):
            context = critic.encode(views, taken, alive, seat)
            both = critic.q_value(context), critic.q_value_of(context, action)
            return jnp.stack(both).sum(), both

        def one(agent, action, seat):
            logits = agent.policy(jax.tree.map(seat.mine, views))
            gradient = jax.value_and_grad(values, (0, 1), has_aux=True)
            return logits, gradient(agent.critic, action, seat)

        return jax.vmap(one, (0, 1, 0))(agents, other, seats(game))

    near = architecture.with_neighbours(n)
    assert isinstance(near.views(game, worlds), NearViews)
    full, lists = jax.jit(lambda: (everything(architecture), everything(near)))()
    for a, b in zip(jax.tree.leaves(lists), jax.tree.leaves(full), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize("kind", [AttentionValue, RelationalValue])
def test_state_value_of_everybody_is_full_attention(always_lists, kind):
    game = games.make("grassland", "4-3")
    critic = kind(jax.random.key(0), game)
    worlds, architecture = worlds_of(game), ARCHITECTURES["attention"]

    def value(critic, architecture):
        views, alive = architecture.views(game, worlds), game.alive_batch(worlds)
        return jax.vmap(lambda seat: critic(views, alive, seat))(seats(game)).sum()

    expected, found = (
        jax.jit(jax.value_and_grad(lambda c, a=a: value(c, a)))(critic)
        for a in (architecture, architecture.with_neighbours(7))
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize(("k", "lists"), [(2, True), (3, True), (4, False)])
def test_enough_neighbours_need_no_lists(k, lists):
    """Wolves have four opponents: then the program is that without neighbourhoods."""
    game = games.make("grassland", "4-3")
    views = ARCHITECTURES["attention"].with_neighbours(k).views(game, worlds_of(game))
    assert isinstance(views, NearViews) == lists
    assert num_slots(game, k) == (1 + min(k, 3) + k if lists else 7)


def indexed(implementation, view, index):
    def encoded(encoder):
        return implementation.encode(encoder.own, encoder.entities, view, index)

    return encoded


@pytest.mark.parametrize(
    "implementation", [pytest.param(CPP, marks=needs_compiler), PALLAS], ids=["C++", "Pallas"]
)
def test_kernels_encode_the_rows_of_an_index(implementation):
    """Values and gradients; rows that are taken several times, or never, and fill no tile."""
    types = {"a": (3, 2), "b": (40, 4)}
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    view = view_of(jax.random.key(1), types, (21,))
    index = jax.random.randint(jax.random.key(2), (37,), 0, 15)
    grad = jax.random.normal(jax.random.key(3), (encoder.width, 37))
    taken = jax.tree.map(lambda x: x[..., index], view)
    expected = values_and_gradients(indexed(XLA, taken, None), grad, encoder)
    actual = values_and_gradients(indexed(implementation, view, index), grad, encoder)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


def test_gpu_kernels_gather_from_one_table_for_all_agents():
    """What each critic reads is an index; observations are neither copied nor gathered before."""
    types, agents = {"a": (3, 2), "b": (4, 4)}, 5
    make = lambda key: encoder_of(key, {"a": 2, "b": 4})  # noqa: E731
    encoders = jax.vmap(make)(jax.random.split(jax.random.key(0), agents))
    view = view_of(jax.random.key(1), types, (64,))
    index = jax.random.randint(jax.random.key(2), (agents, 48), 0, 64)

    def value(encoder, index, implementation):
        return (indexed(implementation, view, index)(encoder) ** 2).sum()

    def gradients(implementation):
        return jax.vmap(lambda *x: jax.grad(value)(*x, implementation))(encoders, index)

    program = jax.make_jaxpr(lambda: gradients(PALLAS))()
    table = {(64, 16), (1, 2, 64, 16)}  # own features; groups of two entities
    calls = list(pallas_calls(program.jaxpr))
    assert len(calls) == 3
    for call in calls:
        shapes = [x.aval.shape for x in call.invars]
        assert (agents, 48) in shapes
        assert table & set(shapes)
        assert not any({48, 64 * agents} & set(shape[1:-1]) and shape[-1] == 16 for shape in shapes)
    actual, expected = (jax.jit(lambda i=i: gradients(i))() for i in (PALLAS, XLA))
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * max(1.0, float(jnp.abs(b).max())))


def test_gathering_kernels_lower_for_gpus():
    """Triton does not take all of JAX; compiling further needs a GPU."""
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    view = view_of(jax.random.key(1), {"a": (5, 2), "b": (40, 4)}, (40,))
    options = Options(), Options(), AttentionOptions()
    implementation = kernels.pallas_kernels(*options)

    def value(encoder, index):
        return indexed(implementation, view, index)(encoder).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(value)).trace(encoder, jnp.zeros(50, jnp.int32))
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 3
