"""Batches in slices, and agents one after the other: the same results in less memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def split_batch(tree: PyTree, slices: int) -> PyTree:
    """Slices of the batch, which is the last axis, on a new first axis."""
    return jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], slices, x.shape[-1] // slices), -2, 0),
        tree,
    )


def vmap_or_map(
    function: Callable[..., Any], stacks: tuple[PyTree, ...], at_once: int | None
) -> Any:
    """`function` of every row of the stacks: `at_once` in parallel, or all of them."""
    rows = len(jax.tree.leaves(stacks)[0])
    if at_once is None or at_once >= rows:
        return jax.vmap(function)(*stacks)
    return jax.lax.map(
        lambda row: function(*row), stacks, batch_size=at_once if at_once > 1 else None
    )
