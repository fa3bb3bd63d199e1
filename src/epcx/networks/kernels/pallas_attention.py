"""A critic's attention over groups of agents as one Pallas kernel for GPUs, forward and backward.

One pass over the values serves all groups, which have no agent in common; the backward pass is
another. XLA would read the values, the largest array of a critic, for every sum anew.

    query [size, rows]    values [size, slots, rows]    groups: masks [slots, rows]
    mixed [groups x size, rows]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, PyTree

from epcx.networks.kernels.pallas_encoder import Tree, scale_of
from epcx.networks.layers import LOWEST


@dataclass(frozen=True)
class Options:
    interpret: bool = False
    rows: int = 64  # of a program
    warps: int = 1

    def call(self, kernel: Callable[..., None], rows: int, out_shape: PyTree) -> Callable[..., Any]:
        return pl.pallas_call(
            partial(kernel, self.rows),
            grid=(rows // self.rows,),
            out_shape=out_shape,
            compiler_params=plt.CompilerParams(num_warps=self.warps, num_stages=2),
            interpret=self.interpret,
            name=kernel.__name__.strip("_"),
        )


def attend(
    options: Options,
    query: Float[Array, "size rows"],
    values: Float[Array, "size slots rows"],
    groups: Sequence[Bool[Array, "slots rows"]],
) -> list[Float[Array, "size rows"]]:
    """`layers.attend` over each group, with the values as keys."""
    size, rows = query.shape
    padding = -rows % options.rows  # fills the last tile, with agents of no group
    members = jnp.zeros(values.shape[1:], jnp.int32)  # 0: in no group
    for i, mask in enumerate(groups):
        members = jnp.where(mask, i + 1, members)
    padded = [
        jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, padding),)) for x in (query, values, members)
    ]
    mixed = _attend(options, len(groups), *padded)[:, :rows]
    return [mixed[i * size : (i + 1) * size] for i in range(len(groups))]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(options: Options, groups: int, query: Array, values: Array, members: Array) -> Array:
    return _forward(options, groups, query, values, members)[0]


def _forward(
    options: Options, groups: int, query: Array, values: Array, members: Array
) -> tuple[Array, PyTree]:
    size, rows = query.shape
    shapes = [jax.ShapeDtypeStruct((n, rows), jnp.float32) for n in (groups * size, groups)]
    mixed, totals = options.call(_attention_forward, rows, shapes)(query, values, members)
    return mixed, (query, values, members, mixed, totals)


def _backward(
    options: Options, groups: int, saved: PyTree, grad: Array
) -> tuple[Array, Array, None]:
    query, values, *_ = saved
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, values)]
    call = options.call(_attention_backward, query.shape[1], shapes)
    grad_query, grad_values = call(*saved, grad)
    return grad_query, grad_values, None


_attend.defvjp(_forward, _backward)


def _attention_forward(
    block: int, query: Tree, values: Tree, members: Tree, mixed: Tree, totals: Tree
) -> None:
    rows = pl.ds(pl.program_id(0) * block, block)
    (size, slots, _), groups = values.shape, totals.shape[0]
    scaled = query[:, rows] * scale_of(size)

    def step(j: Array, carry: Tree) -> Tree:
        value, member = values[:, j, rows].astype(jnp.float32), members[j, rows]
        score = (value * scaled).sum(0)
        after = []
        for i, (highest, total, sums) in enumerate(carry):
            here = member == i + 1
            above = jnp.maximum(highest, jnp.where(here, score, LOWEST))
            shrink = jnp.exp2(highest - above)
            weight = jnp.where(here, jnp.exp2(score - above), 0.0)
            after.append((above, total * shrink + weight, sums * shrink[None] + weight * value))
        return after

    start = jnp.full(block, LOWEST), jnp.zeros(block), jnp.zeros((size, block))
    results = jax.lax.fori_loop(0, slots, step, [start] * groups)
    for i, (highest, total, sums) in enumerate(results):
        total = jnp.maximum(total, 1e-30)
        mixed[pl.ds(i * size, size), rows] = sums / total[None]
        totals[i, rows] = highest + jnp.log2(total)


def _attention_backward(
    block: int,
    query: Tree,
    values: Tree,
    members: Tree,
    mixed: Tree,
    totals: Tree,
    grad: Tree,
    grad_query: Tree,
    grad_values: Tree,
) -> None:
    rows = pl.ds(pl.program_id(0) * block, block)
    (size, slots, _), groups = values.shape, totals.shape[0]
    scale = size**-0.5
    unscaled = query[:, rows]
    scaled = unscaled * scale_of(size)
    parts = [pl.ds(i * size, size) for i in range(groups)]
    grads = [grad[part, rows] for part in parts]
    averages = [(g * mixed[part, rows]).sum(0) for g, part in zip(grads, parts, strict=True)]
    logs = [totals[i, rows] for i in range(groups)]

    def step(j: Array, grad_query: Array) -> Array:
        value, member = values[:, j, rows].astype(jnp.float32), members[j, rows]
        score = (value * scaled).sum(0)
        grad_score, grad_value = jnp.zeros(block), jnp.zeros((size, block))
        for i in range(groups):
            # Huge scores may round differently here; weights must not exceed one.
            power = jnp.minimum(score - logs[i], 0.0)
            weight = jnp.where(member == i + 1, jnp.exp2(power), 0.0)
            grad_score = grad_score + weight * ((grads[i] * value).sum(0) - averages[i]) * scale
            grad_value = grad_value + weight[None] * grads[i]
        grad_value = grad_value + grad_score[None] * unscaled
        grad_values[:, j, rows] = grad_value.astype(grad_values.dtype)
        return grad_query + grad_score[None] * value

    grad_query[:, rows] = jax.lax.fori_loop(0, slots, step, jnp.zeros((size, block)))
