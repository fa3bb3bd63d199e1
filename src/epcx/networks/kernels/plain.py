"""The reference implementation in plain JAX: any sizes, any device, all gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.games import Observation
from epcx.networks import layers
from epcx.networks.layers import LOWEST, MLP, Linear, normalise, project, take_rows


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


@runtime_checkable
class SelfAttention(Protocol):
    """The weights of a block of self-attention and an MLP."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    mlp: MLP


@runtime_checkable
class RelationalWeights(Protocol):
    """MLPs that make tokens of what an agent sees, and the blocks that relate these."""

    own: MLP
    entities: Mapping[str, MLP]
    blocks: Sequence[SelfAttention]


def encode_relations(
    heads: int, encoder: RelationalWeights, view: Observation
) -> Float[Array, "size rows"]:
    """The agent's own token after all blocks, normalised; `view` has a single axis of rows."""
    own = encoder.own(view.own)[:, None]
    tokens, masks = [own], [jnp.ones(own.shape[1:], bool)]
    for name in sorted(encoder.entities):
        features, there = view.entities[name]
        tokens.append(encoder.entities[name](features))
        masks.append(there)
    x, mask = jnp.concatenate(tokens, 1), jnp.concatenate(masks)
    *blocks, last = encoder.blocks
    for block in blocks:
        x = relate(heads, block, x, mask)
    normal, width = normalise(x), len(x) ** 0.5  # by which `layers.attend` divides

    def attend(queries: Array) -> Array:
        return jnp.stack([layers.attend(width * q, normal, normal, mask) for q in queries])

    return last_block(heads, last, x[:, 0], attend)


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


def last_block(
    heads: int,
    block: SelfAttention,
    first: Float[Array, "size rows"],
    attend: Callable[[Float[Array, "heads size rows"]], Float[Array, "heads size rows"]],
) -> Float[Array, "size rows"]:
    """The last block, for the first token of every set only, normalised.

    `attend` gives what queries attend to among the normalised tokens. Keys and values are linear,
    so that no token has any: q . (W_k x) = (W_k^T q) . x, and the mean of W_v x is W_v times the
    mean of x.
    """

    def by_heads(x: Array) -> Float[Array, "heads _ _"]:
        return x.reshape(heads, -1, x.shape[-1])

    queries = by_heads(block.query(normalise(first)))
    keys, values = (by_heads(x.weight) for x in (block.key, block.value))
    scale = queries.shape[1] ** -0.5
    asked = [scale * project(key.T, query) for key, query in zip(keys, queries, strict=True)]
    mixed = map(project, values, attend(jnp.stack(asked)))
    kept = first + block.output(jnp.concatenate(list(mixed)))
    return jax.nn.relu(normalise(kept + block.mlp(normalise(kept))))
