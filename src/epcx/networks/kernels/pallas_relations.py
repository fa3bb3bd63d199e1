"""A block of self-attention and an MLP as one Pallas kernel for GPUs, forward and backward.

What many agents see are many small sets of tokens. A tile holds as many whole sets as fit into 64
or 128 tokens, and a token attends only to those of its own set. So all products are between tiles
of tokens and small matrices, on tensor cores; queries, keys, weights of attention and hidden units
never reach memory, and the backward pass recomputes them. Only what is between attention and MLP is
kept for it.

    tokens [rows, tokens, size], mask [rows, tokens]
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int, PyTree

from epcx.networks.kernels.pallas_encoder import Options, Tiling, Tree, scale_of
from epcx.networks.layers import EPSILON, LOWEST

TILINGS = (
    Tiling(rows=64, tiles=8, warps=4, stages=1, programs=16),
    Tiling(rows=128, tiles=4, warps=8, stages=1, programs=16),
)
MAX_TOKENS = TILINGS[-1].rows


class Weights(NamedTuple):
    """Of a block; queries, keys and values of all heads follow each other along the outputs."""

    query: Float[Array, "size size"]
    key: Float[Array, "size size"]
    value: Float[Array, "size size"]
    output: Float[Array, "size size"]
    first: Float[Array, "hidden size"]
    first_bias: Float[Array, "hidden"]
    second: Float[Array, "size hidden"]
    second_bias: Float[Array, "size"]


def relate(
    options: Options,
    heads: int,
    weights: Weights,
    tokens: Float[Array, "rows tokens size"],
    mask: Int[Array, "rows tokens"],
) -> Float[Array, "rows tokens size"]:
    """`plain.relate`, for at most `MAX_TOKENS` tokens, with features last."""
    rows, slots, size = tokens.shape
    tiling = next(t for t in TILINGS if slots <= t.rows)
    layout = Layout(replace(options, tiling=tiling), slots, heads, rows * slots)
    return _relate(layout, weights, tokens.reshape(-1, size), mask.reshape(-1)).reshape(
        tokens.shape
    )


class Layout(NamedTuple):
    """How sets of tokens are laid out in tiles."""

    options: Options
    slots: int  # tokens of a set
    heads: int
    tokens: int  # of all sets

    @property
    def used(self) -> int:
        """Tokens of a tile: those of whole sets."""
        return self.options.tiling.rows // self.slots * self.slots

    @property
    def tiles(self) -> int:
        """Of a program; the last ones may be empty."""
        return self.options.tiling.per_program(pl.cdiv(self.tokens, self.used))

    @property
    def programs(self) -> int:
        return pl.cdiv(self.tokens, self.used * self.tiles)

    def call(self, name: str, kernel: Callable[..., None], out_shape: PyTree) -> Callable[..., Any]:
        return self.options.call(name, partial(kernel, self), self.programs, out_shape)

    def program_tiles(self, mask: Tree) -> Callable[[Any], "Tile"]:
        """The tiles of this program, by number."""
        first = pl.program_id(0) * self.tiles
        within = jnp.arange(self.options.tiling.rows)
        members = within // self.slots
        together = members[:, None] == members[None]

        def tile(number: Any) -> Tile:
            begin = (first + number) * self.used
            place = pl.ds(begin, self.options.tiling.rows)
            own = (within < self.used) & (begin + within < self.tokens)
            there = plt.load(mask.at[place], mask=own, other=0) != 0
            return Tile(place, own[:, None], together & there[None])

        return tile


class Tile(NamedTuple):
    """Some sets of tokens."""

    place: Any  # where its tokens begin, and as many as a tile may have
    own: Any  # [tokens, 1]: which of them it has
    visible: Any  # [tokens, tokens]: which attend to which

    def load(self, ref: Tree) -> Float[Array, "tokens size"]:
        mask = jnp.broadcast_to(self.own, (len(self.own), ref.shape[1]))
        return plt.load(ref.at[self.place, :], mask=mask, other=0.0).astype(jnp.float32)

    def store(self, ref: Tree, values: Float[Array, "tokens size"]) -> None:
        mask = jnp.broadcast_to(self.own, values.shape)
        plt.store(ref.at[self.place, :], values.astype(ref.dtype), mask=mask)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _relate(layout: Layout, weights: Weights, tokens: Array, mask: Array) -> Array:
    return _run(layout, weights, tokens, mask, save=False)[0]


def _run(
    layout: Layout, weights: Weights, tokens: Array, mask: Array, save: bool
) -> Sequence[Array]:
    """The result, and what the backward pass needs."""
    shapes = [jax.ShapeDtypeStruct(tokens.shape, tokens.dtype)] * (2 if save else 1)
    return layout.call("relations_forward", _forward_kernel, shapes)(weights, tokens, mask)


def _forward(
    layout: Layout, weights: Weights, tokens: Array, mask: Array
) -> tuple[Array, tuple[Weights, Array, Array, Array]]:
    related, middle = _run(layout, weights, tokens, mask, save=True)
    return related, (weights, tokens, mask, middle)


def _backward(layout: Layout, saved: PyTree, grad: Array) -> tuple[Weights, Array, None]:
    weights, tokens, *_ = saved
    # Every program writes its part of the gradient to its own place.
    partials = [jax.ShapeDtypeStruct((layout.programs, *x.shape), jnp.float32) for x in weights]
    shapes = jax.ShapeDtypeStruct(tokens.shape, tokens.dtype), partials
    call = layout.call("relations_backward", _backward_kernel, shapes)
    grad_tokens, grad_weights = call(*saved, grad)
    return Weights(*(x.sum(0) for x in grad_weights)), grad_tokens, None


_relate.defvjp(_forward, _backward)


def _forward_kernel(
    layout: Layout, weights: Tree, tokens: Tree, mask: Tree, out: Tree, *saved: Tree
) -> None:
    block, tiles = Block(layout, weights), layout.program_tiles(mask)

    def step(number: Any, _: None) -> None:
        tile = tiles(number)
        middle = block.after_attention(tile.load(tokens), tile.visible)
        middle = middle.astype(out.dtype).astype(jnp.float32)  # as the backward pass reads it
        for ref in saved:
            tile.store(ref, middle)
        tile.store(out, block.after_mlp(middle))

    jax.lax.fori_loop(0, layout.tiles, step, None)


def _backward_kernel(
    layout: Layout,
    weights: Tree,
    tokens: Tree,
    mask: Tree,
    middle: Tree,
    grad: Tree,
    grad_tokens: Tree,
    partials: Tree,
) -> None:
    block, tiles = Block(layout, weights), layout.program_tiles(mask)

    def step(number: Any, sums: Tree) -> Tree:
        tile = tiles(number)
        of_mlp, grad_middle = block.mlp_gradient(tile.load(middle), tile.load(grad))
        of_heads, grad_x = block.attention_gradient(tile.load(tokens), tile.visible, grad_middle)
        tile.store(grad_tokens, grad_x)
        return jax.tree.map(jnp.add, sums, (of_heads, of_mlp))

    of_heads, of_mlp = jax.lax.fori_loop(0, layout.tiles, step, block.zero_gradient())
    here = pl.program_id(0)
    for head, parts in enumerate(of_heads):
        rows = block.head(head)
        for ref, part in zip(partials[:3], parts[:3], strict=True):
            ref[here, rows, :] = part
        partials[3][here, :, rows] = parts[3]
    for ref, part in zip(partials[4:], of_mlp, strict=True):
        ref[here] = part


class Block:
    """The block inside a kernel; tiles have tokens first."""

    def __init__(self, layout: Layout, weights: Tree):
        self.weights = Weights(*weights)
        self.dot, self.heads = layout.options.dot, layout.heads
        self.size = self.weights.query.shape[0] // layout.heads  # of a head

    def head(self, number: int) -> Any:
        return pl.ds(number * self.size, self.size)

    def attend(self, normal: Array, visible: Array, head: int) -> tuple[Array, ...]:
        """Queries, keys, values, and the weights among tokens, of one head."""
        rows = self.head(head)
        query, key, value = (
            self.dot(normal, weight[rows, :], (1, 1)) for weight in self.weights[:3]
        )
        scores = jnp.where(visible, self.dot(query * scale_of(self.size), key, (1, 1)), LOWEST)
        powers = jnp.where(visible, jnp.exp2(scores - scores.max(1)[:, None]), 0.0)
        return query, key, value, powers / jnp.maximum(powers.sum(1), 1e-30)[:, None]

    def after_attention(self, x: Array, visible: Array) -> Array:
        normal, _ = normalised(x)
        for head in range(self.heads):
            *_, value, weights = self.attend(normal, visible, head)
            output = self.weights.output[:, self.head(head)]
            x = x + self.dot(self.dot(weights, value), output, (1, 1))
        return x

    def hidden(self, normal: Array) -> Array:
        before = (
            self.dot(normal, self.weights.first[...], (1, 1)) + self.weights.first_bias[...][None]
        )
        return jnp.maximum(before, 0.0)

    def after_mlp(self, x: Array) -> Array:
        hidden = self.hidden(normalised(x)[0])
        return (
            x
            + self.dot(hidden, self.weights.second[...], (1, 1))
            + self.weights.second_bias[...][None]
        )

    def mlp_gradient(self, x: Array, grad: Array) -> tuple[Tree, Array]:
        """Gradients of the weights, and of the input, for the cotangent of the output."""
        normal, rate = normalised(x)
        hidden = self.hidden(normal)
        grad_hidden = jnp.where(hidden > 0, self.dot(grad, self.weights.second[...]), 0.0)
        grad_normal = self.dot(grad_hidden, self.weights.first[...])
        of_weights = (
            self.dot(grad_hidden, normal, (0, 0)),
            grad_hidden.sum(0),
            self.dot(grad, hidden, (0, 0)),
            grad.sum(0),
        )
        return of_weights, grad + normalised_gradient(normal, rate, grad_normal)

    def attention_gradient(self, x: Array, visible: Array, grad: Array) -> tuple[list[Tree], Array]:
        normal, rate = normalised(x)
        grad_normal, of_heads = jnp.zeros(normal.shape), []
        scale = self.size**-0.5
        for head in range(self.heads):
            rows = self.head(head)
            query, key, value, weights = self.attend(normal, visible, head)
            of_output = self.dot(grad, self.dot(weights, value), (0, 0))
            grad_mixed = self.dot(grad, self.weights.output[:, rows])
            grad_weights = self.dot(grad_mixed, value, (1, 1))
            average = (grad_weights * weights).sum(1)[:, None]
            grad_scores = weights * (grad_weights - average) * scale
            grads = (
                self.dot(grad_scores, key),
                self.dot(grad_scores, query, (0, 0)),
                self.dot(weights, grad_mixed, (0, 0)),
            )
            for part, weight in zip(grads, self.weights[:3], strict=True):
                grad_normal = grad_normal + self.dot(part, weight[rows, :])
            of_heads.append([*(self.dot(part, normal, (0, 0)) for part in grads), of_output])
        return of_heads, grad + normalised_gradient(normal, rate, grad_normal)

    def zero_gradient(self) -> Tree:
        size = self.heads * self.size
        head = [jnp.zeros((self.size, size)) for _ in range(3)] + [jnp.zeros((size, self.size))]
        return [head] * self.heads, tuple(jnp.zeros(ref.shape) for ref in self.weights[4:])


def normalised(x: Float[Array, "tokens size"]) -> tuple[Array, Array]:
    """LayerNorm, and what it multiplies by."""
    x = x - x.mean(1)[:, None]
    rate = jax.lax.rsqrt((x * x).mean(1) + EPSILON)[:, None]
    return x * rate, rate


def normalised_gradient(normal: Array, rate: Array, grad: Array) -> Array:
    along = (grad * normal).mean(1)[:, None]
    return rate * (grad - grad.mean(1)[:, None] - normal * along)
