"""The baselines' networks: MADDPG's MLPs, and mean-field critics.

They see flat observations [width, N, batch], whose width fixes the population. As all critics,
they `encode` a situation, and give the `q_value` of the actions that were taken in it, or the
`q_value_of` another action of their agent.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from epcx.games import Game, World
from epcx.networks.layers import MLP
from epcx.networks.seat import Seat

UNITS = 64


def observe(game: Game, worlds: World) -> Float[Array, "agents width batch"]:
    return game.observe_flat_batch(worlds)


def to_features_first(
    observation: Float[Array, "agents width batch"],
) -> Float[Array, "width agents batch"]:
    return observation.swapaxes(0, 1).astype(jnp.float32)


def input_bytes(game: Game) -> int:
    """Bytes of a critic's inputs, its widest layer, per sample."""
    return game.num_agents * (game.flat_width + game.num_actions) * 4


class MLPPolicy(eqx.Module):
    mlp: MLP

    def __init__(self, key: Key[Array, ""], game: Game):
        self.mlp = MLP(key, game.flat_width, UNITS, UNITS, game.num_actions)

    def __call__(self, view: Float[Array, "width *rows"]) -> Float[Array, "actions *rows"]:
        return self.mlp(view)


Context = tuple[Array, Array, Array]


class ConcatenationCritic(eqx.Module):
    """Q of all observations and all actions, concatenated."""

    mlp: MLP

    def __init__(self, key: Key[Array, ""], game: Game):
        inputs = game.num_agents * (game.flat_width + game.num_actions)
        self.mlp = MLP(key, inputs, UNITS, UNITS, 1)

    def encode(
        self,
        views: Float[Array, "width agents batch"],
        actions: Float[Array, "actions agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> Context:
        return views, actions, seat.me[:, None]

    def q_value(self, context: Context) -> Float[Array, "batch"]:
        views, actions, _ = context
        return self.mlp(jnp.concatenate([concatenated(views), concatenated(actions)]))[0]

    def q_value_of(
        self, context: Context, action: Float[Array, "actions batch"]
    ) -> Float[Array, "batch"]:
        views, actions, me = context
        return self.q_value((views, jnp.where(me, action[:, None], actions), me))


def concatenated(values: Float[Array, "size agents batch"]) -> Float[Array, "sizes batch"]:
    """Those of one agent after the other."""
    return values.swapaxes(0, 1).reshape(-1, values.shape[-1])


class MeanFieldCritic(eqx.Module):
    """Q of observations, the own action and the mean action of the living others.

    Observations are those of all agents, as in the code of EPC's authors, or the own one only, as
    in Yang et al. (2018).
    """

    mlp: MLP
    local: bool = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], game: Game, local: bool = False):
        seen = game.flat_width if local else game.num_agents * game.flat_width
        self.mlp = MLP(key, seen + 2 * game.num_actions, UNITS, UNITS, 1)
        self.local = local

    def encode(
        self,
        views: Float[Array, "width agents batch"],
        actions: Float[Array, "actions agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> Context:
        others = (seat.teammates | seat.opponents)[:, None] & alive
        mean = (actions * others).sum(1) / jnp.maximum(others.sum(0), 1)
        seen = seat.mine(views) if self.local else concatenated(views)
        return seen, seat.mine(actions), mean

    def q_value(self, context: Context) -> Float[Array, "batch"]:
        return self.mlp(jnp.concatenate(context))[0]

    def q_value_of(
        self, context: Context, action: Float[Array, "actions batch"]
    ) -> Float[Array, "batch"]:
        seen, _, mean = context
        return self.q_value((seen, action, mean))
