"""The reference implementation in plain JAX: any sizes, any device, all gradients."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.games import Observation
from epcx.networks import layers
from epcx.networks.layers import LOWEST, MLP, Linear, normalise, take_rows


def encode(
    own: MLP,
    entities: Mapping[str, MLP],
    view: Observation,
    index: Int[Array, "rows"] | None = None,
) -> Float[Array, "width rows"]:
    """The own embedding and one type embedding per entity type, sorted by name.

    `view` has a single axis of rows, which are agents and samples; `index` chooses among them.
    """
    mine, seen = view.own, view.entities
    if index is not None:
        mine, seen = take_rows((mine, seen), index)
    query = jax.nn.relu(own(mine))
    parts = [query]
    for name in sorted(entities):
        features, mask = seen[name]
        embedded = jax.nn.relu(entities[name](features))
        # LayerNorm keeps the zeros of an empty set at zero.
        parts.append(jax.nn.relu(normalise(layers.attend(query, embedded, embedded, mask))))
    return jnp.concatenate(parts)


def embed(
    action: Linear,
    combine: Linear,
    encoded: Float[Array, "width *rows"],
    actions: Float[Array, "actions *rows"],
) -> Float[Array, "size *rows"]:
    """f(o, a) of encoded observations and actions."""
    acted = jax.nn.relu(action(actions))
    return jax.nn.relu(combine(jnp.concatenate([encoded, acted])))


def attend(
    query: Float[Array, "size batch"],
    key: Linear,
    keys: Float[Array, "size agents batch"],
    values: Float[Array, "size agents batch"],
    groups: Sequence[Bool[Array, "agents batch"]],
) -> list[Float[Array, "size batch"]]:
    """The values that `query` attends to, in each group of agents; keys are key(values)."""
    return [layers.attend(query, keys, values, group) for group in groups]


def mix(
    query: Float[Array, "size rows"],
    values: Float[Array, "size slots rows"],
    mask: Bool[Array, "slots rows"],
) -> Float[Array, "size rows"]:
    """The values that `query` attends to, with the values themselves as keys."""
    return layers.attend(query, values, values, mask)


@runtime_checkable
class SelfAttention(Protocol):
    """The weights of a block of self-attention and an MLP."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    mlp: MLP


def relate(
    heads: int,
    block: SelfAttention,
    tokens: Float[Array, "size tokens rows"],
    mask: Bool[Array, "tokens rows"],
) -> Float[Array, "size tokens rows"]:
    """Tokens after self-attention among those where `mask` holds, and after an MLP.

    Each of the two has a normalised input, and is added to what there was. The mask holds for one
    token of a set at least.
    """
    normal = normalise(tokens)
    parts = block.query(normal), block.key(normal), block.value(normal)
    query, key, value = (x.reshape(heads, -1, *x.shape[1:]) for x in parts)
    scores = jnp.einsum("hesr,hetr->hstr", query, key) / query.shape[1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, LOWEST), 2)
    mixed = jnp.einsum("hstr,hetr->hesr", weights, value)
    tokens = tokens + block.output(mixed.reshape(tokens.shape))
    return tokens + block.mlp(normalise(tokens))
