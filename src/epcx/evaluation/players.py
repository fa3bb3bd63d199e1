"""Who plays: agents that were trained somehow, or fixed players."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from epcx.errors import InputError
from epcx.games import Game, World

FIXED_PLAYERS = ("scripted", "random")
Act = Callable[[Key[Array, ""], PyTree, World], Float[Array, "members actions batch"]]


@dataclass(frozen=True)
class Player:
    """Who plays one role: `act(key, agents, worlds)` in a batch of worlds, which is the last axis.

    Players of one kind act by the same function, and differ in their agents.
    """

    kind: str
    act: Act
    agents: PyTree = None
    digest: str = ""  # of the agents


@runtime_checkable
class PlayerSource(Protocol):
    """Something that gives players for any role of a game."""

    @property
    def name(self) -> str: ...

    def player(self, game: Game, role: str) -> Player:
        """Raises `InputError` if it cannot play that game at that population."""


@dataclass(frozen=True)
class FixedPlayers:
    """Scripted or random players: references that do not change."""

    name: str

    def player(self, game: Game, role: str) -> Player:
        if self.name == "scripted" and not game.has_script:
            raise InputError(f"{game.name} has no scripted players: use random")
        members = game.members[game.role(role).name]
        act = game.scripted if self.name == "scripted" else random_actions(game)

        def act_batch(key: Key[Array, ""], agents: PyTree, worlds: World) -> Array:
            keys = jax.random.split(key, jax.tree.leaves(worlds)[0].shape[-1])
            return jax.vmap(act, (0, -1), -1)(keys, worlds)[members]

        return Player(self.name, act_batch, digest=self.name)


def fixed_players(game: Game | type[Game]) -> tuple[FixedPlayers, ...]:
    """Those that a game has."""
    cls = game if isinstance(game, type) else type(game)
    has_script = cls.scripted is not Game.scripted
    return tuple(FixedPlayers(name) for name in FIXED_PLAYERS if has_script or name == "random")


def random_actions(game: Game) -> Callable[[Key[Array, ""], World], Float[Array, "agents actions"]]:
    """Every agent draws uniformly: an action, or weights that add up to 1 if actions are soft."""

    def act(key: Key[Array, ""], world: World) -> Float[Array, "agents actions"]:
        # Exponential numbers over their sum are uniform there, and cheaper than Dirichlet's.
        weights = jax.random.exponential(key, game.action_mask.shape)
        weights = jnp.where(game.action_mask, weights, 0.0)
        if not game.soft_actions:
            return jax.nn.one_hot(weights.argmax(1), game.num_actions)
        return weights / weights.sum(1, keepdims=True)

    return act
