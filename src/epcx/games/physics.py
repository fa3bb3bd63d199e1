"""Two-dimensional particle physics, shared by the particle games.

Every function works on whole arrays whose leading axes are written in its docstring; any further
axes at the end belong to a batch of worlds. Games therefore index and reduce axes from the front
(`x[:, 0]`, `sum(1)`), never from the back.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

TIME_STEP = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3

Tree = TypeVar("Tree")


def batch_last(function: Callable[..., Tree]) -> Callable[..., Tree]:
    """Lets `jax.vmap` put the batch on the last axis of every array instead of the first.

    Worlds are small and batches are long: with the batch in the innermost loop all arithmetic is
    contiguous, whatever the population. `function` must accept further axes at the end.
    """
    wrapped = jax.custom_batching.custom_vmap(function)

    @wrapped.def_vmap
    def rule(size, batched, *args):  # type: ignore[no-untyped-def]
        def to_last(x: Array, is_batched: bool) -> Array:
            if is_batched:
                return jnp.moveaxis(x, 0, -1)
            return jnp.broadcast_to(x[..., None], (*x.shape, size))

        outputs = wrapped(*jax.tree.map(to_last, args, tuple(batched)))
        return (
            jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), outputs),
            jax.tree.map(lambda _: True, outputs),
        )

    return wrapped


def expand(constant: np.ndarray, like: Array) -> np.ndarray:
    """A constant with the leading axes of `like`, shaped to broadcast over the others."""
    return constant.reshape(*constant.shape, *[1] * (like.ndim - constant.ndim))


def differences(
    a: Float[Array, "n 2 *batch"], b: Float[Array, "m 2 *batch"]
) -> tuple[Float[Array, "n m *batch"], Float[Array, "n m *batch"]]:
    """a_i - b_j, its two components apart (a trailing axis of 2 would ruin vectorisation)."""
    return a[:, None, 0] - b[None, :, 0], a[:, None, 1] - b[None, :, 1]


def squared_distances(
    a: Float[Array, "n 2 *batch"], b: Float[Array, "m 2 *batch"]
) -> Float[Array, "n m *batch"]:
    """|a_i - b_j|^2."""
    dx, dy = differences(a, b)
    return dx * dx + dy * dy


def nearest(squared: Array, mask: Array, axis: int) -> Array:
    """The smallest distance along `axis` where `mask` holds; 0 where it holds nowhere."""
    squared = jnp.where(mask, squared, jnp.inf).min(axis, initial=jnp.inf)
    return jnp.where(squared < jnp.inf, jnp.sqrt(squared), 0.0)


def contact_forces(
    a: Float[Array, "n 2 *batch"],
    b: Float[Array, "m 2 *batch"],
    reach: np.ndarray,
) -> Float[Array, "n 2 *batch"]:
    """The force of all b on each a: soft spheres that touch at distance `reach` [n, m].

    Two bodies at exactly the same place do not push each other, so an entity may meet itself.
    """
    dx, dy = differences(a, b)
    distance = jnp.sqrt(dx * dx + dy * dy)
    depth = (jnp.asarray(expand(reach, distance)) - distance) / CONTACT_MARGIN
    push = CONTACT_FORCE * CONTACT_MARGIN * softplus(depth)
    strength = push / jnp.maximum(distance, 1e-5)
    return jnp.stack([(dx * strength).sum(1), (dy * strength).sum(1)], 1)


# log(1 + t) / t on [0, 1] as a polynomial, to 1e-5. The logarithm was half of the cost of a step.
_LOG1P_OVER_T = (
    np.polynomial.Chebyshev.interpolate(lambda t: np.log1p(t) / t, 5, domain=[0, 1])
    .convert(kind=np.polynomial.Polynomial)
    .coef.astype(np.float32)
)


def softplus(x: Array) -> Array:
    """log(1 + e^x), to an absolute error of 1e-5; exactly 0 far below 0."""
    t = jnp.exp(-jnp.abs(x))
    ratio = jnp.full_like(t, _LOG1P_OVER_T[-1])
    for coefficient in _LOG1P_OVER_T[-2::-1]:
        ratio = ratio * t + coefficient
    return jnp.maximum(x, 0) + t * ratio


def accelerate(
    velocity: Float[Array, "n 2 *batch"],
    force: Float[Array, "n 2 *batch"],
    max_speed: np.ndarray,
) -> Float[Array, "n 2 *batch"]:
    """One time step of unit masses under damping, with speeds clamped to `max_speed` [n]."""
    velocity = (1 - DAMPING) * velocity + TIME_STEP * force
    speed = jnp.sqrt(velocity[:, 0] ** 2 + velocity[:, 1] ** 2)
    excess = jnp.maximum(speed / expand(max_speed, speed), 1.0)
    # Ends with a division: XLA recomputes anything cheaper inside whatever uses the result.
    return velocity / excess[:, None]


def count(mask: Bool[Array, "..."], axis: int) -> Float[Array, "..."]:
    """How many are true along `axis`, as float32."""
    return mask.sum(axis, dtype=jnp.float32)
