"""The parts of critics and policies in which a CPU spends its time, as programs in C++: cpu.cc.

    layers    two of them: (weight, bias, weight, bias)
    query     [size, rows]
    features  [features, slots, rows], mask [slots, rows]
    encoded   [parts x size, rows], actions [5, rows]

Each is the same as plain JAX, but what belongs to a pair of row and entity never reaches memory,
and the rest does so only once. No gradient goes to what agents see.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epcx.agents.kernels import native
from epcx.agents.layers import EMBEDDING, EPSILON, HIDDEN, LOWEST

SOURCE = Path(__file__).with_suffix(".cc")
CONSTANTS = {
    "EPCX_HIDDEN": HIDDEN,
    "EPCX_SIZE": EMBEDDING,
    "EPCX_EPSILON": f"{EPSILON}f",
    "EPCX_LOWEST": f"{LOWEST}f",
}
PARTS = ("attend", "embed", "combine")
MOST_FEATURES = 8
FEWEST_ROWS = 8  # that are worth a call: half of the widest vector
KEPT = 3  # numbers of a row that the way back of attention needs

Layers = tuple[Array, Array, Array, Array]


def usable() -> bool:
    """Whether networks can have the programs, here and now."""
    wanted = jax.default_backend() == "cpu" and jnp.result_type(float) == jnp.float32
    return wanted and native.compiler() is not None and _registered()


@functools.cache
def _registered() -> bool:
    """Compiles the programs, and makes them known to XLA."""
    library = native.load(SOURCE, CONSTANTS)
    if library is None:
        return False
    for part in PARTS:
        for name in (f"epcx_{part}_forwards", f"epcx_{part}_backwards"):
            function = jax.ffi.pycapsule(getattr(library, name))
            jax.ffi.register_ffi_target(name, function, platform="cpu")
    return True


def made_by() -> str | None:
    """The compiler of the programs, if they are usable."""
    found = native.compiler()
    return native.version(found) if found and usable() else None


def _check(layers: Layers, features: Array) -> None:
    """The programs trust these sizes."""
    assert layers[2].shape == (EMBEDDING, HIDDEN)
    assert len(features) <= MOST_FEATURES


def _call(name: str, results: Sequence[Any], *arguments: Array) -> Any:
    """Of the program with this name; `results` are like what comes out."""
    shapes = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in results]
    return jax.ffi.ffi_call(f"epcx_{name}", shapes, vmap_method="broadcast_all")(*arguments)


@jax.custom_vjp
def attend(
    layers: Layers,
    query: Float[Array, "size rows"],
    features: Float[Array, "features slots rows"],
    mask: Bool[Array, "slots rows"],
) -> Float[Array, "size rows"]:
    """Two layers for every entity, the attention of `query` over those there, and LayerNorm."""
    return _attend_forwards(layers, query, features, mask)[0]


def _attend_forwards(layers: Layers, query: Array, features: Array, mask: Array) -> Any:
    _check(layers, features)
    given = *layers, query, features, mask
    results = query, jax.ShapeDtypeStruct((KEPT, query.shape[1]), jnp.float32)
    normal, kept = _call("attend_forwards", results, *given)
    return normal, (given, normal, kept)


def _attend_backwards(saved: Any, slope: Array) -> tuple[Layers, Array, None, None]:
    given, normal, kept = saved
    *to_layers, to_query = _call("attend_backwards", given[:5], *given, normal, kept, slope)
    return tuple(to_layers), to_query, None, None


attend.defvjp(_attend_forwards, _attend_backwards)


@jax.custom_vjp
def embed(layers: Layers, features: Float[Array, "features rows"]) -> Float[Array, "size rows"]:
    """Two layers with ReLU after each."""
    return _embed_forwards(layers, features)[0]


def _embed_forwards(layers: Layers, features: Array) -> Any:
    _check(layers, features)
    like = jax.ShapeDtypeStruct((EMBEDDING, features.shape[1]), jnp.float32)
    (embedded,) = _call("embed_forwards", [like], *layers, features)
    return embedded, (layers, features, embedded)


def _embed_backwards(saved: Any, slope: Array) -> tuple[Layers, None]:
    layers, features, embedded = saved
    gradient = _call("embed_backwards", layers, *layers, features, embedded, slope)
    return tuple(gradient), None


embed.defvjp(_embed_forwards, _embed_backwards)


@jax.custom_vjp
def combine(
    layers: Layers, encoded: Float[Array, "width rows"], actions: Float[Array, "5 rows"]
) -> Float[Array, "size rows"]:
    """A layer for the actions, and one for what is encoded and for them; ReLU after each."""
    return _combine_forwards(layers, encoded, actions)[0]


def _combine_forwards(layers: Layers, encoded: Array, actions: Array) -> Any:
    assert layers[2].shape == (EMBEDDING, len(encoded) + EMBEDDING)
    assert len(encoded) % EMBEDDING == 0
    like = jax.ShapeDtypeStruct((EMBEDDING, encoded.shape[1]), jnp.float32)
    (combined,) = _call("combine_forwards", [like], *layers, encoded, actions)
    return combined, (*layers, encoded, actions, combined)


def _combine_backwards(saved: Any, slope: Array) -> tuple[Layers, Array, Array]:
    *to_layers, to_encoded, to_actions = _call("combine_backwards", saved[:6], *saved, slope)
    return tuple(to_layers), to_encoded, to_actions


combine.defvjp(_combine_forwards, _combine_backwards)
