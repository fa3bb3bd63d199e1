"""The implementation for NVIDIA's GPUs, from Ampere (A100) on: Pallas kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.backends import runs_pallas
from epcx.games import Observation
from epcx.networks.kernels import (
    pallas_attention,
    pallas_embedding,
    pallas_encoder,
    pallas_relations,
    pallas_tokens,
    plain,
)
from epcx.networks.layers import MLP, Linear, flatten_rows, project, weights_and_biases


def supports(features: Sequence[int], actions: int) -> bool:
    """Whether the kernels take these sizes: features of the agent and at least one entity type."""
    fits = len(features) > 1 and max(features) <= pallas_encoder.MAX_FEATURES
    return fits and actions <= pallas_embedding.MAX_ACTIONS


def usable() -> bool:
    """Whether JAX's default device is a GPU that runs the kernels."""
    return runs_pallas()


def encode(
    options: pallas_encoder.Options,
    own: MLP,
    entities: Mapping[str, MLP],
    view: Observation,
    index: Int[Array, "rows"] | None = None,
) -> Float[Array, "width rows"]:
    names = sorted(entities)
    mlps = [weights_and_biases(*mlp.layers) for mlp in (own, *(entities[name] for name in names))]
    types = [view.entities[name] for name in names]
    return pallas_encoder.encode(options, mlps, view.own, types, index)


def embed(
    options: pallas_encoder.Options,
    action: Linear,
    combine: Linear,
    encoded: Float[Array, "width *rows"],
    actions: Float[Array, "actions *rows"],
) -> Float[Array, "size *rows"]:
    rows = encoded.shape[1:]
    weights = pallas_embedding.Weights(*weights_and_biases(action, combine))
    flat = flatten_rows((encoded, actions), len(rows))
    return pallas_embedding.embed(options, weights, *flat).reshape(-1, *rows)


def embed_own(
    action: Linear,
    combine: Linear,
    encoded: Float[Array, "width batch"],
    actions: Float[Array, "actions batch"],
) -> Float[Array, "size batch"]:
    """In plain JAX, as a sum of two products: a GPU need not concatenate their inputs."""
    weight, bias = weights_and_biases(combine)
    acted = jax.nn.relu(action(actions))
    width = len(encoded)
    y = project(weight[:, :width], encoded) + project(weight[:, width:], acted)
    return jax.nn.relu(y + bias[:, None])


def attend(
    options: pallas_attention.Options,
    query: Float[Array, "size batch"],
    key: Linear,
    keys: Float[Array, "size agents batch"],
    values: Float[Array, "size agents batch"],
    groups: Sequence[Bool[Array, "agents batch"]],
) -> list[Float[Array, "size batch"]]:
    """Without the keys: (W_psi f_i) . (W_phi f_j) = (W_phi^T W_psi f_i) . f_j."""
    return pallas_attention.attend(options, project(key.weight.T, query), values, groups)


def encode_relations(
    options: pallas_encoder.Options,
    heads: int,
    encoder: plain.RelationalWeights,
    view: Observation,
) -> Float[Array, "size rows"]:
    """With more tokens than the kernels take, in plain JAX."""
    names = sorted(encoder.entities)
    if 1 + sum(len(view.entities[name].mask) for name in names) > pallas_relations.MAX_TOKENS:
        return plain.encode_relations(heads, encoder, view)
    for_tokens = replace(options, tiling=pallas_tokens.TILING)
    mlps = [
        weights_and_biases(*x.layers)
        for x in (encoder.own, *(encoder.entities[name] for name in names))
    ]
    types, features, mask = pallas_tokens.pack(view, names, options.dtype)
    tokens = pallas_tokens.embed(for_tokens, types, mlps, features)
    *blocks, last = encoder.blocks
    for block in blocks:
        linear = block.query, block.key, block.value, block.output
        weights = pallas_relations.Weights(
            *(layer.weight for layer in linear), *weights_and_biases(*block.mlp.layers)
        )
        tokens = pallas_relations.relate(options, heads, weights, tokens, mask)

    def attend(queries: Float[Array, "heads size rows"]) -> Float[Array, "heads size rows"]:
        return pallas_tokens.attend(for_tokens, queries, tokens, mask)

    return plain.last_block(heads, last, tokens[:, 0].T.astype(jnp.float32), attend)
