"""Tokens of relational networks as Pallas kernels for GPUs: how a set of them begins and ends.

`embed` makes the tokens of what agents see, by an MLP for each type; `attend` is the attention of
one query per head over the normalised tokens of a set. Between them are blocks of self-attention
(`pallas_relations`). Tokens are stored with their features last, in the precision of the products.

    features [rows, tokens, 16]    tokens [rows, tokens, size]    mask [rows, tokens]
    queries, mixed [heads x size, rows]
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int, PyTree

from epcx.games import Observation
from epcx.networks.kernels.pallas_encoder import (
    LOG2_E,
    WIDTH,
    Layers,
    Options,
    Packing,
    Tiling,
    Tree,
    Weights,
    add_up,
    partial_shapes,
    store_partial,
)
from epcx.networks.kernels.pallas_relations import normalised, normalised_gradient
from epcx.networks.layers import LOWEST

TILING = Tiling(rows=64, tiles=8, warps=4, stages=2, programs=4)


class Type(NamedTuple):
    """Tokens of one kind, which follow each other in every set."""

    first: int
    slots: int
    features: int

    @property
    def packing(self) -> Packing:
        return Packing(self.features, 1)


class Rows(NamedTuple):
    """How rows are divided among programs, in tiles; the last tiles may be empty."""

    tiling: Tiling
    rows: int

    @property
    def tiles(self) -> int:
        """Of a program."""
        return self.tiling.per_program(pl.cdiv(self.rows, self.tiling.rows))

    @property
    def programs(self) -> int:
        return pl.cdiv(self.rows, self.tiling.rows * self.tiles)

    def program_tiles(self) -> Callable[[Any], "Tile"]:
        """The tiles of this program, by number."""
        first, size = pl.program_id(0) * self.tiles, self.tiling.rows

        def tile(number: Any) -> Tile:
            begin = (first + number) * size
            return Tile(pl.ds(begin, size), begin + jnp.arange(size), self.rows)

        return tile


class Tile(NamedTuple):
    """Some rows; those beyond the last are neither read nor written."""

    place: Any
    numbers: Any
    rows: int

    def _own(self, size: int) -> Array:
        return jnp.broadcast_to((self.numbers < self.rows)[:, None], (len(self.numbers), size))

    def load(self, ref: Tree, slot: Any) -> Float[Array, "rows size"]:
        """The tokens of these rows at one place of their sets."""
        mask = self._own(ref.shape[2])
        return plt.load(ref.at[self.place, slot, :], mask=mask, other=0.0)

    def store(self, ref: Tree, slot: Any, values: Float[Array, "rows size"]) -> None:
        mask = self._own(values.shape[1])
        plt.store(ref.at[self.place, slot, :], values.astype(ref.dtype), mask=mask)

    def load_rows(self, ref: Tree, number: int, size: int) -> Float[Array, "rows size"]:
        """Block `number` of those that are `size` features high; features come first there."""
        part, mask = pl.ds(number * size, size), self._own(size).T
        return plt.load(ref.at[part, self.place], mask=mask, other=0.0).T

    def store_rows(self, ref: Tree, number: int, values: Float[Array, "rows size"]) -> None:
        size = values.shape[1]
        part, mask = pl.ds(number * size, size), self._own(size).T
        plt.store(ref.at[part, self.place], values.T, mask=mask)

    def load_numbers(self, ref: Tree, number: Any) -> Array:
        """One number per row."""
        mask = (self.numbers < self.rows)[None]
        return plt.load(ref.at[pl.ds(number, 1), self.place], mask=mask, other=0)[0]

    def store_numbers(self, ref: Tree, number: Any, values: Array) -> None:
        mask = (self.numbers < self.rows)[None]
        plt.store(ref.at[pl.ds(number, 1), self.place], values[None], mask=mask)


# Embedding


def pack(
    view: Observation, names: Sequence[str], dtype: jnp.dtype
) -> tuple[tuple[Type, ...], Array, Array]:
    """What agents see along the rows: types, features [rows, tokens, 16], mask [rows, tokens].

    A one behind the features of a token is for the bias. The first token is the agent's own.
    """
    parts = [(view.own[:, None], jnp.ones((1, view.own.shape[1]), bool))]
    parts += [view.entities[name] for name in names]
    types, packed, first = [], [], 0
    for features, mask in parts:
        number, slots = features.shape[:2]
        types.append(Type(first, slots, number))
        first += slots
        ones = jnp.ones((1, *mask.shape), features.dtype)
        padding = (0, WIDTH - number - 1), (0, 0), (0, 0)
        packed.append(jnp.pad(jnp.concatenate([features, ones]), padding))
    features, mask = jnp.concatenate(packed, 1), jnp.concatenate([mask for _, mask in parts])
    return tuple(types), features.transpose(2, 1, 0).astype(dtype), mask.T.astype(jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def embed(
    options: Options,
    types: tuple[Type, ...],
    mlps: Sequence[Weights],
    features: Float[Array, "rows tokens 16"],
) -> Float[Array, "rows tokens size"]:
    """The tokens of all types. Features get no gradient."""
    rows, slots, _ = features.shape
    layout = Rows(options.tiling, rows)
    shape = jax.ShapeDtypeStruct((rows, slots, mlps[0][2].shape[0]), options.dtype)
    kernel = partial(_embed_kernel, options, layout, types)
    return options.call("tokens_forward", kernel, layout.programs, shape)(mlps, features)


def _embed_forward(
    options: Options, types: tuple[Type, ...], mlps: Sequence[Weights], features: Array
) -> tuple[Array, PyTree]:
    return embed(options, types, mlps, features), (mlps, features)


def _embed_backward(
    options: Options, types: tuple[Type, ...], saved: PyTree, grad: Array
) -> tuple[list[Weights], None]:
    mlps, features = saved
    layout = Rows(options.tiling, len(features))
    packings = [kind.packing for kind in types]
    shapes = [
        partial_shapes(layout.programs, mlp, packing)
        for mlp, packing in zip(mlps, packings, strict=True)
    ]
    kernel = partial(_embed_backward_kernel, options, layout, types)
    partials = options.call("tokens_backward", kernel, layout.programs, shapes)(
        mlps, features, grad
    )
    return [add_up(*pair) for pair in zip(packings, partials, strict=True)], None


embed.defvjp(_embed_forward, _embed_backward)


def for_tokens(layout: Rows, kind: Type, step: Callable[..., Tree], carry: Tree) -> Tree:
    """Loops over the tokens of a type in all tiles of a program."""
    tiles = layout.program_tiles()

    def one(number: Any, carry: Tree) -> Tree:
        tile = tiles(number)
        return jax.lax.fori_loop(
            0, kind.slots, lambda slot, carry: step(tile, kind.first + slot, carry), carry
        )

    return jax.lax.fori_loop(0, layout.tiles, one, carry)


def _embed_kernel(
    options: Options, layout: Rows, types: Sequence[Type], mlps: Tree, features: Tree, tokens: Tree
) -> None:
    for kind, mlp in zip(types, mlps, strict=True):
        layers = Layers(options, mlp, kind.packing, rectified=False)

        def step(tile: Tile, slot: Any, _: None, layers: Layers = layers) -> None:
            tile.store(tokens, slot, layers(tile.load(features, slot), 0)[1])

        for_tokens(layout, kind, step, None)


def _embed_backward_kernel(
    options: Options,
    layout: Rows,
    types: Sequence[Type],
    mlps: Tree,
    features: Tree,
    grad: Tree,
    *partials: Tree,
) -> None:
    for kind, mlp, sums in zip(types, mlps, partials, strict=True):
        layers = Layers(options, mlp, kind.packing, rectified=False)

        def step(tile: Tile, slot: Any, gradient: Tree, layers: Layers = layers) -> Tree:
            x, grad_y = tile.load(features, slot), tile.load(grad, slot).astype(jnp.float32)
            return layers.gradient(gradient, 0, x, *layers(x, 0), grad_y)

        start = layers.zero_gradient(layout.tiling.rows)
        store_partial(sums, for_tokens(layout, kind, step, start))


# Attention of one query per head


def attend(
    options: Options,
    queries: Float[Array, "heads size rows"],
    tokens: Float[Array, "rows tokens size"],
    mask: Int[Array, "rows tokens"],
) -> Float[Array, "heads size rows"]:
    """What queries, already scaled, attend to among the normalised tokens where `mask` holds."""
    rows = queries.shape[2]
    return _attend(options, queries.reshape(-1, rows), tokens, mask.T).reshape(queries.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: Options, queries: Array, tokens: Array, mask: Array) -> Array:
    return _attend_forward(options, queries, tokens, mask)[0]


def _attend_forward(
    options: Options, queries: Array, tokens: Array, mask: Array
) -> tuple[Array, PyTree]:
    layout = Rows(options.tiling, len(tokens))
    heads = len(queries) // tokens.shape[2]
    shapes = [jax.ShapeDtypeStruct((n, len(tokens)), jnp.float32) for n in (len(queries), heads)]
    kernel = partial(_attend_kernel, layout)
    mixed, totals = options.call("summary_forward", kernel, layout.programs, shapes)(
        queries, tokens, mask
    )
    return mixed, (queries, tokens, mask, mixed, totals)


def _attend_backward(options: Options, saved: PyTree, grad: Array) -> tuple[Array, Array, None]:
    queries, tokens, *_ = saved
    layout = Rows(options.tiling, len(tokens))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (queries, tokens)]
    call = options.call(
        "summary_backward", partial(_attend_backward_kernel, layout), layout.programs, shapes
    )
    return *call(*saved, grad), None


_attend.defvjp(_attend_forward, _attend_backward)


def _attend_kernel(
    layout: Rows, queries: Tree, tokens: Tree, mask: Tree, mixed: Tree, totals: Tree
) -> None:
    _, slots, size = tokens.shape
    heads, tiles = range(totals.shape[0]), layout.program_tiles()

    def one(number: Any, _: None) -> None:
        tile = tiles(number)
        scaled = [tile.load_rows(queries, head, size) * LOG2_E for head in heads]

        def step(slot: Any, carry: Tree) -> Tree:
            normal, _ = normalised(tile.load(tokens, slot).astype(jnp.float32))
            there = tile.load_numbers(mask, slot) != 0
            after = []
            for query, (highest, total, sums) in zip(scaled, carry, strict=True):
                score = jnp.where(there, (normal * query).sum(1), LOWEST)
                above = jnp.maximum(highest, score)
                shrink = jnp.exp2(highest - above)
                weight = jnp.where(there, jnp.exp2(score - above), 0.0)
                sums = sums * shrink[:, None] + weight[:, None] * normal
                after.append((above, total * shrink + weight, sums))
            return after

        rows = layout.tiling.rows
        start = jnp.full(rows, LOWEST), jnp.zeros(rows), jnp.zeros((rows, size))
        for head, (highest, total, sums) in enumerate(
            jax.lax.fori_loop(0, slots, step, [start for _ in heads])
        ):
            total = jnp.maximum(total, 1e-30)
            tile.store_rows(mixed, head, sums / total[:, None])
            tile.store_numbers(totals, head, highest + jnp.log2(total))

    jax.lax.fori_loop(0, layout.tiles, one, None)


def _attend_backward_kernel(
    layout: Rows,
    queries: Tree,
    tokens: Tree,
    mask: Tree,
    mixed: Tree,
    totals: Tree,
    grad: Tree,
    grad_queries: Tree,
    grad_tokens: Tree,
) -> None:
    _, slots, size = tokens.shape
    heads, tiles = range(totals.shape[0]), layout.program_tiles()

    def one(number: Any, _: None) -> None:
        tile = tiles(number)
        asked = [tile.load_rows(queries, head, size) for head in heads]
        grads = [tile.load_rows(grad, head, size) for head in heads]
        averages = [(grads[head] * tile.load_rows(mixed, head, size)).sum(1) for head in heads]
        logs = [tile.load_numbers(totals, head) for head in heads]

        def step(slot: Any, carry: Tree) -> Tree:
            normal, rate = normalised(tile.load(tokens, slot).astype(jnp.float32))
            there = tile.load_numbers(mask, slot) != 0
            grad_normal, after = jnp.zeros(normal.shape), []
            for head, grad_query in zip(heads, carry, strict=True):
                # Huge scores may round differently here; weights must not exceed one.
                power = (normal * asked[head]).sum(1) * LOG2_E - logs[head]
                weight = jnp.where(there, jnp.exp2(jnp.minimum(power, 0.0)), 0.0)
                grad_score = weight * ((grads[head] * normal).sum(1) - averages[head])
                after.append(grad_query + grad_score[:, None] * normal)
                grad_normal = grad_normal + weight[:, None] * grads[head]
                grad_normal = grad_normal + grad_score[:, None] * asked[head]
            tile.store(grad_tokens, slot, normalised_gradient(normal, rate, grad_normal))
            return after

        start = [jnp.zeros((layout.tiling.rows, size)) for _ in heads]
        for head, values in enumerate(jax.lax.fori_loop(0, slots, step, start)):
            tile.store_rows(grad_queries, head, values)

    jax.lax.fori_loop(0, layout.tiles, one, None)
