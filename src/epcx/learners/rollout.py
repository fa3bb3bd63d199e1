"""Playing: how policies choose, and a step of many worlds. Batches of worlds are last axes."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epcx.games import Game, Outcome, World


def gumbel_softmax(
    logits: Float[Array, "5 *rows"], noise: Float[Array, "5 *rows"]
) -> Float[Array, "5 *rows"]:
    """Soft samples at temperature 1, by Gumbel noise."""
    return jax.nn.softmax(logits + noise, 0)


def choose(policies: Any, views: Any, noise: Array) -> Float[Array, "5 agents batch"]:
    """What the policies of all seats do, given what everybody sees."""
    logits = jax.vmap(lambda policy, view: policy(view), (0, -2), -2)(policies, views)
    return gumbel_softmax(logits, noise)


def step_worlds(
    game: Game, key: Array, worlds: World, actions: Float[Array, "agents 5 batch"]
) -> tuple[World, Outcome, World]:
    """One step: the worlds after it, what it gave, and the worlds to go on with.

    All worlds play in step; when their time is over they start anew.
    """
    chance, reset = jax.random.split(key)
    number = worlds.time.shape[0]
    after, outcome = game.step(jax.random.split(chance, number), worlds, actions)
    fresh = jax.vmap(game.reset, out_axes=-1)(jax.random.split(reset, number))
    over = after.time[0] >= game.horizon
    return after, outcome, jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, after)
