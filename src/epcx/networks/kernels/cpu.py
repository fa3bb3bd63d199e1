"""The implementation in C++ for CPUs: kernels in cpu.cc, called through XLA's FFI.

    layers    two of them: (weight, bias, weight, bias)
    query     [size, rows]
    features  [features, slots, rows], mask [slots, rows]
    encoded   [width, rows], actions [actions, rows]

Results are those of plain JAX up to rounding, but hidden units of pairs of row and entity never
reach memory, and everything else does so only once. Observations get no gradient.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.games import Observation
from epcx.networks.kernels import cpp_build
from epcx.networks.layers import (
    EMBEDDING,
    EPSILON,
    HIDDEN,
    LOWEST,
    MLP,
    Linear,
    flatten_rows,
    take_rows,
    weights_and_biases,
)

SOURCE = Path(__file__).with_suffix(".cc")
CONSTANTS = {
    "EPCX_HIDDEN": HIDDEN,
    "EPCX_SIZE": EMBEDDING,
    "EPCX_EPSILON": f"{EPSILON}f",
    "EPCX_LOWEST": f"{LOWEST}f",
}
KERNELS = ("entity_attention", "mlp", "embed")
MAX_FEATURES = 8
MIN_ROWS = 8  # fewer are not worth a call: half of the widest vector
SAVED = 3  # numbers per row for the backward pass of attention

Arrays = tuple[Array, ...]


def supports(rows: int, features: Sequence[int]) -> bool:
    """Whether the kernels take these numbers of features, and pay off; actions may be many."""
    return rows >= MIN_ROWS and max(features) <= MAX_FEATURES


def usable() -> bool:
    """Whether the kernels run on this machine; compiles them if they never were."""
    return _wanted() and cpp_build.compiler() is not None and _registered()


def compiler_version() -> str | None:
    """The compiler of the kernels, if they are used here; compiles nothing."""
    failed = _registered.cache_info().currsize and not _registered()
    return cpp_build.version() if _wanted() and not failed else None


def _wanted() -> bool:
    return jax.default_backend() == "cpu" and jnp.result_type(float) == jnp.float32


@functools.cache
def _registered() -> bool:
    """Compiles the kernels and registers them with XLA."""
    library = cpp_build.load(SOURCE, CONSTANTS)
    if library is None:
        return False
    for kernel in KERNELS:
        for name in (f"epcx_{kernel}_forward", f"epcx_{kernel}_backward"):
            function = jax.ffi.pycapsule(getattr(library, name))
            jax.ffi.register_ffi_target(name, function, platform="cpu")
    return True


def encode(
    own: MLP,
    entities: Mapping[str, MLP],
    view: Observation,
    index: Int[Array, "rows"] | None = None,
) -> Float[Array, "width rows"]:
    """The own embedding and one type embedding per entity type, sorted by name."""
    mine, seen = view.own, view.entities
    if index is not None:
        mine, seen = take_rows((mine, seen), index)
    query = mlp(weights_and_biases(*own.layers), mine)
    parts = [query]
    for name in sorted(entities):
        layers = weights_and_biases(*entities[name].layers)
        parts.append(jax.nn.relu(entity_attention(layers, query, *seen[name])))
    return jnp.concatenate(parts)


def embed(
    action: Linear,
    combine: Linear,
    encoded: Float[Array, "width *rows"],
    actions: Float[Array, "actions *rows"],
) -> Float[Array, "size *rows"]:
    """f(o, a) of encoded observations and actions."""
    rows = encoded.shape[1:]
    flat = flatten_rows((encoded, actions), len(rows))
    return _embed(weights_and_biases(action, combine), *flat).reshape(EMBEDDING, *rows)


def _check(layers: Arrays, features: Array) -> None:
    """The kernels trust these sizes."""
    assert layers[2].shape == (EMBEDDING, HIDDEN)
    assert len(features) <= MAX_FEATURES


def _call(
    name: str, results: Sequence[Array | jax.ShapeDtypeStruct], *arguments: Array
) -> Sequence[Array]:
    """Calls a kernel whose results have the shapes of `results`."""
    shapes = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in results]
    return jax.ffi.ffi_call(f"epcx_{name}", shapes, vmap_method="broadcast_all")(*arguments)


@jax.custom_vjp
def entity_attention(
    layers: Arrays,
    query: Float[Array, "size rows"],
    features: Float[Array, "features slots rows"],
    mask: Bool[Array, "slots rows"],
) -> Float[Array, "size rows"]:
    """Two layers for every entity, the attention of `query` where `mask` holds, and LayerNorm."""
    return _entity_attention_forward(layers, query, features, mask)[0]


def _entity_attention_forward(
    layers: Arrays, query: Array, features: Array, mask: Array
) -> tuple[Array, tuple[Arrays, Array, Array]]:
    _check(layers, features)
    inputs = *layers, query, features, mask
    results = query, jax.ShapeDtypeStruct((SAVED, query.shape[1]), jnp.float32)
    normal, saved = _call("entity_attention_forward", results, *inputs)
    return normal, (inputs, normal, saved)


def _entity_attention_backward(
    residuals: tuple[Arrays, Array, Array], grad: Array
) -> tuple[Arrays, Array, None, None]:
    inputs, normal, saved = residuals
    arguments = *inputs, normal, saved, grad
    *grad_layers, grad_query = _call("entity_attention_backward", inputs[:5], *arguments)
    return tuple(grad_layers), grad_query, None, None


entity_attention.defvjp(_entity_attention_forward, _entity_attention_backward)


@jax.custom_vjp
def mlp(layers: Arrays, features: Float[Array, "features rows"]) -> Float[Array, "size rows"]:
    """Two layers with ReLU after each."""
    return _mlp_forward(layers, features)[0]


def _mlp_forward(layers: Arrays, features: Array) -> tuple[Array, tuple[Arrays, Array, Array]]:
    _check(layers, features)
    shape = jax.ShapeDtypeStruct((EMBEDDING, features.shape[1]), jnp.float32)
    (embedded,) = _call("mlp_forward", [shape], *layers, features)
    return embedded, (layers, features, embedded)


def _mlp_backward(residuals: tuple[Arrays, Array, Array], grad: Array) -> tuple[Arrays, None]:
    layers, features, embedded = residuals
    return tuple(_call("mlp_backward", layers, *layers, features, embedded, grad)), None


mlp.defvjp(_mlp_forward, _mlp_backward)


@jax.custom_vjp
def _embed(layers: Arrays, encoded: Array, actions: Array) -> Array:
    """A layer for the actions, and one for the encoded observation and that; ReLU after each."""
    return _embed_forward(layers, encoded, actions)[0]


def _embed_forward(layers: Arrays, encoded: Array, actions: Array) -> tuple[Array, Arrays]:
    assert layers[2].shape == (EMBEDDING, len(encoded) + EMBEDDING)
    assert len(encoded) % EMBEDDING == 0
    shape = jax.ShapeDtypeStruct((EMBEDDING, encoded.shape[1]), jnp.float32)
    (embedded,) = _call("embed_forward", [shape], *layers, encoded, actions)
    return embedded, (*layers, encoded, actions, embedded)


def _embed_backward(residuals: Arrays, grad: Array) -> tuple[Arrays, Array, Array]:
    *grad_layers, grad_encoded, grad_actions = _call(
        "embed_backward", residuals[:6], *residuals, grad
    )
    return tuple(grad_layers), grad_encoded, grad_actions


_embed.defvjp(_embed_forward, _embed_backward)
