"""Playing: how policies choose, and a step of many worlds. Batches of worlds are last axes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epcx.games import NUM_ACTIONS, Game, Outcome, World


def gumbel_softmax(
    logits: Float[Array, "5 *rows"], noise: Float[Array, "5 *rows"]
) -> Float[Array, "5 *rows"]:
    """Soft samples at temperature 1, by Gumbel noise."""
    return jax.nn.softmax(logits + noise, 0)


def choose(policies: Any, views: Any, noise: Array) -> Float[Array, "5 agents batch"]:
    """What the policies of all seats do, given what everybody sees."""
    logits = jax.vmap(lambda policy, view: policy(view), (0, -2), -2)(policies, views)
    return gumbel_softmax(logits, noise)


class Chance(NamedTuple):
    """What chance decides in steps to come; drawn for all of them at once, as a GPU likes it."""

    choices: Float[Array, "..."]  # [steps, 5, N, worlds], of the policies
    keys: Array  # [steps, worlds], of the game
    fresh: World  # [steps, ..., worlds], to go on with where the time is over

    @staticmethod
    def draw(key: Array, game: Game, steps: int, worlds: int) -> "Chance":
        first, second, third = jax.random.split(key, 3)
        return Chance(
            jax.random.gumbel(first, (steps, NUM_ACTIONS, game.num_agents, worlds)),
            jax.random.split(second, (steps, worlds)),
            jax.vmap(jax.vmap(game.reset, out_axes=-1))(jax.random.split(third, (steps, worlds))),
        )


def step_worlds(
    game: Game, chance: Chance, worlds: World, actions: Float[Array, "agents 5 batch"]
) -> tuple[World, Outcome, World]:
    """One step: the worlds after it, what it gave, and the worlds to go on with.

    All worlds play in step; when their time is over they start anew.
    """
    after, outcome = game.step(chance.keys, worlds, actions)
    over = after.time[0] >= game.horizon
    return after, outcome, jax.tree.map(lambda a, b: jnp.where(over, a, b), chance.fresh, after)
