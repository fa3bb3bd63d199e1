"""The nearest of many, chosen per world by distance: what a neighbourhood consists of."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from epcx import backends
from epcx.games.game import Entities
from epcx.games.physics import expand

MAX_IN_KERNEL = 32  # chosen ones that a GPU keeps in registers


class Nearest(NamedTuple):
    """The chosen, in the order of their numbers. Where too few were there, the last are absent."""

    number: Int[Array, "observers slots *batch"]
    present: Bool[Array, "observers slots *batch"]

    def take(
        self, values: Shaped[Array, "others features *batch"]
    ) -> Shaped[Array, "observers slots features *batch"]:
        """The values of the chosen; any for the absent."""
        index = self.number[:, :, None]
        return jnp.take_along_axis(values[None], index, 1, mode="promise_in_bounds")


def k_nearest(
    observers: Float[Array, "observers dims *batch"],
    others: Float[Array, "others dims *batch"],
    there: Bool[Array, "others *batch"],
    k: int,
    same: bool = False,
) -> Nearest:
    """The `k` nearest among those that are `there`, for every observer and world.

    At most as many as there are others, or one less if observers and others are the `same`, as
    nobody is a neighbour of itself. Of several at the same distance the first count.
    """
    n, m, batch = len(observers), len(others), there.shape[1:]
    k = min(k, m - same)
    if k <= 0:
        return Nearest(jnp.zeros((n, 0, *batch), jnp.int32), jnp.zeros((n, 0, *batch), bool))
    in_kernel = backends.runs_pallas() and backends.plain_names() is None and k <= MAX_IN_KERNEL
    number = _by_kernel if in_kernel else by_top_k
    chosen = number(observers, others, there, k, same)
    return Nearest(jnp.minimum(chosen, m - 1), chosen < m)


def by_top_k(
    observers: Array, others: Array, there: Array, k: int, same: bool
) -> Int[Array, "observers slots *batch"]:
    """Numbers in ascending order, in plain JAX; that of the absent is how many others there are."""
    parts = (observers[:, None, i] - others[None, :, i] for i in range(others.shape[1]))
    squared = jnp.where(there[None], sum(part * part for part in parts), jnp.inf)
    if same:
        squared = jnp.where(expand(np.eye(len(others), dtype=bool), squared), jnp.inf, squared)
    return _smallest(squared, k)


def _by_kernel(
    observers: Array, others: Array, there: Array, k: int, same: bool
) -> Int[Array, "observers slots *batch"]:
    from epcx.games import nearest_kernel  # Pallas is not imported for nothing

    return nearest_kernel.by_insertion(observers, others, there, k, same)


def ascending(values: Sequence[Array]) -> list[Array]:
    """Sorted elementwise, by exchanges of neighbours: for few values the fastest on any device."""
    values = list(values)
    for first in range(len(values)):
        for i in range(first % 2, len(values) - 1, 2):
            a, b = values[i], values[i + 1]
            values[i], values[i + 1] = jnp.minimum(a, b), jnp.maximum(a, b)
    return values


def keep_nearest(
    entities: Entities, squared: Float[Array, "agents slots *batch"], k: int
) -> Entities:
    """The `k` nearest entities that each agent sees, by their squared distances, in order.

    For games that compute all pairs anyway.
    """
    features, mask = entities
    if k >= mask.shape[1]:
        return entities
    slots = _smallest(jnp.where(mask, squared, jnp.inf), k)
    present = slots < mask.shape[1]
    kept = jnp.take_along_axis(features, jnp.minimum(slots, mask.shape[1] - 1)[:, :, None], 1)
    return Entities(jnp.where(present[:, :, None], kept, 0), present)


def _smallest(
    squared: Float[Array, "observers others *batch"], k: int
) -> Int[Array, "observers slots *batch"]:
    """The numbers of the `k` smallest, in ascending order; for the infinite, how many there are."""
    negative, number = jax.lax.top_k(-squared, k, axis=1)
    found = jnp.where(jnp.isfinite(negative), number, squared.shape[1])
    return jnp.stack(ascending(jnp.unstack(found, axis=1)), 1)
