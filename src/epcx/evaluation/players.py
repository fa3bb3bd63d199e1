"""Who takes part in a comparison: agents that were trained somehow, or fixed scripts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float

from epcx.evaluation.scripted import PLAYERS
from epcx.games import Game, World

Decide = Callable[[Array, Any, World], Float[Array, "members 5 batch"]]


@dataclass(frozen=True)
class Side:
    """Who plays one role: `act(key, agents, worlds)` in a batch of worlds, which is the last axis.

    Sides of one kind act by the same function, and differ in their agents.
    """

    kind: str
    act: Decide
    agents: Any = None
    digest: str = ""  # of the agents


@runtime_checkable
class Contestant(Protocol):
    """Somebody who can play any role of a game."""

    @property
    def name(self) -> str: ...

    def side(self, game: Game, role: str) -> Side:
        """Raises `InputError` if it cannot play that game at that population."""


@dataclass(frozen=True)
class Script:
    """Scripted or random players: yardsticks that stay the same."""

    name: str

    def side(self, game: Game, role: str) -> Side:
        everybody = PLAYERS[self.name](game)
        members = game.members[game.role(role).name]

        def act(key: Array, agents: Any, worlds: World) -> Array:
            keys = jax.random.split(key, worlds.time.shape[0])
            return jax.vmap(everybody, (0, -1), -1)(keys, worlds)[members]

        return Side(self.name, act, digest=self.name)


SCRIPTS = tuple(Script(name) for name in PLAYERS)
