"""The observation encoder as one Pallas kernel for GPUs, forward and backward.

A program processes some tiles of rows (agent and sample). It keeps the weights of one entity type
on chip at a time; for each tile it computes the own embedding, which is the query, and then, entity
by entity, the two layers, the score and its share of a running softmax. The embeddings of pairs
never reach memory; the backward pass recomputes them. All products are between a tile of rows and a
small matrix, on tensor cores.

    own     [features, rows]            mlp: (weight, bias, weight, bias)
    types   features [features, slots, rows], mask [slots, rows]
    encoded [(1 + types) x size, rows], in the precision of the products

Tensor cores sum over at least 16 numbers. So several entities are packed into a group, each with a
one behind its features for the bias; and the first layer has a copy of its weights for each of
them, with zeros where the others are.

Under `vmap` over agents, observations that all of them share are read in place, not copied. With an
`index`, rows are some of these observations, different ones for every agent: they are gathered as
they are read, 32 bytes at a time in bfloat16, and never written again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, Int, PyTree

from epcx.networks.layers import EPSILON, LOWEST

WIDTH = 16  # tensor cores sum over at least as many numbers
MAX_FEATURES = WIDTH - 1  # the last one is for the bias
WORD = 31  # bits of the mask that are read together
MAX_PER_GROUP = 2  # entities in these 16; with 3 the backward pass is slower
LOG2_E = 1.4426950408889634
LN_2 = 1 / LOG2_E
ABSENT = 2 * LOWEST  # a score whose weight is zero even beside the highest of an empty set

Weights = tuple[Array, ...]  # of two layers: weight, bias, weight, bias
Type = tuple[Float[Array, "_features _slots rows"], Bool[Array, "_slots rows"]]
Tree = Any  # references inside a kernel, and values of its loops


@dataclass(frozen=True)
class Tiling:
    """How the work is divided: rows of a tile, maximal tiles of a program, and its warps."""

    rows: int
    tiles: int
    warps: int
    stages: int = 3  # of prefetching
    programs: int = 40  # per network, before any of them processes a second tile

    def per_program(self, tiles: int) -> int:
        """How many of all tiles of a network a program processes."""
        return min(self.tiles, max(1, tiles // self.programs))

    def params(self) -> plt.CompilerParams:
        return plt.CompilerParams(num_warps=self.warps, num_stages=self.stages)


@dataclass(frozen=True)
class Options:
    precision: str = "bf16"  # of products: "float32", "tf32" or "bf16"; sums are float32
    interpret: bool = False
    tiling: Tiling = Tiling(rows=32, tiles=4, warps=2)

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.bfloat16 if self.precision == "bf16" else jnp.float32)

    def call(
        self, name: str, kernel: Callable[..., None], programs: int, out_shape: PyTree
    ) -> Callable[..., Any]:
        return pl.pallas_call(
            kernel,
            grid=(programs,),
            out_shape=out_shape,
            compiler_params=self.tiling.params(),
            interpret=self.interpret,
            name=name,
        )

    def dot(self, a: Array, b: Array, over: tuple[int, int] = (1, 0)) -> Array:
        """The product of two tiles, summed over an axis of each."""
        precision = jax.lax.Precision.HIGHEST if self.precision == "float32" else None
        return jax.lax.dot_general(
            a.astype(self.dtype),
            b.astype(self.dtype),
            (((over[0],), (over[1],)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def relu(self, x: Array) -> Array:
        """In the precision of the next product."""
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

    Entities that tensor cores process together form a group; groups share a word of the mask.
    """

    features: int
    slots: int

    @property
    def per_group(self) -> int:
        """The number of entities, chosen so that few places remain empty."""
        possible = range(min(MAX_PER_GROUP, WIDTH // (self.features + 1)), 0, -1)
        return min(possible, key=lambda n: pl.cdiv(self.slots, n) * (n + 1))

    @property
    def step(self) -> int:
        """From an entity to the next one in its group."""
        return WIDTH // self.per_group

    @property
    def words(self) -> int:
        return pl.cdiv(self._groups, WORD // self.per_group)

    @property
    def groups(self) -> int:
        """Of a word."""
        return pl.cdiv(self._groups, self.words)

    @property
    def _groups(self) -> int:
        return max(1, pl.cdiv(self.slots, self.per_group))

    def pack(
        self,
        features: Float[Array, "features slots samples"],
        mask: Bool[Array, "slots samples"],
        rows: int,
        dtype: jnp.dtype,
    ) -> Packed:
        """Padded to `rows` rows, which fill the last tile; entities of the padding are absent."""
        n, samples = self.per_group, mask.shape[1]
        padding = self.words * self.groups * n - self.slots, rows - samples
        features = jnp.concatenate([features, jnp.ones((1, *mask.shape), features.dtype)])
        spare = self.step - self.features - 1
        features = jnp.pad(features, ((0, spare), (0, padding[0]), (0, padding[1])))
        features = features.reshape(self.step, self.words, self.groups, n, rows)
        features = features.transpose(1, 2, 4, 3, 0).reshape(self.words, self.groups, rows, -1)
        features = jnp.pad(features, ((0, 0),) * 3 + ((0, WIDTH - n * self.step),))
        bits = jnp.pad(mask, ((0, padding[0]), (0, padding[1]))).reshape(self.words, -1, rows)
        powers = jnp.left_shift(1, jnp.arange(bits.shape[1], dtype=jnp.int32))
        return Packed(features.astype(dtype), (bits * powers[:, None]).sum(1))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def encode(
    options: Options,
    mlps: Sequence[Weights],
    own: Float[Array, "features rows"],
    types: Sequence[Type],
    index: Int[Array, "taken"] | None = None,
) -> Float[Array, "width taken"]:
    """`mlps` are that of the agent itself and those of the types. Observations get no gradient.

    All rows are encoded, or those of `index`.
    """
    return _run(options, mlps, own, types, index, save=False)[0]


def _forward(
    options: Options,
    mlps: Sequence[Weights],
    own: Array,
    types: Sequence[Type],
    index: Array | None,
) -> tuple[Array, PyTree]:
    encoded, saved = _run(options, mlps, own, types, index, save=True)
    return encoded, (mlps, types, *saved)


def _run(
    options: Options,
    mlps: Sequence[Weights],
    own: Array,
    types: Sequence[Type],
    index: Array | None,
    save: bool,
) -> tuple[Array, tuple[PyTree, ...]]:
    """The encoded observation, and what the backward pass needs."""
    size, seen = mlps[0][2].shape[0], own.shape[1]
    packings = packings_of(types)
    samples = seen if index is None else len(index)
    rows = samples + -samples % options.tiling.rows
    table = rows if index is None else seen
    present = jnp.ones((1, seen), bool)
    me = Packing(len(own), 1).pack(own[:, None], present, table, options.dtype).features[0, 0]
    source = None if index is None else jnp.pad(index, (0, rows - samples))
    packed = [
        packing.pack(features, mask, table, options.dtype)
        for packing, (features, mask) in zip(packings, types, strict=True)
    ]
    grid = Grid(options.tiling, rows)
    shapes = [jax.ShapeDtypeStruct(((1 + len(types)) * size, rows), options.dtype)]
    if save:
        shapes.append(jax.ShapeDtypeStruct((len(types) * size, rows), options.dtype))
        shapes += [jax.ShapeDtypeStruct((len(types), rows), jnp.float32)] * 2
    kernel = partial(_forward_kernel, options, grid, packings)
    call = options.call("encoder_forward", kernel, grid.programs, shapes)
    encoded, *rest = call(mlps, me, packed, source)
    return encoded[:, :samples], (me, packed, source, encoded, *rest)


def _backward(
    options: Options, saved: PyTree, grad: Array
) -> tuple[list[Weights], None, None, None]:
    mlps, types, me, packed, source, encoded, normals, rates, totals = saved
    packings = [Packing(mlps[0][0].shape[1], 1), *packings_of(types)]
    rows = encoded.shape[1]
    grad = jnp.pad(grad, ((0, 0), (0, rows - grad.shape[1])))
    grid = Grid(options.tiling, rows)
    grad_queries, *type_partials = options.call(
        "encoder_backward",
        partial(_backward_kernel, options, grid, packings[1:]),
        grid.programs,
        [
            jax.ShapeDtypeStruct(normals.shape, options.dtype),
            *(
                partial_shapes(grid.programs, *pair)
                for pair in zip(mlps[1:], packings[1:], strict=True)
            ),
        ],
    )(mlps[1:], packed, source, encoded, normals, rates, totals, grad)
    own_partials = options.call(
        "encoder_own_backward",
        partial(_own_backward_kernel, options, grid),
        grid.programs,
        partial_shapes(grid.programs, mlps[0], packings[0]),
    )(mlps[0], me, source, grad_queries, grad)

    partials = zip(packings, [own_partials, *type_partials], strict=True)
    return [add_up(*one) for one in partials], None, None, None


encode.defvjp(_forward, _backward)


def partial_shapes(programs: int, mlp: Weights, packing: Packing) -> list[jax.ShapeDtypeStruct]:
    """Every program writes its part of the gradient of `Layers` to its own place."""
    hidden, size = mlp[0].shape[0], mlp[2].shape[0]
    shapes = (packing.per_group, WIDTH, hidden), (hidden, size), (size,)
    return [jax.ShapeDtypeStruct((programs, *shape), jnp.float32) for shape in shapes]


def add_up(packing: Packing, partials: Sequence[Array]) -> Weights:
    """The gradient, of what all programs have written."""
    copies, second, bias = (x.sum(0) for x in partials)
    blocks = [copies[i, i * packing.step :] for i in range(packing.per_group)]
    first = reduce(jnp.add, [block[: packing.features + 1] for block in blocks])
    return first[:-1].T, first[-1], second.T, bias


def packings_of(types: Sequence[Type]) -> list[Packing]:
    return [Packing(*features.shape[:2]) for features, _ in types]


class Grid:
    """How the rows are spread over programs: enough of them to keep a GPU busy."""

    def __init__(self, tiling: Tiling, rows: int):
        self.rows = tiling.rows
        tiles = rows // tiling.rows
        self.tiles = next(n for n in range(tiling.per_program(tiles), 0, -1) if tiles % n == 0)
        self.programs = tiles // self.tiles

    def program_tiles(self, source: Tree = None) -> Callable[[Any], "Tile"]:
        """The tiles of this program, by number. `source` has the index of rows, if there is one."""
        first = pl.program_id(0) * self.tiles

        def tile(i: Any) -> Tile:
            rows = pl.ds((first + i) * self.rows, self.rows)
            return Tile(rows, rows if source is None else source[rows])

        return tile


class Tile(NamedTuple):
    """Some rows. In memory features come first, on chip rows do."""

    rows: Any
    source: Any  # where their observations are: the same rows, or an index

    def observed(self, ref: Any, *place: Any) -> Float[Array, "rows 16"]:
        """Packed features of these rows; `place` is that of a group of entities."""
        if self.source is self.rows:
            return ref[(*place, self.rows, slice(None))]
        return ref[(*place, self.source[:, None], jnp.arange(WIDTH)[None])]

    def load(self, ref: Any, number: int, size: int) -> Float[Array, "rows size"]:
        """Block `number` of those that are `size` features high."""
        return ref[pl.ds(number * size, size), self.rows].T.astype(jnp.float32)

    def for_groups(self, packing: Packing, packed: Packed, step: Any, carry: Tree) -> Tree:
        """Loops over the groups of entities; `step` also gets which entities are present."""

        def word(w: Any, carry: Tree) -> Tree:
            bits = packed.mask[w, self.source]

            def group(g: Array, carry: Tree) -> Tree:
                x = self.observed(packed.features, w, g)
                first = bits >> (g * packing.per_group)
                present = [(first & 2**j) != 0 for j in range(packing.per_group)]
                return step(x, present, carry)

            return jax.lax.fori_loop(0, packing.groups, group, carry)

        if packing.words == 1:
            return word(0, carry)
        return jax.lax.fori_loop(0, packing.words, word, carry)

    def store(self, ref: Any, number: int, values: Float[Array, "rows size"]) -> None:
        ref[pl.ds(number * values.shape[1], values.shape[1]), self.rows] = values.T.astype(
            ref.dtype
        )


def _forward_kernel(
    options: Options,
    grid: Grid,
    packings: list[Packing],
    mlps: Tree,
    me: Tree,
    types: Tree,
    source: Tree,
    encoded: Tree,
    *saved: Tree,
) -> None:
    tiles, own = grid.program_tiles(source), own_layers(options, mlps[0])

    def attend(t: int, layers: Layers, packed: Tree, k: Array, _: None) -> None:
        tile = tiles(k)
        query = own(tile.observed(me), 0)[1]
        query = query.astype(options.dtype).astype(jnp.float32)  # as the backward pass reads it
        if t == 0:
            tile.store(encoded, 0, query)
        rows, size = query.shape
        scaled = query * scale_of(size)

        def group(x: Array, present: list[Array], carry: Tree) -> Tree:
            highest, total, sums = carry
            embedded = [layers(x, j)[1] for j in range(len(present))]
            pairs = list(zip(embedded, present, strict=True))
            scores = [jnp.where(there, (scaled * e).sum(1), ABSENT) for e, there in pairs]
            above = reduce(jnp.maximum, scores, highest)
            shrink = jnp.exp2(highest - above)
            total, sums = total * shrink, sums * shrink[:, None]
            for score, e in zip(scores, embedded, strict=True):
                weight = jnp.exp2(score - above)
                total, sums = total + weight, sums + weight[:, None] * e
            return above, total, sums

        start = jnp.full(rows, LOWEST), jnp.zeros(rows), jnp.zeros((rows, size))
        highest, total, sums = tile.for_groups(layers.packing, packed, group, start)
        total = jnp.maximum(total, 1e-30)
        sums = sums / total[:, None]
        sums = sums - sums.mean(1)[:, None]
        rate = jax.lax.rsqrt((sums * sums).mean(1) + EPSILON)
        normal = sums * rate[:, None]
        tile.store(encoded, 1 + t, jnp.maximum(normal, 0.0))
        if saved:
            normals, rates, totals = saved
            tile.store(normals, t, normal)
            rates[t, tile.rows] = rate
            totals[t, tile.rows] = highest + jnp.log2(total)

    for t, (mlp, packing, packed) in enumerate(zip(mlps[1:], packings, types, strict=True)):
        step = partial(attend, t, Layers(options, mlp, packing), packed)
        jax.lax.fori_loop(0, grid.tiles, step, None)


def _backward_kernel(
    options: Options,
    grid: Grid,
    packings: list[Packing],
    mlps: Tree,
    types: Tree,
    source: Tree,
    encoded: Tree,
    normals: Tree,
    rates: Tree,
    totals: Tree,
    grad: Tree,
    grad_queries: Tree,
    *partials: Tree,
) -> None:
    tiles = grid.program_tiles(source)

    def attend(t: int, layers: Layers, packed: Tree, k: Array, gradient: Tree) -> Tree:
        tile = tiles(k)
        rows, size = grid.rows, layers.size
        scaled = tile.load(encoded, 0, size) * scale_of(size)
        normal = tile.load(normals, t, size)
        rate, total = rates[t, tile.rows], totals[t, tile.rows]
        grad_y = jnp.where(normal > 0, tile.load(grad, 1 + t, size), 0.0)
        along = (grad_y * normal).mean(1)
        grad_sums = rate[:, None] * (grad_y - grad_y.mean(1)[:, None] - normal * along[:, None])
        # The weighted mean of the weights' gradients: this gradient is orthogonal to what it
        # normalises, but for the epsilon.
        average = (size * EPSILON) * along * rate * rate

        def group(x: Array, present: list[Array], carry: Tree) -> Tree:
            grad_scaled, gradient = carry
            for j, there in enumerate(present):
                before, embedded = layers(x, j)
                score = (scaled * embedded).sum(1)
                # Huge scores may round differently here; weights must not exceed one.
                weight = jnp.where(there, jnp.exp2(jnp.minimum(score - total, 0.0)), 0.0)
                grad_score = weight * ((embedded * grad_sums).sum(1) - average) * LN_2
                grad_scaled = grad_scaled + grad_score[:, None] * embedded
                grad_embedded = weight[:, None] * grad_sums + grad_score[:, None] * scaled
                gradient = layers.gradient(gradient, j, x, before, embedded, grad_embedded)
            return grad_scaled, gradient

        start = jnp.zeros((rows, size)), gradient
        grad_scaled, gradient = tile.for_groups(layers.packing, packed, group, start)
        tile.store(grad_queries, t, grad_scaled * scale_of(size))
        return gradient

    for t, (mlp, packing, packed) in enumerate(zip(mlps, packings, types, strict=True)):
        layers = Layers(options, mlp, packing)
        step = partial(attend, t, layers, packed)
        total = jax.lax.fori_loop(0, grid.tiles, step, layers.zero_gradient(grid.rows))
        store_partial(partials[t], total)


def _own_backward_kernel(
    options: Options,
    grid: Grid,
    mlp: Tree,
    me: Tree,
    source: Tree,
    grad_queries: Tree,
    grad: Tree,
    *partials: Tree,
) -> None:
    tiles, layers = grid.program_tiles(source), own_layers(options, mlp)
    size = mlp[2].shape[0]

    def step(k: Array, gradient: Tree) -> Tree:
        tile = tiles(k)
        x = tile.observed(me)
        before, query = layers(x, 0)
        grad_query = tile.load(grad, 0, size)
        for t in range(grad_queries.shape[0] // size):
            grad_query = grad_query + tile.load(grad_queries, t, size)
        return layers.gradient(gradient, 0, x, before, query, grad_query)

    total = jax.lax.fori_loop(0, grid.tiles, step, layers.zero_gradient(grid.rows))
    store_partial(partials, total)


def store_partial(partials: Tree, gradient: Tree) -> None:
    """The part of this program, at its place."""
    copies, second, bias = gradient
    here = pl.program_id(0)
    for j, first in enumerate(copies):
        partials[0][here, j] = first
    partials[1][here] = second
    partials[2][here] = bias.sum(0)


def scale_of(size: int) -> float:
    """Scales queries, for a softmax with powers of 2 instead of e."""
    return LOG2_E / size**0.5


class Layers:
    """Two fully connected layers with ReLU after each, for each entity of a packed group.

    Unless `rectified`, there is none after the second.
    """

    def __init__(self, options: Options, mlp: Tree, packing: Packing, rectified: bool = True):
        self.rectified = rectified
        weight, bias, second, last_bias = mlp
        self.options, self.packing = options, packing
        self.hidden, self.size = weight.shape[0], second.shape[0]
        outputs, inputs = jnp.arange(self.hidden)[None], jnp.arange(WIDTH)[:, None]

        def copy(j: int) -> Array:
            at = inputs - j * packing.step
            valid = (at >= 0) & (at < packing.features)
            values = plt.load(weight.at[outputs, at], mask=valid, other=0.0)
            values = jnp.where(at == packing.features, bias[...][None], values)
            return values.astype(options.dtype)

        self.first = [copy(j) for j in range(packing.per_group)]
        self.second = second[...].T.astype(options.dtype)
        self.bias = last_bias[...][None]

    def __call__(self, x: Float[Array, "rows 16"], j: int) -> tuple[Array, Array]:
        """For entity j of a group: the first layer before its ReLU, and the result."""
        dot = self.options.dot
        before = dot(x, self.first[j])
        y = dot(self.options.relu(before), self.second) + self.bias
        return before, jnp.maximum(y, 0.0) if self.rectified else y

    def zero_gradient(self, rows: int) -> Tree:
        return (
            [jnp.zeros((WIDTH, self.hidden)) for _ in self.first],
            jnp.zeros((self.hidden, self.size)),
            jnp.zeros((rows, self.size)),
        )

    def gradient(self, sums: Tree, j: int, x: Array, before: Array, y: Array, grad: Array) -> Tree:
        """Adds the gradient for rows with the result `y` and its cotangent `grad` to `sums`."""
        dot = self.options.dot
        copies, second, bias = sums
        if self.rectified:
            grad = jnp.where(y > 0, grad, 0.0)
        grad_hidden = jnp.where(before > 0, dot(grad, self.second, (1, 1)), 0.0)
        first = copies[j] + dot(x, grad_hidden, (0, 0))
        copies = [first if i == j else copy for i, copy in enumerate(copies)]
        second = second + dot(self.options.relu(before), grad, (0, 0))
        return copies, second, bias + grad


def own_layers(options: Options, mlp: Tree) -> Layers:
    """The layers for the agent itself."""
    return Layers(options, mlp, Packing(mlp[0].shape[1], 1))
