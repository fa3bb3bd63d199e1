"""The kernel for GPUs, interpreted on the CPU, against the plain network it stands for."""

from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.agents import attention as networks
from epcx.agents import kernels, layers
from epcx.agents.agent import ARCHITECTURES
from epcx.agents.attention import OWN_FEATURES, ObservationEncoder
from epcx.agents.kernels import attention, embedding, encoder
from epcx.agents.kernels.attention import Options as AttentionOptions
from epcx.agents.kernels.encoder import Options, Tiling
from epcx.agents.layers import EMBEDDING, HIDDEN, MLP, attend
from epcx.agents.seat import seats
from epcx.games import Entities, Observation

SMALL = Tiling(rows=16, tiles=2, warps=1, programs=1)
EXACT = Options(precision="float32", interpret=True, tiling=SMALL)


def encoder_of(key, widths):
    """An encoder for entity types with these numbers of features; its biases are not zero."""
    game = games.make("grassland", "1-1")
    encoder = ObservationEncoder(key, game)
    keys = dict(zip(widths, jax.random.split(key, len(widths)), strict=True))
    entities = {name: MLP(keys[name], n, HIDDEN, EMBEDDING) for name, n in widths.items()}
    encoder = eqx.tree_at(lambda encoder: encoder.entities, encoder, entities)
    noise = lambda x: x + 0.1 * jax.random.normal(key, x.shape)  # noqa: E731
    return jax.tree.map(noise, encoder)


def view_of(key, sets, rows, present=0.7):
    """Random observations: `sets` has the slots and features of every type."""
    first, *rest = jax.random.split(key, 1 + len(sets))

    def entities(key, slots, features):
        one, two = jax.random.split(key)
        mask = jax.random.bernoulli(two, present, (slots, *rows))
        return Entities(jax.random.normal(one, (features, slots, *rows)), mask)

    own = jax.random.normal(first, (OWN_FEATURES, *rows))
    named = zip(rest, sets.items(), strict=True)
    return Observation(own, {name: entities(key, *size) for key, (name, size) in named})


def values_and_gradients(how, slope, *arguments):
    @jax.jit
    def both(*arguments):
        values, back = jax.vjp(how, *arguments)
        return values, back(slope.astype(values.dtype))

    return jax.tree.leaves(both(*arguments))


def plain(view):
    return lambda encoder: encoder.attending(view)[0]


def fused(view, options=EXACT):
    return lambda encoder: encoder.fused(view, options)


def check_equal(sets, rows, present=0.7, options=EXACT, tolerance=1e-4):
    compare(partial(fused, options=options), sets, rows, present, tolerance=tolerance)


def compare(how, sets, rows, present=0.7, scale=1.0, tolerance=1e-4):
    """What an encoder makes of random observations with the plain network."""
    encoder = encoder_of(jax.random.key(0), {name: n for name, (_, n) in sets.items()})
    encoder = jax.tree.map(lambda x: x * scale, encoder)
    view = view_of(jax.random.key(1), sets, rows, present)
    slope = jax.random.normal(jax.random.key(2), (encoder.width, *rows))
    truth = values_and_gradients(plain(view), slope, encoder)
    ours = values_and_gradients(how(view), slope, encoder)
    assert all(np.isfinite(x).all() for x in ours)
    for a, b in zip(ours, truth, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize("slots", [1, 3, 65])
def test_any_number_of_entities(slots):
    check_equal({"some": (slots, 4)}, (32,))


@pytest.mark.parametrize("features", [1, 7, 15])
def test_any_number_of_features_up_to_fifteen(features):
    check_equal({"some": (5, features)}, (16,))


def test_several_types_and_rows_that_fill_no_tile():
    check_equal({"a": (3, 2), "b": (6, 4), "c": (1, 4)}, (3, 7))


@pytest.mark.parametrize("present", [0.0, 0.1])
def test_empty_sets(present):
    check_equal({"a": (3, 2), "b": (6, 4)}, (32,), present)


def test_types_of_which_there_is_none():
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    sets = {"a": (0, 2), "b": (3, 4)}
    view = view_of(jax.random.key(1), sets, (16,))
    encoded = jax.jit(fused(view))(encoder)
    assert (encoded[EMBEDDING : 2 * EMBEDDING] == 0).all()
    assert (encoded[2 * EMBEDDING :] != 0).any()


def test_scores_that_exponentials_cannot_hold():
    """Two layers of weights six times as large, on both sides of a score, make it thousands."""
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    encoder = jax.tree.map(lambda x: 6 * x, encoder)
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (16,))
    slope = jnp.ones((encoder.width, 16))
    ours = values_and_gradients(fused(view), slope, encoder)
    truth = values_and_gradients(plain(view), slope, encoder)
    for a, b in zip(ours, truth, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3 * float(jnp.abs(b).max()))


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-4), ("bf16", 0.05)])
def test_other_precisions_are_near(precision, tolerance):
    """Interpreted on a CPU, tf32 is float32."""
    check_equal(
        {"a": (4, 2), "b": (6, 4)},
        (64,),
        options=Options(precision, True, SMALL),
        tolerance=tolerance,
    )


def test_many_agents_of_many_matches_share_what_they_see():
    """Under vmap over matches and agents; the agents of a match see the same."""
    sets, rows = {"a": (3, 2), "b": (4, 4)}, (2, 8)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    encoders = jax.vmap(jax.vmap(lambda key: encoder_of(key, {"a": 2, "b": 4})))(keys)
    views = jax.vmap(lambda key: view_of(key, sets, rows))(jax.random.split(jax.random.key(1), 2))
    slope = jax.random.normal(jax.random.key(2), (48, *rows))

    def gradients(how):
        def one(encoder, view):
            return jax.grad(lambda encoder: (how(view)(encoder) * slope).sum())(encoder)

        return jax.jit(jax.vmap(jax.vmap(one, (0, None))))(encoders, views)

    ours, truth = gradients(fused), gradients(plain)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("present", [0.6, 0.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_attention_over_groups_of_agents(groups, present, dtype, tolerance):
    """Values and gradients, with rows that fill no tile; the groups have nobody in common."""
    keys = jax.random.split(jax.random.key(0), 5)
    query = jax.random.normal(keys[0], (16, 37))
    values = jax.random.normal(keys[1], (16, 5, 37)).astype(dtype)
    there = jax.random.bernoulli(keys[2], present, (5, 37))
    first = jax.random.bernoulli(keys[3], 0.5, (5, 37))
    masks = [there & first, there & ~first][:groups]
    slope = jax.random.normal(keys[4], (groups * 16, 37))
    options = attention.Options(interpret=True, rows=16)

    def ours(query, values):
        return jnp.concatenate(attention.attend(options, query, values, masks))

    def plain(query, values):
        values = values.astype(jnp.float32)
        return jnp.concatenate([attend(query, values, values, mask)[0] for mask in masks])

    results = [values_and_gradients(how, slope, query, values) for how in (ours, plain)]
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=tolerance)


def weights_of(key, parts):
    keys = jax.random.split(key, 4)
    shapes = (16, 5), (16,), (16, 16 * parts + 16), (16,)
    pairs = zip(keys, shapes, strict=True)
    return embedding.Weights(*(0.3 * jax.random.normal(key, shape) for key, shape in pairs))


@pytest.mark.parametrize(("parts", "rows"), [(1, 16), (3, 32), (4, 37)])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bf16", 0.03)])
def test_embeddings_of_what_is_seen_and_done(parts, rows, precision, tolerance):
    """Values and gradients, with numbers of parts and rows that are no powers of two, too."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = weights_of(keys[0], parts)
    options = Options(precision, True, SMALL)
    encoded = jax.random.normal(keys[1], (16 * parts, rows)).astype(options.dtype)
    actions = jax.nn.softmax(jax.random.normal(keys[2], (5, rows)), 0)
    slope = jax.random.normal(keys[3], (16, rows)).astype(options.dtype)

    def ours(weights, encoded):
        return embedding.embed(options, weights, encoded, actions)

    def plain(weights, encoded):
        acted = jax.nn.relu(weights.first @ actions + weights.first_bias[:, None])
        below = jnp.concatenate([encoded.astype(jnp.float32), acted])
        above = jax.nn.relu(weights.last @ below + weights.last_bias[:, None])
        return above.astype(options.dtype)

    results = [values_and_gradients(how, slope, weights, encoded) for how in (ours, plain)]
    for a, b in zip(*results, strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, np.abs(b).max()))


def test_a_critic_judges_on_a_gpu_as_on_a_cpu(monkeypatch):
    """All of it: what it sees, everybody's embedding, and the attention over both groups."""
    game = games.make("grassland", "3-2")
    architecture = ARCHITECTURES["attention"]
    critic = architecture.critic(jax.random.key(0), game)
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(1), 8))
    views = architecture.observe(game, worlds)
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (5, 5, 8)), 0)
    alive = jax.random.bernoulli(jax.random.key(3), 0.8, (5, 8))
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(critic):
        context = critic.context(views, actions, alive, seat)
        other = critic.reconsider(context, actions[:, 0])
        return (critic.judge(context) + other).sum()

    expected = jax.jit(jax.value_and_grad(value))(critic)
    for module in (layers, networks):
        monkeypatch.setattr(module, "on_gpu", lambda: True)
    monkeypatch.setattr(encoder, "Options", lambda precision, tiling=SMALL: EXACT)
    monkeypatch.setattr(attention, "Options", lambda: attention_exactly)
    attention_exactly = AttentionOptions(interpret=True, rows=16)
    ours = jax.jit(jax.value_and_grad(lambda critic: value(critic)))(critic)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_what_agents_share_is_not_copied_for_each_of_them():
    game = games.make("grassland", "3-2")
    make = lambda key: ARCHITECTURES["attention"].critic(key, game)  # noqa: E731
    critics = jax.vmap(make)(jax.random.split(jax.random.key(0), 5))
    world = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(0), 64))
    views = ARCHITECTURES["attention"].observe(game, world)
    many = jax.vmap(lambda critic: critic.encoder.fused(views, EXACT))
    program = jax.make_jaxpr(many)(critics)
    (call,) = calls(program.jaxpr)
    sizes = [x.aval.shape for x in call.invars]
    assert (320, 16) in sizes  # what the agents see of themselves: rows are agents and samples
    assert not any(np.prod(size) >= 5 * 320 * 16 for size in sizes)


def calls(program):
    """The kernels that a program calls."""
    for equation in program.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from calls(inner)


@pytest.mark.parametrize(
    ("backend", "capability", "usable"),
    [("cpu", None, False), ("gpu", "9.0", True), ("gpu", "7.5", False), ("gpu", "gfx90a", False)],
)
def test_kernels_are_for_gpus_that_have_what_they_need(monkeypatch, backend, capability, usable):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert kernels.on_gpu() == usable


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_the_kernels_are_what_the_compiler_for_gpus_takes(precision):
    """Not all of JAX is; what it makes of them needs a GPU."""
    sets = {"a": (5, 2), "b": (40, 4)}
    encoder = encoder_of(jax.random.key(0), {"a": 2, "b": 4})
    view = view_of(jax.random.key(1), sets, (40,))
    masks, actions = [jnp.ones((4, 40), bool)], jnp.ones((5, 40))
    weights = weights_of(jax.random.key(2), parts=3)

    def value(encoder, weights, values):
        encoded = encoder.fused(view, Options(precision))
        options = Options(precision, tiling=embedding.TILING)
        query = embedding.embed(options, weights, encoded, actions).astype(jnp.float32)
        mixed = attention.attend(attention.Options(), query, values, masks)
        return mixed[0].sum()

    slope = jax.jit(jax.grad(value, (0, 1, 2))).trace(encoder, weights, jnp.ones((16, 4, 40)))
    program = slope.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 7
