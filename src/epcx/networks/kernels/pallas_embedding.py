"""f(o, a) of all agents, from encoded observations, as one Pallas kernel for GPUs.

    acted    = relu(first actions + bias)
    embedded = relu(last [encoded, acted] + bias)

Only inputs and outputs reach memory; XLA would write every product to memory, and read it again for
every sum. Rows are agents and samples, as in the encoder:

    encoded [parts x 16, rows]    actions [actions, rows]    embedded [16, rows]
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, PyTree

from epcx.networks.kernels.pallas_encoder import WIDTH, Grid, Options, Tiling, Tree

MAX_ACTIONS = WIDTH
TILING = Tiling(rows=32, tiles=8, warps=1)


class Weights(NamedTuple):
    first: Float[Array, "16 actions"]
    first_bias: Float[Array, "16"]
    last: Float[Array, "16 inputs"]  # of `encoded`, then of the embedded actions
    last_bias: Float[Array, "16"]


def embed(
    options: Options,
    weights: Weights,
    encoded: Float[Array, "width rows"],
    actions: Float[Array, "actions rows"],
) -> Float[Array, "16 rows"]:
    """In the precision of `encoded`. Actions get no gradient."""
    rows = encoded.shape[1]
    padding = -rows % options.tiling.rows  # fills the last tile
    padded = [jnp.pad(x, ((0, 0), (0, padding))) for x in (encoded, actions)]
    return _embed(options, weights, *padded)[:, :rows]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _embed(options: Options, weights: Weights, encoded: Array, actions: Array) -> Array:
    size, rows = len(weights.last_bias), encoded.shape[1]
    grid = Grid(options.tiling, rows)
    return options.call(
        "embedding_forward",
        partial(_forward_kernel, options, grid),
        grid.programs,
        jax.ShapeDtypeStruct((size, rows), encoded.dtype),
    )(weights, encoded, actions)


def _forward(
    options: Options, weights: Weights, encoded: Array, actions: Array
) -> tuple[Array, PyTree]:
    embedded = _embed(options, weights, encoded, actions)
    return embedded, (weights, encoded, actions, embedded)


def _backward(options: Options, saved: PyTree, grad: Array) -> tuple[Weights, Array, None]:
    weights, encoded, *_ = saved
    size, rows = grad.shape
    grid = Grid(options.tiling, rows)
    # Every program writes its part of the gradients to its own place.
    shapes = (size, WIDTH), (size,), (encoded.shape[0] // WIDTH + 1, size, WIDTH), (size,)
    partial_shapes = [jax.ShapeDtypeStruct((grid.programs, *s), jnp.float32) for s in shapes]
    grad_encoded, partials = options.call(
        "embedding_backward",
        partial(_backward_kernel, options, grid),
        grid.programs,
        [jax.ShapeDtypeStruct(encoded.shape, encoded.dtype), partial_shapes],
    )(*saved, grad)
    first, first_bias, last, last_bias = (x.sum(0) for x in partials)
    first = first[:, : weights.first.shape[1]]
    last = last.swapaxes(0, 1).reshape(size, -1)
    return Weights(first, first_bias, last, last_bias), grad_encoded, None


_embed.defvjp(_forward, _backward)


def _forward_kernel(
    options: Options, grid: Grid, weights: Tree, encoded: Tree, actions: Tree, embedded: Tree
) -> None:
    tiles, layers = grid.program_tiles(), Layers(options, weights)

    def step(k: Array, _: None) -> None:
        rows = tiles(k).rows
        acted = jnp.maximum(layers.act(load_actions(actions, rows)), 0.0)
        sums = layers.bias + options.dot(layers.last[-1], acted)
        for i, weight in enumerate(layers.last[:-1]):
            sums = sums + options.dot(weight, encoded[part(i), rows])
        embedded[:, rows] = jnp.maximum(sums, 0.0).astype(embedded.dtype)

    jax.lax.fori_loop(0, grid.tiles, step, None)


def _backward_kernel(
    options: Options,
    grid: Grid,
    weights: Tree,
    encoded: Tree,
    actions: Tree,
    embedded: Tree,
    grad: Tree,
    grad_encoded: Tree,
    partials: Tree,
) -> None:
    tiles, layers, dot = grid.program_tiles(), Layers(options, weights), options.dot

    def step(k: Array, gradient: Tree) -> Tree:
        first, first_bias, last, last_bias = gradient
        rows = tiles(k).rows
        positive = embedded[:, rows].astype(jnp.float32) > 0
        grad_sums = jnp.where(positive, grad[:, rows].astype(jnp.float32), 0.0)
        chosen = load_actions(actions, rows)
        before = layers.act(chosen)
        grad_acted = jnp.where(before > 0, dot(layers.last[-1], grad_sums, (0, 0)), 0.0)
        inputs = [encoded[part(i), rows] for i in range(len(layers.last) - 1)]
        for i, weight in enumerate(layers.last[:-1]):
            grad_part = dot(weight, grad_sums, (0, 0))
            grad_encoded[part(i), rows] = grad_part.astype(grad_encoded.dtype)
        inputs.append(jnp.maximum(before, 0.0).astype(options.dtype))
        last = [sums + dot(grad_sums, x, (1, 1)) for sums, x in zip(last, inputs, strict=True)]
        return (
            first + dot(grad_acted, chosen, (1, 1)),
            first_bias + grad_acted.sum(1),
            last,
            last_bias + grad_sums.sum(1),
        )

    size = embedded.shape[0]
    square, line = jnp.zeros((size, WIDTH)), jnp.zeros(size)
    start = square, line, [square] * len(layers.last), line
    sums = jax.lax.fori_loop(0, grid.tiles, step, start)
    here = pl.program_id(0)
    partials[0][here], partials[1][here], partials[3][here] = sums[0], sums[1], sums[3]
    for i, values in enumerate(sums[2]):
        partials[2][here, i] = values


class Layers:
    """The weights on chip."""

    def __init__(self, options: Options, weights: Tree):
        first, first_bias, last, last_bias = weights
        size, inputs = first.shape
        outputs, at = jnp.arange(size)[:, None], jnp.arange(WIDTH)[None]
        padded = plt.load(first.at[outputs, at], mask=at < inputs, other=0.0)
        self.options = options
        self.first, self.first_bias = padded.astype(options.dtype), first_bias[...][:, None]
        parts = range(last.shape[1] // WIDTH)
        self.last = [last[:, part(i)].astype(options.dtype) for i in parts]
        self.bias = last_bias[...][:, None]

    def act(self, actions: Array) -> Array:
        """The layer for actions before its ReLU."""
        return self.options.dot(self.first, actions) + self.first_bias


def part(number: int) -> Tree:
    return pl.ds(number * WIDTH, WIDTH)


def load_actions(actions: Tree, rows: Tree) -> Float[Array, "16 rows"]:
    """Padded with zeros: tensor cores sum over at least 16 numbers."""
    at = jnp.arange(WIDTH)[:, None]
    columns = rows.start + jnp.arange(rows.size)[None]
    return plt.load(actions.at[at, columns], mask=at < actions.shape[0], other=0.0)
