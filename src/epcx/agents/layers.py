"""Fully connected layers, and the masked attention of the paper's equations 4 and 5.

Arrays have their features FIRST and the batch last: matrix products then have long rows, and what
is done entity by entity runs along the batch. On a CPU this is several times faster than features
last, where the inner loops are 16 or 32 long. The gradients below are written out to keep that
layout; they are what automatic differentiation gives.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epcx.agents.kernels import on_gpu

HIDDEN = 32  # units of the layers inside, and of what they make, in the paper's networks
EMBEDDING = 16
MOST_UNROLLED = 64  # programs grow with it
LOWEST = -1e30  # stands in for the highest score of an empty set
EPSILON = 1e-6  # keeps the normal of nothing at nothing


class Linear(eqx.Module):
    """W x + b, with Glorot's uniform initial weights."""

    weight: Float[Array, "..."]  # [outputs, inputs]
    bias: Float[Array, "..."] | None  # [outputs]

    def __init__(self, key: Array, inputs: int, outputs: int, bias: bool = True):
        limit = (6 / (inputs + outputs)) ** 0.5
        self.weight = jax.random.uniform(key, (outputs, inputs), minval=-limit, maxval=limit)
        self.bias = jnp.zeros(outputs) if bias else None

    def __call__(self, *parts: Float[Array, "_ *rows"]) -> Float[Array, "outputs *rows"]:
        """Of x, or of its parts, which only a CPU needs to put together."""
        rows = parts[0].shape[1:]
        inputs = parts if on_gpu() else (jnp.concatenate(parts),) if len(parts) > 1 else parts
        products, first = [], 0
        for x in inputs:
            weight = self.weight[:, first : first + len(x)]
            products.append(project(weight, x.reshape(len(x), math.prod(rows))))
            first += len(x)
        y = sum(products[1:], start=products[0])
        if self.bias is not None:
            y = y + self.bias[:, None]
        return y.reshape(len(y), *rows)


@jax.custom_vjp
def project(
    weight: Float[Array, "outputs inputs"], x: Float[Array, "inputs rows"]
) -> Float[Array, "outputs rows"]:
    """The product, in float32. Weights are as precise as `x`, which a GPU may have in bfloat16."""
    return _product(weight.astype(x.dtype), x, 1, 0)


def _product(a: Array, b: Array, over_a: int, over_b: int) -> Array:
    dimensions = ((over_a,), (over_b,)), ((), ())
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _project_backwards(saved: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    weight, x = saved
    slope = slope.astype(x.dtype)
    to_x = _product(weight.astype(x.dtype), slope, 0, 0)
    return _product(slope, x, 1, 1), to_x.astype(x.dtype)


project.defvjp(lambda weight, x: (project(weight, x), (weight, x)), _project_backwards)


class MLP(eqx.Module):
    """Fully connected layers with ReLU, maybe leaky, between them; the last one is linear."""

    layers: tuple[Linear, ...]
    leaky: bool = eqx.field(static=True)

    def __init__(self, key: Array, *sizes: int, leaky: bool = False):
        self.leaky = leaky
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
        self.layers = tuple(Linear(k, i, o) for k, i, o in pairs)

    def __call__(self, x: Float[Array, "inputs *rows"]) -> Float[Array, "outputs *rows"]:
        for layer in self.layers[:-1]:
            x = jax.nn.leaky_relu(layer(x)) if self.leaky else jax.nn.relu(layer(x))
        return self.layers[-1](x)


def attend(
    query: Float[Array, "size *rows"],
    keys: Float[Array, "size slots *rows"],
    values: Float[Array, "width slots *rows"],
    mask: Bool[Array, "slots *rows"],
) -> tuple[Float[Array, "width *rows"], Float[Array, "slots *rows"]]:
    """Scaled dot-product attention among the slots where `mask` holds; the values and weights.

    Where the mask holds nowhere, both are zero. No gradient flows through the weights returned.
    """
    weights = attention_weights(*jax.lax.stop_gradient((query, keys)), mask)
    return _mix(query, keys, values, mask), weights


def attention_weights(query: Array, keys: Array, mask: Array) -> Float[Array, "slots *rows"]:
    # Ends with a division: XLA recomputes anything cheaper inside whatever uses the result.
    scores = jnp.where(mask, dot(query, keys), -jnp.inf) / jnp.where(
        mask, query.shape[0] ** 0.5, 1.0
    )
    weights = jnp.exp(scores - scores.max(0, initial=LOWEST))
    return weights / jnp.maximum(weights.sum(0), 1e-30)


def dot(a: Float[Array, "size *rows"], b: Float[Array, "size slots *rows"]) -> Array:
    """The sum of products over the features. Written out, it is one pass over `b` on a CPU."""
    first, *rest = zip(jnp.unstack(a), jnp.unstack(b), strict=True)
    return sum((x * y for x, y in rest), start=first[0] * first[1])


def weigh(weights: Float[Array, "slots *rows"], values: Array) -> Float[Array, "width *rows"]:
    """The weighted sum over the slots, written out likewise where they are few."""
    if not 0 < len(weights) <= MOST_UNROLLED:
        return (weights * values).sum(1)
    first, *rest = zip(jnp.unstack(weights), jnp.unstack(values, axis=1), strict=True)
    return sum((x * y for x, y in rest), start=first[0] * first[1])


@jax.custom_vjp
def _mix(query: Array, keys: Array, values: Array, mask: Array) -> Array:
    return _mix_forwards(query, keys, values, mask)[0]


def _mix_forwards(query: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Any]:
    weights = attention_weights(query, keys, mask)
    return weigh(weights, values), (query, keys, values, weights)


def _mix_backwards(saved: Any, slope: Array) -> tuple[Array, Array, Array, None]:
    query, keys, values, weights = saved
    to_weights = dot(slope, values)
    to_scores = weights * (to_weights - (weights * to_weights).sum(0)) / query.shape[0] ** 0.5
    to_query = weigh(to_scores, keys)
    return to_query, to_scores * query[:, None], weights * slope[:, None], None


_mix.defvjp(_mix_forwards, _mix_backwards)


def normalise(x: Float[Array, "size *rows"]) -> Float[Array, "size *rows"]:
    """LayerNorm over the features, without learned scale and shift."""
    x = x - x.mean(0)
    return x * jax.lax.rsqrt((x * x).mean(0) + EPSILON)
