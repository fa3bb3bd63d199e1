"""The contract between a MARL algorithm and everything around it.

A learner belongs to one game at one population, and is written for one match. Agents and states
are pytrees of arrays whose content only the learner knows; agents are stacked over the seats of
the match on their first axis, so that evolution can mix agent sets.
"""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from epcx import registry
from epcx.errors import InputError
from epcx.games import Game, World

SHARD = "shard"  # the name of the axis of devices that share one match


class Learner:
    """A MARL algorithm, for one match of one game.

    Subclasses are frozen dataclasses with the fields `game` and `config`: learners that are equal
    share compiled programs. `Config` is a frozen dataclass of options, each with a docstring;
    `presets` has configs by the name of a preset, if the defaults do not serve for all.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Any]]
    presets: ClassVar[Mapping[str, Any]] = {}

    game: Game
    config: Any

    # What a learner must define

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Fresh agents for all seats, stacked on the first axis."""
        raise NotImplementedError

    def start(self, key: Key[Array, ""], agents: PyTree) -> PyTree:
        """All that training needs and a checkpoint must hold: agents, optimisers, buffer, key."""
        raise NotImplementedError

    def advance(
        self, state: PyTree, updates: Int[Array, ""]
    ) -> tuple[PyTree, dict[str, Float[Array, "agents"]]]:
        """Trains for a number of updates.

        Metrics are means over that time; `reward` and `shaping`, per episode, must be among them.
        """
        raise NotImplementedError

    def act(
        self,
        key: Key[Array, ""],
        policies: PyTree,
        observation: PyTree,
        role: str | None = None,
        greedy: bool = False,
    ) -> Float[Array, "agents actions batch"]:
        """Actions of all seats, or those of a role, in a batch of worlds.

        Samples; if `greedy`, the most probable actions. A learner may do without `greedy`: then
        its agents cannot be asked for these.
        """
        raise NotImplementedError

    def updates(self, episodes: int) -> int:
        """The updates that a number of episodes allows; an `InputError` if there is none."""
        raise NotImplementedError

    def episodes(self, updates: int) -> int:
        """The episodes played after a number of updates."""
        raise NotImplementedError

    # What a learner may define

    def agents(self, state: PyTree) -> PyTree:
        """What evolution mixes and selects."""
        return state.agents

    def policies(self, agents: PyTree) -> PyTree:
        """The part of agents that acts."""
        return agents

    def with_policies(self, agents: PyTree, policies: PyTree) -> PyTree:
        """Agents with other policies."""
        return eqx.tree_at(self.policies, agents, policies)

    def diverged(self, state: PyTree) -> Bool[Array, ""]:
        """Whether training has stopped because weights would not have been finite."""
        weights = jax.tree.leaves(eqx.filter(self.agents(state), eqx.is_inexact_array))
        return ~jnp.stack([jnp.isfinite(x).all() for x in weights]).all()

    def observe(self, worlds: World, role: str | None = None) -> PyTree:
        """What all seats, or those of a role, see in a batch of worlds, which is the last axis.

        Every array begins with the axis of the agents.
        """
        seen = self.game.observe_batch(worlds)
        return seen if role is None else jax.tree.map(lambda x: x[self.game.members[role]], seen)

    @property
    def architecture(self) -> str:
        """The networks of its agents: weights of one architecture do not fit another."""
        return self.name

    @property
    def any_population(self) -> bool:
        """Whether agents can play at another population than they were trained at."""
        return True


@runtime_checkable
class ShardedLearner(Protocol):
    """What a learner may know about devices; one without it trains on one device per match."""

    def max_shards(self) -> int:
        """Over how many devices a match can be spread at most."""

    def with_layout(self, platform: str, memory: int, matches: int, shards: int) -> Learner:
        """The same learner, laid out for `matches` on a device, each spread over `shards` devices.

        `memory` is the device's, in bytes.
        """

    def state_bytes(self) -> int:
        """Bytes that a started match keeps on each of its devices."""

    def memory_advice(self, limit: int) -> str | None:
        """The option that would keep the state of a match below `limit` bytes, if there is one."""


@runtime_checkable
class ScheduledLearner(Protocol):
    """What a learner may know about the length of a stage, such as for annealed learning rates."""

    def with_updates(self, updates: int) -> Learner:
        """The same learner, for a stage of so many updates."""


@runtime_checkable
class RingLearner(Protocol):
    """What a learner may say about a ring buffer in its state, so that checkpoints write it once.

    Without it, every checkpoint holds the whole state.
    """

    def ring(self, state: PyTree) -> PyTree:
        """The part of a state that is overwritten row by row: arrays [rows, ...]."""

    def ring_rows(self, since: int, updates: int) -> Int[np.ndarray, "rows"]:
        """The rows that differ after `updates` updates from those after `since`.

        0 for `since`: from those of an empty ring, so that what was written before the first
        update counts.
        """


def greedy_option(learner: Learner, greedy: bool) -> dict[str, bool]:
    """The argument of `act` that asks for the most probable actions; for samples there is none."""
    if not greedy:
        return {}
    if "greedy" not in inspect.signature(learner.act).parameters:
        raise InputError(
            f"learner {learner.name} has no greedy actions: its method act takes no `greedy`"
        )
    return {"greedy": True}


def state_bytes(learner: Learner) -> int:
    """Bytes that a started match keeps on each of its devices."""
    return learner.state_bytes() if isinstance(learner, ShardedLearner) else started_bytes(learner)


def started_bytes(learner: Learner) -> int:
    """Bytes of a match as `start` returns it."""

    def started() -> PyTree:
        key = jax.random.key(0)
        return learner.start(key, learner.init(key))

    return tree_bytes(jax.eval_shape(started))


def tree_bytes(tree: PyTree) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def check(cls: type[Learner]) -> None:
    """Refuses a class that does not meet the contract."""
    methods = ("init", "start", "advance", "act", "updates", "episodes")
    registry.require(cls, Learner, "learner", methods, "name", "Config")
    for name, part in (("the class", cls), ("its Config", cls.Config)):
        params = getattr(part, "__dataclass_params__", None)
        if params is None or not params.frozen:
            raise InputError(f"learner {registry.reference(cls)}: {name} is not a frozen dataclass")
