"""f(o, a) of everybody, from encoded observations, as one kernel for GPUs: forwards, and backwards.

    acted    = relu(first actions + bias)
    embedded = relu(last [encoded, acted] + bias)

Of all this only the two ends reach memory; XLA would write down every product, and read it again
for every sum. Rows are agents and samples, as in the encoder:

    encoded [parts x 16, rows]    actions [5, rows]    embedded [16, rows]
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float

from epcx.agents.kernels.encoder import WIDTH, Grid, Options, Tiling

TILING = Tiling(rows=32, tiles=8, warps=1)


class Weights(NamedTuple):
    first: Any  # [16, 5], of actions
    first_bias: Any
    last: Any  # [16, parts x 16 + 16]: those of the actions come last
    last_bias: Any


def embed(
    options: Options,
    weights: Weights,
    encoded: Float[Array, "width rows"],
    actions: Float[Array, "5 rows"],
) -> Float[Array, "16 rows"]:
    """As precise as what is encoded. No gradient goes to actions."""
    number = encoded.shape[1]
    more = -number % options.tiling.rows  # to fill the last tile
    widened = [jnp.pad(x, ((0, 0), (0, more))) for x in (encoded, actions)]
    return _embed(options, weights, *widened)[:, :number]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _embed(options: Options, weights: Weights, encoded: Array, actions: Array) -> Array:
    size, rows = len(weights.last_bias), encoded.shape[1]
    grid = Grid(options.tiling, rows)
    return options.call(
        "embedding_forwards",
        partial(_forwards_kernel, options, grid),
        grid,
        jax.ShapeDtypeStruct((size, rows), encoded.dtype),
    )(weights, encoded, actions)


def _forwards(
    options: Options, weights: Weights, encoded: Array, actions: Array
) -> tuple[Array, Any]:
    embedded = _embed(options, weights, encoded, actions)
    return embedded, (weights, encoded, actions, embedded)


def _backwards(options: Options, saved: Any, slope: Array) -> tuple[Weights, Array, None]:
    weights, encoded, *_ = saved
    size, rows = slope.shape
    grid = Grid(options.tiling, rows)
    # Every program writes what it adds to the gradients in its own place.
    shapes = (size, WIDTH), (size,), (encoded.shape[0] // WIDTH + 1, size, WIDTH), (size,)
    shares: Any = [jax.ShapeDtypeStruct((grid.programs, *shape), jnp.float32) for shape in shapes]
    to_encoded, share = options.call(
        "embedding_backwards",
        partial(_backwards_kernel, options, grid),
        grid,
        [jax.ShapeDtypeStruct(encoded.shape, encoded.dtype), shares],
    )(*saved, slope)
    first, first_bias, last, last_bias = (x.sum(0) for x in share)
    first = first[:, : weights.first.shape[1]]
    last = last.swapaxes(0, 1).reshape(size, -1)
    return Weights(first, first_bias, last, last_bias), to_encoded, None


_embed.defvjp(_forwards, _backwards)


def _forwards_kernel(
    options: Options, grid: Grid, weights: Any, encoded: Any, actions: Any, embedded: Any
) -> None:
    tiles, layers = grid.mine(), Layers(options, weights)

    def one(k: Array, _: None) -> None:
        rows = tiles(k).rows
        acted = jnp.maximum(layers.act(load_actions(actions, rows)), 0.0)
        sums = layers.bias + options.dot(layers.last[-1], acted)
        for i, weight in enumerate(layers.last[:-1]):
            sums = sums + options.dot(weight, encoded[part(i), rows])
        embedded[:, rows] = jnp.maximum(sums, 0.0).astype(embedded.dtype)

    jax.lax.fori_loop(0, grid.tiles, one, None)


def _backwards_kernel(
    options: Options,
    grid: Grid,
    weights: Any,
    encoded: Any,
    actions: Any,
    embedded: Any,
    slope: Any,
    to_encoded: Any,
    share: Any,
) -> None:
    tiles, layers, dot = grid.mine(), Layers(options, weights), options.dot

    def one(k: Array, gradient: Any) -> Any:
        first, first_bias, last, last_bias = gradient
        rows = tiles(k).rows
        positive = embedded[:, rows].astype(jnp.float32) > 0
        above = jnp.where(positive, slope[:, rows].astype(jnp.float32), 0.0)
        done = load_actions(actions, rows)
        before = layers.act(done)
        to_act = jnp.where(before > 0, dot(layers.last[-1], above, (0, 0)), 0.0)
        below = [encoded[part(i), rows] for i in range(len(layers.last) - 1)]
        for i, weight in enumerate(layers.last[:-1]):
            to_part = dot(weight, above, (0, 0))
            to_encoded[part(i), rows] = to_part.astype(to_encoded.dtype)
        below.append(jnp.maximum(before, 0.0).astype(options.dtype))
        last = [sums + dot(above, x, (1, 1)) for sums, x in zip(last, below, strict=True)]
        return (
            first + dot(to_act, done, (1, 1)),
            first_bias + to_act.sum(1),
            last,
            last_bias + above.sum(1),
        )

    size = embedded.shape[0]
    square, line = jnp.zeros((size, WIDTH)), jnp.zeros(size)
    nothing = square, line, [square] * len(layers.last), line
    sums = jax.lax.fori_loop(0, grid.tiles, one, nothing)
    here = pl.program_id(0)
    share[0][here], share[1][here], share[3][here] = sums[0], sums[1], sums[3]
    for i, values in enumerate(sums[2]):
        share[2][here, i] = values


class Layers:
    """The weights on chip."""

    def __init__(self, options: Options, weights: Any):
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
        """The layer of actions before its ReLU."""
        return self.options.dot(self.first, actions) + self.first_bias


def part(number: int) -> Any:
    return pl.ds(number * WIDTH, WIDTH)


def load_actions(actions: Any, rows: Any) -> Float[Array, "16 rows"]:
    """With zeros below them: tensor cores sum over 16 numbers at least."""
    at = jnp.arange(WIDTH)[:, None]
    columns = rows.start + jnp.arange(rows.size)[None]
    return plt.load(actions.at[at, columns], mask=at < actions.shape[0], other=0.0)
