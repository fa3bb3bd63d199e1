"""The k nearest as a Pallas kernel for GPUs: a sort of so many distances would be far too slow.

A program takes one observer in a tile of worlds. It goes through all others, and keeps the best so
far in registers, sorted by distance: who is nearer than one of them is inserted. Distances never
reach memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, Int

from epcx.games.neighbours import ascending

Ref = Any  # an array in memory, inside the kernel


@dataclass(frozen=True)
class Options:
    interpret: bool = False
    worlds: int = 128  # of a program, at most
    warps: int = 4


def by_insertion(
    observers: Float[Array, "observers dims *batch"],
    others: Float[Array, "others dims *batch"],
    there: Bool[Array, "others *batch"],
    k: int,
    same: bool,
    options: Options | None = None,
) -> Int[Array, "observers slots *batch"]:
    """As `neighbours.by_top_k`."""
    options, batch = options or Options(), there.shape[1:]
    # Who is not there is infinitely far away.
    others = jnp.where(there[:, None], others, jnp.inf)
    flat = [x.astype(jnp.float32).reshape(*x.shape[:2], -1) for x in (observers, others)]
    n, _, worlds = flat[0].shape
    tile = min(options.worlds, max(16, pl.next_power_of_2(worlds)))
    padded = [jnp.pad(x, ((0, 0), (0, 0), (0, -worlds % tile))) for x in flat]
    tiles = padded[0].shape[2] // tile
    chosen = pl.pallas_call(
        partial(_kernel, tile, tiles, same),
        grid=(n * tiles,),
        out_shape=jax.ShapeDtypeStruct((n, k, tiles * tile), jnp.int32),
        compiler_params=plt.CompilerParams(num_warps=options.warps, num_stages=2),
        interpret=options.interpret,
        name="k_nearest",
    )(*padded)
    return chosen[:, :, :worlds].reshape(n, k, *batch)


def _kernel(tile: int, tiles: int, same: bool, observers: Ref, others: Ref, chosen: Ref) -> None:
    program = pl.program_id(0)
    me, number = jax.lax.div(program, tiles), jax.lax.rem(program, tiles)
    worlds = pl.ds(number * tile, tile)
    (m, dims, _), k = others.shape, chosen.shape[1]
    place = [observers[me, i, worlds] for i in range(dims)]

    def step(j: Array, best: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
        parts = [place[i] - others[j, i, worlds] for i in range(dims)]
        squared = sum(part * part for part in parts)
        if same:
            squared = jnp.where(j == me, jnp.inf, squared)
        return inserted(best, squared, jnp.full(tile, j, jnp.int32))

    nobody = jnp.full(tile, jnp.inf), jnp.full(tile, m, jnp.int32)
    best = jax.lax.fori_loop(0, m, step, [nobody] * k)
    for slot, found in enumerate(ascending([number for _, number in best])):
        chosen[me, slot, worlds] = found


def inserted(
    best: Sequence[tuple[Array, Array]], squared: Array, number: Array
) -> list[tuple[Array, Array]]:
    """The best with one more, by distance; the last one drops out. Equals stay in order."""
    after = []
    moved, its_number = squared, number
    for other, other_number in best:
        # All that are farther away move by one place, also those at the same distance.
        nearer = squared < other
        after.append((jnp.where(nearer, moved, other), jnp.where(nearer, its_number, other_number)))
        moved = jnp.where(nearer, other, moved)
        its_number = jnp.where(nearer, other_number, its_number)
    return after
