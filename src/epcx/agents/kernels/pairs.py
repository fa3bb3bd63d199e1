"""What an agent makes of the entities of one type, as a program for CPUs: pairs.cc.

    mlp       (weight, bias, weight, bias)
    query     [size, rows]
    features  [features, slots, rows], mask [slots, rows]

It is the same as two layers for every entity, the agent's attention over them and LayerNorm, but
what belongs to a pair of row and entity never reaches memory.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epcx.agents.kernels import native
from epcx.agents.layers import EPSILON, LOWEST

SOURCE = Path(__file__).with_suffix(".cc")
MOST_FEATURES = 8
KEPT = 3  # numbers of a row that the way back needs
DIRECTIONS = ("forwards", "backwards")

MLP = tuple[Array, Array, Array, Array]


def usable(hidden: int, size: int) -> bool:
    """Whether networks of this size can have the program, here and now."""
    wanted = jax.default_backend() == "cpu" and jnp.result_type(float) == jnp.float32
    return wanted and native.compiler() is not None and _registered(hidden, size)


@functools.cache
def _registered(hidden: int, size: int) -> bool:
    """Compiles the program for networks of this size, and makes it known to XLA."""
    constants = {
        "EPCX_HIDDEN": hidden,
        "EPCX_SIZE": size,
        "EPCX_EPSILON": f"{EPSILON}f",
        "EPCX_LOWEST": f"{LOWEST}f",
    }
    library = native.load(SOURCE, constants)
    if library is None:
        return False
    for direction in DIRECTIONS:
        function = jax.ffi.pycapsule(getattr(library, f"pairs_{direction}"))
        jax.ffi.register_ffi_target(_name(direction, hidden, size), function, platform="cpu")
    return True


def _name(direction: str, hidden: int, size: int) -> str:
    return f"epcx_pairs_{direction}_{hidden}_{size}"


@jax.custom_vjp
def attend(
    mlp: MLP,
    query: Float[Array, "size rows"],
    features: Float[Array, "features slots rows"],
    mask: Bool[Array, "slots rows"],
) -> Float[Array, "size rows"]:
    """No gradient goes to the features."""
    return _forwards(mlp, query, features, mask)[0]


def _forwards(mlp: MLP, query: Array, features: Array, mask: Array) -> tuple[Array, Any]:
    given = *mlp, query, features, mask
    results = like(query), jax.ShapeDtypeStruct((KEPT, query.shape[1]), jnp.float32)
    normal, kept = _call("forwards", mlp, results)(*given)
    return normal, (given, normal, kept)


def _backwards(saved: Any, slope: Array) -> tuple[MLP, Array, None, None]:
    given, normal, kept = saved
    *mlp, query, _, _ = given
    results = [like(x) for x in (*mlp, query)]
    *to_mlp, to_query = _call("backwards", mlp, results)(*given, normal, kept, slope)
    return tuple(to_mlp), to_query, None, None


attend.defvjp(_forwards, _backwards)


def like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _call(direction: str, mlp: Any, results: Any) -> Any:
    size, hidden = mlp[2].shape
    name = _name(direction, hidden, size)
    return jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")
