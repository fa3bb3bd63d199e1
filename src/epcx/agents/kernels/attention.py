"""A critic's attention over groups of agents as one kernel for GPUs: forwards, and backwards.

One pass over the values serves all groups, which have no agent in common; the way back is another.
XLA would read the values, the largest thing that a critic makes, for every sum anew.

    query [size, rows]    values [size, slots, rows]    groups: masks [slots, rows]
    mixed [groups x size, rows]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float

from epcx.agents.kernels.encoder import scale_of
from epcx.agents.layers import LOWEST


@dataclass(frozen=True)
class Options:
    interpret: bool = False
    rows: int = 64  # of a program
    warps: int = 1

    def call(self, kernel: Any, number: int, out_shape: list[Any]) -> Any:
        return pl.pallas_call(
            partial(kernel, self.rows),
            grid=(number // self.rows,),
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
    """What `layers.attend` mixes for each group, with the values as keys."""
    size, number = query.shape
    more = -number % options.rows  # to fill the last tile; nobody is there
    members = jnp.zeros(values.shape[1:], jnp.int32)  # 0: of no group
    for i, mask in enumerate(groups):
        members = jnp.where(mask, i + 1, members)
    widened = [
        jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, more),)) for x in (query, values, members)
    ]
    mixed = _mix(options, len(groups), *widened)[:, :number]
    return [mixed[i * size : (i + 1) * size] for i in range(len(groups))]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mix(options: Options, groups: int, query: Array, values: Array, members: Array) -> Array:
    return _forwards(options, groups, query, values, members)[0]


def _forwards(
    options: Options, groups: int, query: Array, values: Array, members: Array
) -> tuple[Array, Any]:
    size, rows = query.shape
    shapes = [jax.ShapeDtypeStruct((n, rows), jnp.float32) for n in (groups * size, groups)]
    mixed, totals = options.call(_attention_forwards, rows, shapes)(query, values, members)
    return mixed, (query, values, members, mixed, totals)


def _backwards(
    options: Options, groups: int, saved: Any, slope: Array
) -> tuple[Array, Array, None]:
    query, values, *_ = saved
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, values)]
    to_query, to_values = options.call(_attention_backwards, query.shape[1], shapes)(*saved, slope)
    return to_query, to_values, None


_mix.defvjp(_forwards, _backwards)


def _attention_forwards(
    number: int, query: Any, values: Any, members: Any, mixed: Any, totals: Any
) -> None:
    rows = pl.ds(pl.program_id(0) * number, number)
    (size, slots, _), groups = values.shape, totals.shape[0]
    scaled = query[:, rows] * scale_of(size)

    def one(j: Array, carry: Any) -> Any:
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

    nothing = jnp.full(number, LOWEST), jnp.zeros(number), jnp.zeros((size, number))
    results = jax.lax.fori_loop(0, slots, one, [nothing] * groups)
    for i, (highest, total, sums) in enumerate(results):
        total = jnp.maximum(total, 1e-30)
        mixed[pl.ds(i * size, size), rows] = sums / total[None]
        totals[i, rows] = highest + jnp.log2(total)


def _attention_backwards(
    number: int,
    query: Any,
    values: Any,
    members: Any,
    mixed: Any,
    totals: Any,
    slope: Any,
    to_query: Any,
    to_values: Any,
) -> None:
    rows = pl.ds(pl.program_id(0) * number, number)
    (size, slots, _), groups = values.shape, totals.shape[0]
    scale = size**-0.5
    plain = query[:, rows]
    scaled = plain * scale_of(size)
    parts = [pl.ds(i * size, size) for i in range(groups)]
    slopes = [slope[part, rows] for part in parts]
    averages = [(s * mixed[part, rows]).sum(0) for s, part in zip(slopes, parts, strict=True)]
    logs = [totals[i, rows] for i in range(groups)]

    def one(j: Array, to_query: Array) -> Array:
        value, member = values[:, j, rows].astype(jnp.float32), members[j, rows]
        score = (value * scaled).sum(0)
        to_score, to_value = jnp.zeros(number), jnp.zeros((size, number))
        for i in range(groups):
            # No agent is in two groups: the others add nothing.
            power = jnp.minimum(score - logs[i], 0.0)  # huge scores may round differently here
            weight = jnp.where(member == i + 1, jnp.exp2(power), 0.0)
            to_score = to_score + weight * ((slopes[i] * value).sum(0) - averages[i]) * scale
            to_value = to_value + weight[None] * slopes[i]
        to_value = to_value + to_score[None] * plain
        to_values[:, j, rows] = to_value.astype(to_values.dtype)
        return to_query + to_score[None] * value

    to_query[:, rows] = jax.lax.fori_loop(0, slots, one, jnp.zeros((size, number)))
