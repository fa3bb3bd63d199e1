"""Networks of state values: V of a world, as the critic of one agent sees it.

They are called with what all agents see (features first, batch last), who lives, and the seat.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from epcx.games import Game, Observation
from epcx.networks import kernels
from epcx.networks.attention import AttentionPolicy, ObservationEncoder
from epcx.networks.layers import EMBEDDING, HIDDEN, MLP, Linear, normalise
from epcx.networks.mlp import UNITS, concatenated
from epcx.networks.neighbourhood import attended
from epcx.networks.seat import Seat


class AttentionValue(eqx.Module):
    """V_i = h([g(f(o_i)), v_i]): the critic of equation 3 without actions."""

    encoder: ObservationEncoder
    combine: Linear  # with the encoder: f
    own: Linear  # g
    query: Linear  # W_psi
    key: Linear  # W_phi
    value: MLP  # h
    groups: int = eqx.field(static=True)  # 1 without opponents

    def __init__(self, key: Key[Array, ""], game: Game):
        keys = jax.random.split(key, 6)
        self.groups = 1 if len(game.roles) == 1 else 2
        self.encoder = ObservationEncoder(keys[0], game)
        self.combine = Linear(keys[1], self.encoder.width, EMBEDDING)
        self.own = Linear(keys[2], EMBEDDING, EMBEDDING)
        self.query = Linear(keys[3], EMBEDDING, EMBEDDING, bias=False)
        self.key = Linear(keys[4], EMBEDDING, EMBEDDING, bias=False)
        self.value = MLP(keys[5], (1 + self.groups) * EMBEDDING, HIDDEN, 1, leaky=True)

    def __call__(
        self, views: Observation, alive: Bool[Array, "agents batch"], seat: Seat
    ) -> Float[Array, "batch"]:
        who = attended(views, alive, seat)
        embedded = jax.nn.relu(self.combine(self.encoder(views, who.agents)))
        mine, groups = who.mine(embedded), who.groups[: self.groups]
        kernel = kernels.select(math.prod(embedded.shape[1:]), self.encoder.features)
        mixed = kernel.attend(self.query(mine), self.key, self.key(embedded), embedded, groups)
        parts = [jax.nn.relu(self.own(mine)), *map(normalise, mixed)]
        return self.value(jnp.concatenate(parts))[0]


class LocalValue(eqx.Module):
    """V of the own observation: the policy's network with one output."""

    network: Callable[[Observation], Float[Array, "1 batch"]]

    def __init__(
        self,
        key: Key[Array, ""],
        game: Game,
        policy: Callable[..., Any] = AttentionPolicy,
    ):
        self.network = policy(key, game, outputs=1)

    def __call__(
        self, views: Observation, alive: Bool[Array, "agents batch"], seat: Seat
    ) -> Float[Array, "batch"]:
        return self.network(jax.tree.map(seat.mine, views))[0]


class MLPValue(eqx.Module):
    """V of all observations, concatenated, or of the own one only."""

    mlp: MLP
    local: bool = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], game: Game, local: bool = False):
        inputs = game.flat_width * (1 if local else game.num_agents)
        self.mlp = MLP(key, inputs, UNITS, UNITS, 1)
        self.local = local

    def __call__(
        self, views: PyTree, alive: Bool[Array, "agents batch"], seat: Seat
    ) -> Float[Array, "batch"]:
        return self.mlp(seat.mine(views) if self.local else concatenated(views))[0]
