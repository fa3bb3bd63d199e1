"""The contract between a MARL algorithm and everything around it.

A learner belongs to one game at one population, and is written for one match. Agents, states and
metrics are pytrees of arrays, whose content only the learner knows; agents are stacked over the
seats of the match on their first axis, so that agent sets can be mixed.
"""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float

from epcx.games import Game, World

PART = "part"  # the name of the axis of devices that share one match


@runtime_checkable
class Learner(Protocol):
    """A MARL algorithm, for one match of one game."""

    @property
    def game(self) -> Game: ...

    def __hash__(self) -> int:
        """Learners that are equal have the same programs: they are compiled once."""

    def init(self, key: Array) -> Any:
        """Fresh agents for all seats."""

    def start(self, key: Array, agents: Any) -> Any:
        """All that training needs and a checkpoint must hold: agents, optimisers, replay, key."""

    def advance(self, state: Any, updates: Any) -> tuple[Any, dict[str, Array]]:
        """Trains for a number of updates; metrics [N] are means over that time."""

    def agents(self, state: Any) -> Any:
        """What evolution mixes and selects."""

    def diverged(self, state: Any) -> Array:
        """Whether training has stopped because weights would not have been finite."""

    def observe(self, worlds: World, role: str | None = None) -> Any:
        """What all seats, or those of a role, see in a batch of worlds, which is the last axis.

        Every array begins with the axis of the agents.
        """

    def policies(self, agents: Any) -> Any:
        """The part of agents that acts."""

    def act(self, key: Array, policies: Any, seen: Any) -> Float[Array, "agents 5 batch"]:
        """What agents do about what they see."""

    def updates(self, episodes: int) -> int:
        """The updates that a number of episodes allows."""

    def episodes(self, updates: int) -> int:
        """The episodes played after a number of updates."""

    def fitted(self, platform: str, memory: int, matches: int, parts: int) -> "Learner":
        """The same learner, laid out for `matches` on a device, each spread over `parts` devices.

        `memory` is the device's, in bytes.
        """

    def most_parts(self) -> int:
        """Over how many devices a match can be spread at most."""

    def memory(self) -> int:
        """Bytes that a started match keeps on each of its devices."""
