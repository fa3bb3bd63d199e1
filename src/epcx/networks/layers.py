"""Fully connected layers, LayerNorm, and the masked attention of the paper's equations 4 and 5.

Arrays have their features FIRST and the batch last: matrix products then have long rows, and what
is done entity by entity runs along the batch. On a CPU this is several times faster than features
last, where the inner loops are 16 or 32 long. The gradients below are written out to keep that
layout; they are what automatic differentiation gives.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

HIDDEN = 32  # sizes of hidden layers and of embeddings in the paper's networks
EMBEDDING = 16
MAX_UNROLLED = 64  # slots: the compiled program grows with them
LOWEST = -1e30  # stands in for the highest score of an empty set
EPSILON = 1e-6  # of LayerNorm, which keeps zeros at zero


class Linear(eqx.Module):
    """W x + b, with Glorot's uniform initial weights."""

    weight: Float[Array, "*stack outputs inputs"]
    bias: Float[Array, "*stack outputs"] | None

    def __init__(self, key: Key[Array, ""], inputs: int, outputs: int, bias: bool = True):
        limit = (6 / (inputs + outputs)) ** 0.5
        self.weight = jax.random.uniform(key, (outputs, inputs), minval=-limit, maxval=limit)
        self.bias = jnp.zeros(outputs) if bias else None

    def __call__(self, x: Float[Array, "inputs *rows"]) -> Float[Array, "outputs *rows"]:
        inputs, *rows = x.shape
        y = project(self.weight, x.reshape(inputs, math.prod(rows)))
        if self.bias is not None:
            y = y + self.bias[:, None]
        return y.reshape(len(y), *rows)


def weights_and_biases(*layers: Linear) -> tuple[Array, ...]:
    """Weight and bias of each layer in turn, as kernels take them."""
    arrays: list[Array] = []
    for layer in layers:
        assert layer.bias is not None
        arrays += [layer.weight, layer.bias]
    return tuple(arrays)


def flatten_rows(tree: PyTree, axes: int) -> PyTree:
    """Joins the last axes to a single long one, along which loops run."""

    def flatten(x: Array) -> Array:
        first = x.ndim - axes
        return x.reshape(*x.shape[:first], math.prod(x.shape[first:]))

    return jax.tree.map(flatten, tree)


def take_rows(tree: PyTree, index: Int[Array, "rows"]) -> PyTree:
    """Some rows, which are the last axis: on a CPU the fastest gather."""
    return jax.tree.map(lambda x: jnp.take(x, index, axis=-1, mode="clip"), tree)


@jax.custom_vjp
def project(
    weight: Float[Array, "outputs inputs"], x: Float[Array, "inputs rows"]
) -> Float[Array, "outputs rows"]:
    """The product, in float32. Weights are cast to the type of `x`, on a GPU maybe bfloat16."""
    return _product(weight.astype(x.dtype), x, 1, 0)


def _product(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    dimensions = ((axis_a,), (axis_b,)), ((), ())
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _project_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    weight, x = saved
    grad = grad.astype(x.dtype)
    grad_x = _product(weight.astype(x.dtype), grad, 0, 0)
    return _product(grad, x, 1, 1), grad_x.astype(x.dtype)


project.defvjp(lambda weight, x: (project(weight, x), (weight, x)), _project_backward)


class MLP(eqx.Module):
    """Fully connected layers with ReLU, or leaky ReLU, between them; the last one is linear."""

    layers: tuple[Linear, ...]
    leaky: bool = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], *sizes: int, leaky: bool = False):
        self.leaky = leaky
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
        self.layers = tuple(Linear(k, i, o) for k, i, o in pairs)

    def __call__(self, x: Float[Array, "inputs *rows"]) -> Float[Array, "outputs *rows"]:
        for layer in self.layers[:-1]:
            x = jax.nn.leaky_relu(layer(x)) if self.leaky else jax.nn.relu(layer(x))
        return self.layers[-1](x)


def attention_weights(
    query: Float[Array, "size *rows"],
    keys: Float[Array, "size slots *rows"],
    mask: Bool[Array, "slots *rows"],
) -> Float[Array, "slots *rows"]:
    """The alpha of equation 5, scaled: softmax over the slots where `mask` holds, else zeros."""
    # Ends with a division: XLA recomputes anything cheaper inside whatever uses the result.
    scores = jnp.where(mask, dot(query, keys), -jnp.inf) / jnp.where(
        mask, query.shape[0] ** 0.5, 1.0
    )
    weights = jnp.exp(scores - scores.max(0, initial=LOWEST))
    return weights / jnp.maximum(weights.sum(0), 1e-30)


@jax.custom_vjp
def attend(
    query: Float[Array, "size *rows"],
    keys: Float[Array, "size slots *rows"],
    values: Float[Array, "width slots *rows"],
    mask: Bool[Array, "slots *rows"],
) -> Float[Array, "width *rows"]:
    """Equation 4 with scaled dot products: values weighted over the slots where `mask` holds.

    Where the mask holds nowhere, the result is zero.
    """
    return weighted_sum(attention_weights(query, keys, mask), values)


def dot(
    a: Float[Array, "size *rows"], b: Float[Array, "size slots *rows"]
) -> Float[Array, "slots *rows"]:
    """The sum of products over the features, unrolled: on a CPU it is one pass over `b`."""
    first, *rest = zip(jnp.unstack(a), jnp.unstack(b), strict=True)
    return sum((x * y for x, y in rest), start=first[0] * first[1])


def weighted_sum(
    weights: Float[Array, "slots *rows"], values: Float[Array, "width slots *rows"]
) -> Float[Array, "width *rows"]:
    """The sum over the slots, unrolled likewise where they are few."""
    if not 0 < len(weights) <= MAX_UNROLLED:
        return (weights * values).sum(1)
    first, *rest = zip(jnp.unstack(weights), jnp.unstack(values, axis=1), strict=True)
    return sum((x * y for x, y in rest), start=first[0] * first[1])


Saved = tuple[Array, Array, Array, Array]


def _attend_forward(query: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Saved]:
    weights = attention_weights(query, keys, mask)
    return weighted_sum(weights, values), (query, keys, values, weights)


def _attend_backward(saved: Saved, grad: Array) -> tuple[Array, Array, Array, None]:
    query, keys, values, weights = saved
    grad_weights = dot(grad, values)
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(0)) / query.shape[0] ** 0.5
    grad_query = weighted_sum(grad_scores, keys)
    return grad_query, grad_scores * query[:, None], weights * grad[:, None], None


attend.defvjp(_attend_forward, _attend_backward)


def normalise(x: Float[Array, "size *rows"]) -> Float[Array, "size *rows"]:
    """LayerNorm over the features, without learned scale and shift."""
    x = x - x.mean(0)
    return x * jax.lax.rsqrt((x * x).mean(0) + EPSILON)
