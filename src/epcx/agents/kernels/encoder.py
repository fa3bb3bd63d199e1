"""The observation encoder as one kernel for GPUs: forwards, and backwards.

A program takes some tiles of rows (agent and sample). Type by type it keeps the weights on chip;
for each tile it computes the own embedding, which is the query, and then, entity by entity, the
two layers, the score and its share of a running softmax. The embeddings of pairs never reach
memory; the way back computes them again. All products are between a tile of rows and a small
matrix, on tensor cores.

    own     [features, rows]            mlp: (weight, bias, weight, bias)
    types   features [features, slots, rows], mask [slots, rows]
    encoded [(1 + types) x size, rows], as precise as the products

Tensor cores sum over 16 numbers at least. So several entities are packed side by side, each with a
one behind its features for the bias; and the first layer has a copy of its weights for each of
them, with zeros where the others are.

Under `vmap` over agents, what all of them see is read where it is, not copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float

from epcx.agents.layers import EPSILON, LOWEST

WIDTH = 16  # what tensor cores sum over at least
MOST_FEATURES = WIDTH - 1  # and a one, for the bias
WORD = 31  # bits of the mask that are read at once
MOST_SIDE_BY_SIDE = 2  # entities in these 16; with 3 the way back is slower
LOG2_E = 1.4426950408889634
LN_2 = 1 / LOG2_E
ABSENT = 2 * LOWEST  # a score so far below even the highest of none that its weight is zero

MLP = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class Tiling:
    """How the work is cut: rows of a tile, tiles of a program at most, and its warps."""

    rows: int
    tiles: int
    warps: int
    stages: int = 3  # of reading ahead
    programs: int = 40  # for every network, before any of them takes another tile

    def params(self) -> Any:
        return plt.CompilerParams(num_warps=self.warps, num_stages=self.stages)


@dataclass(frozen=True)
class Options:
    precision: str = "bf16"  # of products: "float32", "tf32" or "bf16"; sums are float32
    interpret: bool = False
    tiling: Tiling = Tiling(rows=32, tiles=4, warps=2)

    @property
    def dtype(self) -> Any:
        return jnp.bfloat16 if self.precision == "bf16" else jnp.float32

    def call(self, name: str, kernel: Any, grid: "Grid", out_shape: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(grid.programs,),
            out_shape=out_shape,
            compiler_params=self.tiling.params(),
            interpret=self.interpret,
            name=name,
        )

    def dot(self, a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
        """The product of two tiles, summed over an axis of each."""
        exactly = jax.lax.Precision.HIGHEST if self.precision == "float32" else None
        return jax.lax.dot_general(
            a.astype(self.dtype),
            b.astype(self.dtype),
            (((over[0],), (over[1],)), ((), ())),
            precision=exactly,
            preferred_element_type=jnp.float32,
        )

    def relu(self, x: Array) -> Array:
        """As a factor of the next product."""
        if self.precision != "bf16" or self.interpret:
            return jnp.maximum(x, 0.0).astype(self.dtype)
        (y,) = plt.elementwise_inline_asm(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;",
            args=[x],
            constraints="=r,f,f",
            pack=2,
            result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)],
        )
        return y


class Packed(NamedTuple):
    """The entities of a type as the kernels read them."""

    features: Array  # [words, groups of a word, rows, 16]
    mask: Array  # [words, rows], a bit per entity


@dataclass(frozen=True)
class Packing:
    """How the entities of a type are packed.

    Some stand side by side in a group, as many as tensor cores take at once; some groups share a
    word of the mask.
    """

    features: int
    slots: int

    @property
    def side_by_side(self) -> int:
        """Few, but then little room is left over."""
        possible = range(min(MOST_SIDE_BY_SIDE, WIDTH // (self.features + 1)), 0, -1)
        return min(possible, key=lambda n: pl.cdiv(self.slots, n) * (n + 1))

    @property
    def step(self) -> int:
        """From an entity to the next one."""
        return WIDTH // self.side_by_side

    @property
    def words(self) -> int:
        return pl.cdiv(self._groups, WORD // self.side_by_side)

    @property
    def groups(self) -> int:
        """Of a word."""
        return pl.cdiv(self._groups, self.words)

    @property
    def _groups(self) -> int:
        return max(1, pl.cdiv(self.slots, self.side_by_side))

    def pack(self, features: Array, mask: Array, rows: int, dtype: Any) -> Packed:
        """With `rows` rows: more than there are to fill the last tile; nobody is there in them."""
        n, number = self.side_by_side, mask.shape[1]
        more = self.words * self.groups * n - self.slots, rows - number
        features = jnp.concatenate([features, jnp.ones((1, *mask.shape), features.dtype)])
        spare = self.step - self.features - 1
        features = jnp.pad(features, ((0, spare), (0, more[0]), (0, more[1])))
        features = features.reshape(self.step, self.words, self.groups, n, rows)
        features = features.transpose(1, 2, 4, 3, 0).reshape(self.words, self.groups, rows, -1)
        features = jnp.pad(features, ((0, 0),) * 3 + ((0, WIDTH - n * self.step),))
        bits = jnp.pad(mask, ((0, more[0]), (0, more[1]))).reshape(self.words, -1, rows)
        powers = jnp.left_shift(1, jnp.arange(bits.shape[1], dtype=jnp.int32))
        return Packed(features.astype(dtype), (bits * powers[:, None]).sum(1))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def encode(
    options: Options, mlps: Sequence[MLP], own: Array, types: Sequence[tuple[Array, Array]]
) -> Float[Array, "width rows"]:
    """`mlps` are that of the agent itself and those of the types. No gradient goes to features."""
    return _run(options, mlps, own, types, remember=False)[0]


def _forwards(options: Options, mlps: Any, own: Array, types: Any) -> tuple[Array, Any]:
    encoded, saved = _run(options, mlps, own, types, remember=True)
    return encoded, (mlps, types, *saved)


def _run(
    options: Options, mlps: Any, own: Array, types: Any, remember: bool
) -> tuple[Array, tuple[Any, ...]]:
    """What is encoded, and what the way back needs."""
    size, number = mlps[0][2].shape[0], own.shape[1]
    packings = packings_of(types)
    rows = number + -number % options.tiling.rows
    present = jnp.ones((1, number), bool)
    me = Packing(len(own), 1).pack(own[:, None], present, rows, options.dtype).features[0, 0]
    packed = [
        packing.pack(features, mask, rows, options.dtype)
        for packing, (features, mask) in zip(packings, types, strict=True)
    ]
    grid = Grid(options.tiling, rows)
    shapes = [jax.ShapeDtypeStruct(((1 + len(types)) * size, rows), options.dtype)]
    if remember:
        shapes.append(jax.ShapeDtypeStruct((len(types) * size, rows), options.dtype))
        shapes += [jax.ShapeDtypeStruct((len(types), rows), jnp.float32)] * 2
    kernel = partial(_forwards_kernel, options, grid, packings)
    call = options.call("encoder_forwards", kernel, grid, shapes)
    encoded, *rest = call(mlps, me, packed)
    return encoded[:, :number], (me, packed, encoded, *rest)


def _backwards(options: Options, saved: Any, slope: Array) -> tuple[Any, None, None]:
    mlps, types, me, packed, encoded, normals, rates, totals = saved
    packings = [Packing(mlps[0][0].shape[1], 1), *packings_of(types)]
    rows = len(me)
    slope = jnp.pad(slope, ((0, 0), (0, rows - slope.shape[1])))
    grid = Grid(options.tiling, rows)

    def room(mlp: MLP, packing: Packing) -> Any:
        """Every program writes what it adds to the gradients in its own place."""
        hidden, size = mlp[0].shape[0], mlp[2].shape[0]
        shapes = (packing.side_by_side, WIDTH, hidden), (hidden, size), (size,)
        return [jax.ShapeDtypeStruct((grid.programs, *shape), jnp.float32) for shape in shapes]

    to_query, *shares = options.call(
        "encoder_backwards",
        partial(_backwards_kernel, options, grid, packings[1:]),
        grid,
        [
            jax.ShapeDtypeStruct(normals.shape, options.dtype),
            *(room(*pair) for pair in zip(mlps[1:], packings[1:], strict=True)),
        ],
    )(mlps[1:], packed, encoded, normals, rates, totals, slope)
    share = options.call(
        "encoder_own_backwards",
        partial(_own_backwards_kernel, options, grid),
        grid,
        room(mlps[0], packings[0]),
    )(mlps[0], me, to_query, slope)

    def gradient(packing: Packing, share: Any) -> MLP:
        copies, second, bias = (x.sum(0) for x in share)
        blocks = [copies[i, i * packing.step :] for i in range(packing.side_by_side)]
        first = sum(block[: packing.features + 1] for block in blocks)
        return first[:-1].T, first[-1], second.T, bias

    all_shares = zip(packings, [share, *shares], strict=True)
    return [gradient(*one) for one in all_shares], None, None


encode.defvjp(_forwards, _backwards)


def packings_of(types: Any) -> list[Packing]:
    return [Packing(*features.shape[:2]) for features, _ in types]


class Grid:
    """How the rows are spread over programs: enough of them to keep a GPU busy."""

    def __init__(self, tiling: Tiling, rows: int):
        self.rows = tiling.rows
        tiles = rows // tiling.rows
        most = min(tiling.tiles, max(1, tiles // tiling.programs))
        self.tiles = next(n for n in range(most, 0, -1) if tiles % n == 0)
        self.programs = tiles // self.tiles

    def mine(self) -> Callable[[Any], "Tile"]:
        """The tiles of this program, by number."""
        first = pl.program_id(0) * self.tiles
        return lambda i: Tile(pl.ds((first + i) * self.rows, self.rows))


class Tile(NamedTuple):
    """Some rows. In memory features come first, on chip rows do."""

    rows: Any

    def part(self, ref: Any, number: int, size: int) -> Float[Array, "rows size"]:
        return ref[pl.ds(number * size, size), self.rows].T.astype(jnp.float32)

    def each_group(self, packing: Packing, packed: Packed, step: Any, carry: Any) -> Any:
        """`carry` after a step with each group of entities, and which of them are there."""

        def word(w: Any, carry: Any) -> Any:
            bits = packed.mask[w, self.rows]

            def group(g: Array, carry: Any) -> Any:
                x = packed.features[w, g, self.rows, :]
                first = bits >> (g * packing.side_by_side)
                there = [(first & 2**j) != 0 for j in range(packing.side_by_side)]
                return step(x, there, carry)

            return jax.lax.fori_loop(0, packing.groups, group, carry)

        if packing.words == 1:
            return word(0, carry)
        return jax.lax.fori_loop(0, packing.words, word, carry)

    def store(self, ref: Any, number: int, values: Float[Array, "rows size"]) -> None:
        ref[pl.ds(number * values.shape[1], values.shape[1]), self.rows] = values.T.astype(
            ref.dtype
        )


def _forwards_kernel(
    options: Options,
    grid: Grid,
    packings: list[Packing],
    mlps: Any,
    me: Any,
    types: Any,
    encoded: Any,
    *remembered: Any,
) -> None:
    tiles, own = grid.mine(), alone(options, mlps[0])

    def attend(t: int, layers: Layers, packed: Any, k: Array, _: None) -> None:
        tile = tiles(k)
        query = own(me[tile.rows, :], 0)[1]
        query = query.astype(options.dtype).astype(jnp.float32)  # as the way back will read it
        if t == 0:
            tile.store(encoded, 0, query)
        rows, size = query.shape
        scaled = query * scale_of(size)

        def some(x: Array, there: Any, carry: Any) -> Any:
            highest, total, sums = carry
            embedded = [layers(x, j)[1] for j in range(len(there))]
            pairs = list(zip(embedded, there, strict=True))
            scores = [jnp.where(seen, (scaled * e).sum(1), ABSENT) for e, seen in pairs]
            above = reduce(jnp.maximum, scores, highest)
            shrink = jnp.exp2(highest - above)
            total, sums = total * shrink, sums * shrink[:, None]
            for score, e in zip(scores, embedded, strict=True):
                weight = jnp.exp2(score - above)
                total, sums = total + weight, sums + weight[:, None] * e
            return above, total, sums

        nothing = jnp.full(rows, LOWEST), jnp.zeros(rows), jnp.zeros((rows, size))
        highest, total, sums = tile.each_group(layers.packing, packed, some, nothing)
        total = jnp.maximum(total, 1e-30)
        sums = sums / total[:, None]
        sums = sums - sums.mean(1)[:, None]
        rate = jax.lax.rsqrt((sums * sums).mean(1) + EPSILON)
        normal = sums * rate[:, None]
        tile.store(encoded, 1 + t, jnp.maximum(normal, 0.0))
        if remembered:
            normals, rates, totals = remembered
            tile.store(normals, t, normal)
            rates[t, tile.rows] = rate
            totals[t, tile.rows] = highest + jnp.log2(total)

    for t, (mlp, packing, packed) in enumerate(zip(mlps[1:], packings, types, strict=True)):
        step = partial(attend, t, Layers(options, mlp, packing), packed)
        jax.lax.fori_loop(0, grid.tiles, step, None)


def _backwards_kernel(
    options: Options,
    grid: Grid,
    packings: list[Packing],
    mlps: Any,
    types: Any,
    encoded: Any,
    normals: Any,
    rates: Any,
    totals: Any,
    slope: Any,
    to_queries: Any,
    *shares: Any,
) -> None:
    tiles = grid.mine()

    def attend(t: int, layers: Layers, packed: Any, k: Array, gradient: Any) -> Any:
        tile = tiles(k)
        rows, size = grid.rows, layers.size
        scaled = tile.part(encoded, 0, size) * scale_of(size)
        normal = tile.part(normals, t, size)
        rate, total = rates[t, tile.rows], totals[t, tile.rows]
        above = jnp.where(normal > 0, tile.part(slope, 1 + t, size), 0.0)
        along = (above * normal).mean(1)
        to_sums = rate[:, None] * (above - above.mean(1)[:, None] - normal * along[:, None])
        # The weighted mean of what comes next: the slope is at right angles to what it normalises,
        # but for the epsilon.
        average = (size * EPSILON) * along * rate * rate

        def some(x: Array, there: Any, carry: Any) -> Any:
            to_scaled, gradient = carry
            for j, seen in enumerate(there):
                before, embedded = layers(x, j)
                score = (scaled * embedded).sum(1)
                # Huge scores that round differently here must not make a weight above one.
                weight = jnp.where(seen, jnp.exp2(jnp.minimum(score - total, 0.0)), 0.0)
                to_score = weight * ((embedded * to_sums).sum(1) - average) * LN_2
                to_scaled = to_scaled + to_score[:, None] * embedded
                to_embedded = weight[:, None] * to_sums + to_score[:, None] * scaled
                gradient = layers.gradient(gradient, j, x, before, embedded, to_embedded)
            return to_scaled, gradient

        start = jnp.zeros((rows, size)), gradient
        to_scaled, gradient = tile.each_group(layers.packing, packed, some, start)
        tile.store(to_queries, t, to_scaled * scale_of(size))
        return gradient

    for t, (mlp, packing, packed) in enumerate(zip(mlps, packings, types, strict=True)):
        layers = Layers(options, mlp, packing)
        step = partial(attend, t, layers, packed)
        _keep(shares[t], jax.lax.fori_loop(0, grid.tiles, step, layers.no_gradient(grid.rows)))


def _own_backwards_kernel(
    options: Options, grid: Grid, mlp: Any, me: Any, to_queries: Any, slope: Any, *share: Any
) -> None:
    tiles, layers = grid.mine(), alone(options, mlp)
    size = mlp[2].shape[0]

    def some(k: Array, gradient: Any) -> Any:
        tile = tiles(k)
        x = me[tile.rows, :]
        before, query = layers(x, 0)
        to_query = tile.part(slope, 0, size)
        for t in range(to_queries.shape[0] // size):
            to_query = to_query + tile.part(to_queries, t, size)
        return layers.gradient(gradient, 0, x, before, query, to_query)

    nothing = layers.no_gradient(grid.rows)
    _keep(share, jax.lax.fori_loop(0, grid.tiles, some, nothing))


def _keep(share: Any, gradient: Any) -> None:
    copies, second, bias = gradient
    here = pl.program_id(0)
    for j, first in enumerate(copies):
        share[0][here, j] = first
    share[1][here] = second
    share[2][here] = bias.sum(0)


def scale_of(size: int) -> float:
    """Of queries, for scores that are powers of two instead of e."""
    return LOG2_E / size**0.5


class Layers:
    """Two fully connected layers with ReLU after each, for each entity of a packed group."""

    def __init__(self, options: Options, mlp: Any, packing: Packing):
        weight, bias, second, last_bias = mlp
        self.options, self.packing = options, packing
        self.hidden, self.size = weight.shape[0], second.shape[0]
        outputs, inputs = jnp.arange(self.hidden)[None], jnp.arange(WIDTH)[:, None]

        def copy(j: int) -> Array:
            at = inputs - j * packing.step
            wanted = (at >= 0) & (at < packing.features)
            values = plt.load(weight.at[outputs, at], mask=wanted, other=0.0)
            values = jnp.where(at == packing.features, bias[...][None], values)
            return values.astype(options.dtype)

        self.first = [copy(j) for j in range(packing.side_by_side)]
        self.second = second[...].T.astype(options.dtype)
        self.bias = last_bias[...][None]

    def __call__(self, x: Float[Array, "rows 16"], j: int) -> tuple[Array, Array]:
        """Of the entity j of a group: the first layer before its ReLU, and the second after it."""
        dot = self.options.dot
        before = dot(x, self.first[j])
        return before, jnp.maximum(dot(self.options.relu(before), self.second) + self.bias, 0.0)

    def no_gradient(self, rows: int) -> Any:
        return (
            [jnp.zeros((WIDTH, self.hidden)) for _ in self.first],
            jnp.zeros((self.hidden, self.size)),
            jnp.zeros((rows, self.size)),
        )

    def gradient(self, sums: Any, j: int, x: Array, before: Array, y: Array, slope: Array) -> Any:
        """`sums`, and what rows with this slope of the result add to it."""
        dot = self.options.dot
        copies, second, bias = sums
        slope = jnp.where(y > 0, slope, 0.0)
        to_hidden = jnp.where(before > 0, dot(slope, self.second, (1, 1)), 0.0)
        first = copies[j] + dot(x, to_hidden, (0, 0))
        copies = [first if i == j else copy for i, copy in enumerate(copies)]
        second = second + dot(self.options.relu(before), slope, (0, 0))
        return copies, second, bias + slope


def alone(options: Options, mlp: Any) -> Layers:
    """Those of the agent itself."""
    return Layers(options, mlp, Packing(mlp[0].shape[1], 1))
