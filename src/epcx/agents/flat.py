"""The baselines' networks: MADDPG's plain MLPs, and the mean-field critic.

They see flat observations [width, N, batch], whose width fixes the population. As all critics,
they `judge` what was done in a `context`, and `reconsider` it with another action of their agent.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epcx.agents.layers import MLP
from epcx.agents.seat import Seat
from epcx.games import NUM_ACTIONS, Game, World

UNITS = 64


def see(game: Game, worlds: World) -> Float[Array, "agents width batch"]:
    return game.observe_flat(worlds)


def arrange(seen: Float[Array, "agents width batch"]) -> Float[Array, "width agents batch"]:
    return seen.swapaxes(0, 1)


def widest(game: Game) -> int:
    """Bytes of the widest layer of a critic, per sample: its inputs."""
    return game.num_agents * (game.flat_width + NUM_ACTIONS) * 4


class FlatPolicy(eqx.Module):
    mlp: MLP

    def __init__(self, key: Array, game: Game):
        self.mlp = MLP(key, game.flat_width, UNITS, UNITS, NUM_ACTIONS)

    def __call__(self, view: Float[Array, "width *rows"]) -> Float[Array, "5 *rows"]:
        return self.mlp(view)


class ConcatenationCritic(eqx.Module):
    """Q of all observations and all actions, one after the other."""

    mlp: MLP

    def __init__(self, key: Array, game: Game):
        inputs = game.num_agents * (game.flat_width + NUM_ACTIONS)
        self.mlp = MLP(key, inputs, UNITS, UNITS, 1)

    def context(
        self,
        views: Float[Array, "width agents batch"],
        actions: Float[Array, "5 agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> tuple[Array, Array, Array]:
        return views, actions, seat.me[:, None]

    def judge(self, context: tuple[Array, Array, Array]) -> Float[Array, "batch"]:
        views, actions, _ = context
        joined = [x.swapaxes(0, 1).reshape(-1, x.shape[-1]) for x in (views, actions)]
        return self.mlp(jnp.concatenate(joined))[0]

    def reconsider(
        self, context: tuple[Array, Array, Array], action: Float[Array, "5 batch"]
    ) -> Float[Array, "batch"]:
        views, actions, me = context
        return self.judge((views, jnp.where(me, action[:, None], actions), me))


class MeanFieldCritic(eqx.Module):
    """Q of the own observation, the own action and the mean action of the living others."""

    mlp: MLP

    def __init__(self, key: Array, game: Game):
        self.mlp = MLP(key, game.flat_width + 2 * NUM_ACTIONS, UNITS, UNITS, 1)

    def context(
        self,
        views: Float[Array, "width agents batch"],
        actions: Float[Array, "5 agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> tuple[Array, Array, Array]:
        others = (seat.teammates | seat.opponents)[:, None] & alive
        mean = (actions * others).sum(1) / jnp.maximum(others.sum(0), 1)
        return seat.mine(views), seat.mine(actions), mean

    def judge(self, context: tuple[Array, Array, Array]) -> Float[Array, "batch"]:
        return self.mlp(jnp.concatenate(context))[0]

    def reconsider(
        self, context: tuple[Array, Array, Array], action: Float[Array, "5 batch"]
    ) -> Float[Array, "batch"]:
        view, _, mean = context
        return self.judge((view, action, mean))
