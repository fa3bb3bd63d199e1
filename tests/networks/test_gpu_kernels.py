"""The Pallas kernels for GPUs, interpreted on the CPU, against plain JAX."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.games import Entities, Observation
from epcx.networks import kernels
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.kernels import XLA, pallas, pallas_embedding, pallas_relations
from epcx.networks.kernels.pallas_attention import Options as AttentionOptions
from epcx.networks.kernels.pallas_attention import attend
from epcx.networks.kernels.pallas_encoder import Options, Tiling
from epcx.networks.layers import EMBEDDING, HIDDEN
from epcx.networks.layers import attend as attend_plain
from epcx.networks.relational import HEADS, RelationalEncoder
from epcx.networks.seat import seats
from tests.networks.helpers import (
    SizedGame,
    compare_with_plain,
    encode,
    encoder_of,
    values_and_gradients,
    view_of,
)

SMALL = Tiling(rows=16, tiles=2, warps=1, programs=1)


def interpreted(precision="float32"):
    options = Options(precision, interpret=True, tiling=SMALL)
    return kernels.pallas_kernels(options, options, AttentionOptions(interpret=True, rows=16))


PALLAS = interpreted()


@pytest.mark.parametrize("slots", [1, 3, 65])
def test_encoder_takes_any_number_of_entities(slots):
    compare_with_plain(PALLAS, {"a": (slots, 4)}, (32,))


@pytest.mark.parametrize("features", [1, 7, 15])
def test_encoder_takes_any_number_of_features_up_to_fifteen(features):
    compare_with_plain(PALLAS, {"a": (5, features)}, (16,))


def test_encoder_takes_several_types_and_rows_that_fill_no_tile():
    compare_with_plain(PALLAS, {"a": (3, 2), "b": (6, 4), "c": (1, 4)}, (3, 7))


@pytest.mark.parametrize("present", [0.0, 0.1])
def test_encoder_takes_empty_sets(present):
    compare_with_plain(PALLAS, {"a": (3, 2), "b": (6, 4)}, (32,), present)


def test_encoder_gives_zeros_for_a_type_without_slots():
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    view = view_of(jax.random.key(1), {"a": (0, 2), "b": (3, 4)}, (16,))
    encoded = jax.jit(encode(PALLAS, view))(encoder)
    assert (encoded[EMBEDDING : 2 * EMBEDDING] == 0).all()
    assert (encoded[2 * EMBEDDING :] != 0).any()


def test_encoder_does_not_overflow_for_large_scores():
    """Two layers of weights six times as large, for both factors of a score, make it thousands."""
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    encoder = jax.tree.map(lambda x: 6 * x, encoder)
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (16,))
    grad = jnp.ones((encoder.width, 16))
    actual = values_and_gradients(encode(PALLAS, view), grad, encoder)
    expected = values_and_gradients(encode(XLA, view), grad, encoder)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3 * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-4), ("bf16", 0.05)])
def test_encoder_is_close_in_lower_precision(precision, tolerance):
    """Interpreted on a CPU, tf32 is float32."""
    types = {"a": (4, 2), "b": (6, 4)}
    compare_with_plain(interpreted(precision), types, (64,), tolerance=tolerance)


def test_encoders_under_vmap_over_matches_and_agents_equal_plain_jax():
    """The agents of a match share observations."""
    types, rows = {"a": (3, 2), "b": (4, 4)}, (2, 8)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    encoders = jax.vmap(jax.vmap(lambda key: encoder_of(key, {"a": 2, "b": 4})))(keys)
    views = jax.vmap(lambda key: view_of(key, types, rows))(jax.random.split(jax.random.key(1), 2))
    grad = jax.random.normal(jax.random.key(2), (48, *rows))

    def gradients(implementation):
        def one(encoder, view):
            return jax.grad(lambda e: (encode(implementation, view)(e) * grad).sum())(encoder)

        return jax.jit(jax.vmap(jax.vmap(one, (0, None))))(encoders, views)

    actual, expected = gradients(PALLAS), gradients(XLA)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("present", [0.6, 0.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_attention_over_groups_equals_plain_jax(groups, present, dtype, tolerance):
    """Values and gradients, with rows that fill no tile; the groups have no agent in common."""
    keys = jax.random.split(jax.random.key(0), 5)
    query = jax.random.normal(keys[0], (16, 37))
    values = jax.random.normal(keys[1], (16, 5, 37)).astype(dtype)
    alive = jax.random.bernoulli(keys[2], present, (5, 37))
    first = jax.random.bernoulli(keys[3], 0.5, (5, 37))
    masks = [alive & first, alive & ~first][:groups]
    grad = jax.random.normal(keys[4], (groups * 16, 37))

    def kernel(query, values):
        options = AttentionOptions(interpret=True, rows=16)
        return jnp.concatenate(attend(options, query, values, masks))

    def plain(query, values):
        values = values.astype(jnp.float32)
        return jnp.concatenate([attend_plain(query, values, values, mask) for mask in masks])

    results = [values_and_gradients(f, grad, query, values) for f in (kernel, plain)]
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=tolerance)


def weights_of(key, parts, actions=5):
    keys = jax.random.split(key, 4)
    shapes = (16, actions), (16,), (16, 16 * parts + 16), (16,)
    pairs = zip(keys, shapes, strict=True)
    return pallas_embedding.Weights(*(0.3 * jax.random.normal(key, shape) for key, shape in pairs))


@pytest.mark.parametrize(
    ("parts", "actions", "rows"), [(1, 5, 16), (3, 1, 32), (4, pallas_embedding.MAX_ACTIONS, 37)]
)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bf16", 0.03)])
def test_embedding_equals_plain_jax(parts, actions, rows, precision, tolerance):
    """Values and gradients, also with numbers of parts and rows that are no powers of two."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = weights_of(keys[0], parts, actions)
    options = Options(precision, True, SMALL)
    encoded = jax.random.normal(keys[1], (16 * parts, rows)).astype(options.dtype)
    taken = jax.nn.softmax(jax.random.normal(keys[2], (actions, rows)), 0)
    grad = jax.random.normal(keys[3], (16, rows)).astype(options.dtype)

    def kernel(weights, encoded):
        return pallas_embedding.embed(options, weights, encoded, taken)

    def plain(weights, encoded):
        acted = jax.nn.relu(weights.first @ taken + weights.first_bias[:, None])
        inputs = jnp.concatenate([encoded.astype(jnp.float32), acted])
        outputs = jax.nn.relu(weights.last @ inputs + weights.last_bias[:, None])
        return outputs.astype(options.dtype)

    results = [values_and_gradients(f, grad, weights, encoded) for f in (kernel, plain)]
    for a, b in zip(*results, strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, np.abs(b).max()))


def relational_encoder_of(key, features):
    return encoder_of(key, features, RelationalEncoder, HIDDEN)


def related(implementation, view):
    return lambda encoder: implementation.encode_relations(HEADS, encoder, view)


def compare_relations(implementation, types, rows, present=0.6):
    """Values and gradients by one implementation, and by plain JAX."""
    encoder = relational_encoder_of(jax.random.key(0), {name: n for name, (_, n) in types.items()})
    view = view_of(jax.random.key(1), types, (rows,), present)
    grad = jax.random.normal(jax.random.key(2), (HIDDEN, rows))
    return [
        values_and_gradients(related(kernel, view), grad, encoder)
        for kernel in (implementation, XLA)
    ]


@pytest.mark.parametrize(
    ("types", "rows"),
    [
        ({"a": (1, 15)}, 5),
        ({"a": (3, 2), "b": (2, 4)}, 300),
        ({"a": (10, 4), "b": (10, 4), "c": (10, 2)}, 7),
        ({"a": (63, 3)}, 3),
        ({"a": (pallas_relations.MAX_TOKENS - 1, 4)}, 2),
    ],
)
def test_relations_equal_plain_jax(types, rows):
    """Several sets share a tile, some programs have several tiles, and the last is not full."""
    for a, b in zip(*compare_relations(PALLAS, types, rows), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1.0, float(jnp.abs(b).max())))


def test_relations_of_an_agent_that_sees_nothing_equal_plain_jax():
    for a, b in zip(*compare_relations(PALLAS, {"a": (3, 2)}, 9, present=0.0), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1.0, float(jnp.abs(b).max())))


def test_relations_of_more_tokens_than_a_tile_holds_are_plain_jax():
    encoder = relational_encoder_of(jax.random.key(0), {"a": 2})
    view = view_of(jax.random.key(1), {"a": (pallas_relations.MAX_TOKENS, 2)}, (2,))
    actual, expected = (related(kernel, view)(encoder) for kernel in (PALLAS, XLA))
    np.testing.assert_array_equal(actual, expected)


def test_relations_are_close_in_lower_precision():
    """Gradients for random cotangents cancel each other in the sum, errors do not."""
    types = {"a": (3, 2), "b": (2, 4)}
    actual, expected = compare_relations(interpreted("bf16"), types, 400)
    values, gradients = (
        [jnp.concatenate([x.reshape(-1) for x in some]) for some in pair]
        for pair in ((actual[:1], expected[:1]), (actual[1:], expected[1:]))
    )
    for (a, b), tolerance in ((values, 0.01), (gradients, 0.12)):
        assert jnp.linalg.norm(a - b) < tolerance * jnp.linalg.norm(b)


def test_relations_under_vmap_over_matches_and_agents_equal_plain_jax():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    types = {"a": (2, 2), "b": (2, 4)}
    make = lambda key: relational_encoder_of(key, {"a": 2, "b": 4})  # noqa: E731
    encoders = jax.vmap(jax.vmap(make))(keys)
    views = jax.vmap(jax.vmap(lambda key: view_of(key, types, (17,))))(keys)

    def gradients(implementation):
        def one(encoder, view):
            return jax.grad(lambda e: (related(implementation, view)(e) ** 2).sum())(encoder)

        return jax.jit(jax.vmap(jax.vmap(one)))(encoders, views)

    for a, b in zip(*(jax.tree.leaves(gradients(x)) for x in (PALLAS, XLA)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(jnp.abs(b).max()))


def test_absent_tokens_do_not_change_the_others():
    encoder = relational_encoder_of(jax.random.key(0), {"a": 2})
    view = view_of(jax.random.key(1), {"a": (6, 2)}, (30,))
    features, mask = view.entities["a"]
    other = Observation(view.own, {"a": Entities(jnp.where(mask, features, 7.0), mask)})
    for kernel in (PALLAS, XLA):
        results = [related(kernel, x)(encoder) for x in (view, other)]
        np.testing.assert_allclose(*results, atol=1e-6)


@pytest.mark.parametrize("name", ["policy", "critic"])
def test_relational_networks_have_the_same_values_with_the_kernels(monkeypatch, name):
    game = games.make("grassland", "3-2")
    architecture = ARCHITECTURES["relational"]
    network = getattr(architecture, name)(jax.random.key(0), game)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 8))
    views = architecture.views(game, worlds)
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (5, 5, 8)), 0)
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(network):
        if name == "policy":
            return (network(jax.tree.map(seat.mine, views)) ** 2).sum()
        context = network.encode(views, actions, game.alive_batch(worlds), seat)
        return network.q_value(context).sum()

    expected = jax.jit(jax.value_and_grad(value))(network)
    monkeypatch.setattr(kernels, "select", lambda *sizes, **_: PALLAS)
    actual = jax.jit(jax.value_and_grad(lambda network: value(network)))(network)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


def test_critic_has_the_same_values_with_the_kernels(monkeypatch):
    """All of it: encoder, embeddings of all agents, and the attention over both groups."""
    game = games.make("grassland", "3-2")
    architecture = ARCHITECTURES["attention"]
    critic = architecture.critic(jax.random.key(0), game)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 8))
    views = architecture.views(game, worlds)
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (5, 5, 8)), 0)
    alive = jax.random.bernoulli(jax.random.key(3), 0.8, (5, 8))
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(critic):
        context = critic.encode(views, actions, alive, seat)
        other = critic.q_value_of(context, actions[:, 0])
        return (critic.q_value(context) + other).sum()

    expected = jax.jit(jax.value_and_grad(value))(critic)
    monkeypatch.setattr(kernels, "select", lambda *sizes, **_: PALLAS)
    actual = jax.jit(jax.value_and_grad(lambda critic: value(critic)))(critic)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_critic_with_too_many_actions_uses_only_the_encoder(monkeypatch):
    """The rest is plain JAX, which then gets bfloat16."""
    game = SizedGame("2-1", actions=pallas_embedding.MAX_ACTIONS + 1)
    implementations = {True: interpreted("bf16"), False: XLA}
    architecture = ARCHITECTURES["attention"]
    critic = architecture.critic(jax.random.key(0), game)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 8))
    views, alive = architecture.views(game, worlds), game.alive_batch(worlds)
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (game.actions, 3, 8)), 0)
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(critic, action):
        context = critic.encode(views, actions, alive, seat)
        return (critic.q_value(context) + critic.q_value_of(context, action)).sum()

    def both():
        return jax.jit(jax.value_and_grad(lambda *x: value(*x), (0, 1)))(critic, actions[:, 0])

    expected = both()
    select = lambda rows, *sizes: implementations[pallas.supports(*sizes)]  # noqa: E731
    monkeypatch.setattr(kernels, "select", lambda *sizes, **_: select(*(*sizes, 1)[:3]))
    actual, expected = (jax.flatten_util.ravel_pytree(x)[0] for x in (both(), expected))
    assert jnp.linalg.norm(actual - expected) < 0.1 * jnp.linalg.norm(expected)


def test_shared_observations_are_not_copied_for_each_agent():
    game = games.make("grassland", "3-2")
    make = lambda key: ARCHITECTURES["attention"].critic(key, game)  # noqa: E731
    critics = jax.vmap(make)(jax.random.split(jax.random.key(0), 5))
    worlds = game.reset_batch(jax.random.split(jax.random.key(0), 64))
    views = ARCHITECTURES["attention"].views(game, worlds)
    encode_all = jax.vmap(lambda critic: encode(PALLAS, views)(critic.encoder))
    program = jax.make_jaxpr(encode_all)(critics)
    (call,) = pallas_calls(program.jaxpr)
    shapes = [x.aval.shape for x in call.invars]
    assert (320, 16) in shapes  # the agents' own features: rows are agents and samples
    assert not any(np.prod(shape) >= 5 * 320 * 16 for shape in shapes)


def pallas_calls(program):
    for equation in program.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from pallas_calls(inner)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_kernels_lower_for_gpus(precision):
    """Triton does not take all of JAX; compiling further needs a GPU."""
    options = Options(precision), Options(precision, tiling=pallas_embedding.TILING)
    implementation = kernels.pallas_kernels(*options, AttentionOptions())
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    view = view_of(jax.random.key(1), {"a": (5, 2), "b": (40, 4)}, (40,))
    masks, actions = [jnp.ones((4, 40), bool)], jnp.ones((5, 40))
    weights = weights_of(jax.random.key(2), parts=3)

    def value(encoder, weights, values):
        encoded = encode(implementation, view)(encoder)
        query = pallas_embedding.embed(options[1], weights, encoded, actions).astype(jnp.float32)
        return attend(AttentionOptions(), query, values, masks)[0].sum()

    grad = jax.jit(jax.grad(value, (0, 1, 2))).trace(encoder, weights, jnp.ones((16, 4, 40)))
    program = grad.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 7


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("slots", [5, pallas_relations.MAX_TOKENS - 1])
def test_relations_lower_for_gpus(precision, slots):
    kernel = kernels.pallas_kernels(Options(precision), Options(precision), AttentionOptions())
    encoder = relational_encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (slots, 4)}, (40,))
    grad = jax.jit(jax.grad(lambda encoder: related(kernel, view)(encoder).sum())).trace(encoder)
    program = grad.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 6
