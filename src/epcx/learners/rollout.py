"""Playing: how policies sample actions, and a step of many worlds. The batch is the last axis."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from epcx import backends
from epcx.games import Game, Outcome, World
from epcx.networks.relational import RelationalPolicy

MASKED_LOGIT = -1e9  # its softmax is exactly 0
MANY_ROWS = 1024  # of all agents: fewer are faster at once, on any device
MANY_WORLDS = 8  # likewise


def gumbel_softmax(
    logits: Float[Array, "actions *rows"],
    noise: Float[Array, "actions *rows"],
    available: Bool[Array | np.ndarray, "actions *#rows"] | None = None,
    soft: bool = True,
) -> Float[Array, "actions *rows"]:
    """Samples at temperature 1, by Gumbel noise, among the actions that are available.

    Soft ones are weights. Otherwise they are one-hot, exact samples of the categorical
    distribution, with the gradient of the soft ones (straight-through).
    """
    scores = logits + noise
    if available is not None:
        scores = jnp.where(available, scores, MASKED_LOGIT)
    weights = jax.nn.softmax(scores, 0)
    if soft:
        return weights
    one_hot = jax.nn.one_hot(scores.argmax(0), len(scores), axis=0)
    return weights + jax.lax.stop_gradient(one_hot - weights)


def available_actions(
    game: Game, role: str | None = None
) -> Bool[np.ndarray, "actions agents 1"] | None:
    """Which actions agents have; None if all have all of them."""
    if game.action_mask.all():
        return None
    return game.action_mask[slice(None) if role is None else game.members[role]].T[:, :, None]


def action_logits(
    game: Game, policies: PyTree, views: PyTree, role: str | None = None
) -> Float[Array, "actions agents batch"]:
    """Of all policies, or those of one role, given what each of them sees.

    Far below zero for actions that they have not.
    """
    logits = outputs(policies, views)
    available = available_actions(game, role)
    return logits if available is None else jnp.where(available, logits, MASKED_LOGIT)


def outputs(policies: PyTree, views: PyTree) -> Float[Array, "actions agents batch"]:
    """Of every policy, given what its agent sees.

    On a CPU relational networks, of which all together would not stay in its cache, agent by agent.
    """
    agents, batch = len(jax.tree.leaves(policies)[0]), jax.tree.leaves(views)[0].shape[-1]
    in_turn = (
        isinstance(policies, RelationalPolicy)
        and backends.prefers_loops()  # before sizes, which exported programs do not know
        and batch >= MANY_WORLDS
        and agents * batch >= MANY_ROWS
    )
    if not in_turn:
        return jax.vmap(lambda policy, view: policy(view), (0, -2), -2)(policies, views)

    def of_agent(number: Int[Array, ""]) -> Float[Array, "actions batch"]:
        policy = jax.tree.map(lambda x: x[number], policies)
        seen = partial(jax.lax.dynamic_index_in_dim, index=number, axis=-2, keepdims=False)
        return policy(jax.tree.map(seen, views))

    return jax.lax.map(of_agent, jnp.arange(agents)).swapaxes(0, 1)


def sample_actions(
    game: Game,
    policies: PyTree,
    views: PyTree,
    noise: Float[Array, "actions agents batch"],
    role: str | None = None,
) -> Float[Array, "actions agents batch"]:
    """Actions of all policies, or those of one role, given what each of them sees."""
    logits = action_logits(game, policies, views, role)
    return gumbel_softmax(logits, noise, soft=game.soft_actions)


class StepNoise(NamedTuple):
    """The random numbers of steps to come; drawn for all of them at once, as a GPU likes it."""

    gumbel: Float[Array, "*steps actions agents envs"]  # of the policies
    keys: Key[Array, "*steps envs"]  # of the game
    fresh: World  # [*steps, ..., envs]: worlds to go on with where an episode ends

    @staticmethod
    def draw(key: Key[Array, ""], game: Game, steps: int, num_envs: int) -> "StepNoise":
        first, second, third = jax.random.split(key, 3)
        return StepNoise(
            jax.random.gumbel(first, (steps, game.num_actions, game.num_agents, num_envs)),
            jax.random.split(second, (steps, num_envs)),
            jax.vmap(game.reset_batch)(jax.random.split(third, (steps, num_envs))),
        )


def step_worlds(
    game: Game,
    noise: StepNoise,
    worlds: World,
    actions: Float[Array, "agents actions batch"],
    time: Int[Array, ""],
) -> tuple[World, Outcome, World]:
    """One step: the worlds after it, its outcome, and the worlds to go on with.

    All worlds play in step: `time` counts the steps before this one, and after every `horizon`
    steps all of them are reset.
    """
    after, outcome = game.step_batch(noise.keys, worlds, actions)
    over = (time + 1) % game.horizon == 0
    return after, outcome, jax.tree.map(lambda a, b: jnp.where(over, a, b), noise.fresh, after)
