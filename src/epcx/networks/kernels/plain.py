"""The reference implementation in plain JAX: any sizes, any device, all gradients."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.games import Observation
from epcx.networks import layers
from epcx.networks.layers import MLP, Linear, normalise, take_rows


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
