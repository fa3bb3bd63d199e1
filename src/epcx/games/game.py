"""The contract of any game: roles, worlds, what a step gives, and what agents observe.

A game is a subclass of `Game` with its class attributes and three pure functions of one world:
`reset`, `step` and `observe`. The world may be any pytree of arrays. Everything else has defaults.
"""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from epcx import registry
from epcx.errors import InputError, whole_number
from epcx.games.frames import Frame

MAX_AGENTS = 10_000
COUNT = re.compile("0*[1-9][0-9]*", re.ASCII)
World: TypeAlias = Any  # the state of a running episode: any pytree of arrays


@dataclass(frozen=True)
class Population:
    """How many agents each role has; written `3-2`, or `6` for one role."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(whole_number("number of agents", n, 1) for n in self.counts)
        object.__setattr__(self, "counts", counts)
        if not 0 < self.total <= MAX_AGENTS:
            raise InputError(
                f"population '{self}' has {self.total} agents: at most {MAX_AGENTS} are supported"
            )

    @classmethod
    def parse(cls, text: "str | int | Population") -> "Population":
        if isinstance(text, Population):
            return text
        parts = str(text).strip().split("-")
        if not all(COUNT.fullmatch(part) for part in parts):
            shown = reprlib.repr(str(text))
            raise InputError(
                f"population {shown} is malformed: write one whole number of at least 1 per "
                "role, joined by '-', such as 3-2"
            )
        digits = len(str(MAX_AGENTS))
        if any(len(part.lstrip("0")) > digits for part in parts):
            shown = reprlib.repr(str(text))
            raise InputError(
                f"population {shown} is too large: at most {MAX_AGENTS} agents are supported"
            )
        return cls(tuple(int(part) for part in parts))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def __str__(self) -> str:
        return "-".join(map(str, self.counts))


@dataclass(frozen=True)
class Role:
    """A kind of agent: how many actions it has, and how a replay draws it."""

    name: str
    num_actions: int
    colour: str = "#4f8fd9"
    size: float = 0.05  # radius
    shares_reward: bool = False  # all members get the same, which counts once in a team's score


class Entities(NamedTuple):
    """One set of entities per agent: features, and which slots hold an entity that is seen."""

    features: Float[Array, "agents slots features *batch"]
    mask: Bool[Array, "agents slots *batch"]


class Observation(eqx.Module):
    """What every agent sees: its own features, and one set per entity type."""

    own: Float[Array, "agents features *batch"]
    entities: dict[str, Entities]


class Outcome(eqx.Module):
    """What a step gives: task reward and shaping are kept apart.

    `done`: nothing that is still to come concerns the agent (the time limit is not meant).
    `events` has the per-agent numbers that the game's `statistics` name, if any. `difference` is
    the difference reward: how much less all members of the agent's role together would have got in
    this step, had the agent been far away from everything.
    """

    reward: Float[Array, "agents *batch"]
    shaping: Float[Array, "agents *batch"]
    done: Bool[Array, "agents *batch"]
    events: PyTree = None
    difference: Float[Array, "agents *batch"] | None = None  # a game need not define it


class Scene(NamedTuple):
    """What a replay draws of a world, in the square [-world_size, world_size]^2."""

    position: Float[Array, "agents 2"]
    food: Float[Array | np.ndarray, "food 2"] = np.zeros((0, 2), np.float32)
    obstacles: Float[Array | np.ndarray, "obstacles 2"] = np.zeros((0, 2), np.float32)


@dataclass(frozen=True)
class Game:
    """The rules of a world, as pure functions written for one world.

    Episodes last `horizon` steps. A game that is over earlier keeps all agents `done` until then.
    The `*_batch` methods take many worlds, with the batch as the last axis of every array.
    """

    population: Population

    name: ClassVar[str]
    roles: ClassVar[tuple[Role, ...]]
    stages: ClassVar[tuple[str, ...]]  # the populations of its curriculum
    horizon: ClassVar[int] = 25
    rules: ClassVar[tuple[str, ...]] = ()  # for people, a sentence each
    soft_actions: ClassVar[bool] = False  # True: any weights; False: one-hot vectors only
    statistics: ClassVar[Mapping[str, str]] = {}  # fields of events, summed over an episode
    final_statistics: ClassVar[Mapping[str, str]] = {}  # numbers in events after the last step
    symmetric: ClassVar[bool] = False  # all roles are the same but for their names

    def __post_init__(self) -> None:
        object.__setattr__(self, "population", Population.parse(self.population))
        if len(self.population.counts) != len(self.roles):
            roles = "-".join(role.name for role in self.roles)
            raise InputError(
                f"population '{self.population}' does not fit {self.name}, which has "
                f"{len(self.roles)} role{'s' * (len(self.roles) > 1)} ({roles}): write it like "
                f"{self.stages[0]}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without cached properties, such as functions of JAX that cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # What a game must define

    def reset(self, key: Key[Array, ""]) -> World:
        """A new world."""
        raise NotImplementedError

    def step(
        self, key: Key[Array, ""], world: World, actions: Float[Array, "agents actions"]
    ) -> tuple[World, Outcome]:
        """Plays one step; a row of `actions` is one-hot, or weights where actions are soft."""
        raise NotImplementedError

    def observe(self, world: World) -> Observation:
        """What every agent sees. What is masked should be zero."""
        raise NotImplementedError

    # What a game may define

    def alive(self, world: World) -> Bool[Array, "agents"]:
        """Who takes part: the dead get no reward, no loss and no attention."""
        return jnp.ones(self.num_agents, bool)

    def scripted(self, key: Key[Array, ""], world: World) -> Float[Array, "agents actions"]:
        """Fixed behaviour for every role, to compare with."""
        raise InputError(f"{self.name} has no scripted players: use random")

    def scene(self, world: World) -> Scene:
        """Where everything is, for replays."""
        raise InputError(
            f"{self.name} cannot be replayed: it has no 2-D positions (its method `scene`)"
        )

    def observe_flat(self, world: World) -> Float[Array, "agents width"]:
        """The observation as one vector per agent, for networks of one population."""
        seen = self.observe(world)
        parts = [seen.own]
        for name in sorted(seen.entities):
            features, mask = seen.entities[name]
            parts += [jnp.where(mask[..., None], features, 0.0), mask[..., None]]
        return jnp.concatenate([x.reshape(len(x), -1).astype(jnp.float32) for x in parts], 1)

    def positions(self, world: World) -> Float[Array, "agents dims"]:
        """Where the agents are, to find the nearest ones; for neighbourhoods."""
        raise InputError(self._no_neighbourhoods)

    def observe_nearest(self, world: World, k: int) -> Observation:
        """As `observe`, but of each entity type the `k` nearest that live; for neighbourhoods.

        A type has `k` slots, or as many as in `observe` if these are fewer; then all are the same.
        """
        raise InputError(self._no_neighbourhoods)

    @staticmethod
    def frame(own: Float[Array, "features *rows"]) -> Frame:
        """The frame in which an agent sees the world and acts; for equivariant networks.

        Given what it observes of itself, features first. Mirrored and turned worlds must play in
        the same way, and look the same from the frame.
        """
        raise NotImplementedError

    # Many worlds: the batch is the last axis of every array

    def reset_batch(self, keys: Key[Array, "batch"]) -> World:
        return jax.vmap(self.reset, out_axes=-1)(keys)

    def step_batch(
        self,
        keys: Key[Array, "batch"],
        worlds: World,
        actions: Float[Array, "agents actions batch"],
    ) -> tuple[World, Outcome]:
        return jax.vmap(self.step, (0, -1, -1), -1)(keys, worlds, actions)

    def observe_batch(self, worlds: World) -> Observation:
        return jax.vmap(self.observe, -1, -1)(worlds)

    def observe_flat_batch(self, worlds: World) -> Float[Array, "agents width batch"]:
        return jax.vmap(self.observe_flat, -1, -1)(worlds)

    def positions_batch(self, worlds: World) -> Float[Array, "agents dims batch"]:
        return jax.vmap(self.positions, -1, -1)(worlds)

    def observe_nearest_batch(self, worlds: World, k: int) -> Observation:
        return jax.vmap(lambda world: self.observe_nearest(world, k), -1, -1)(worlds)

    def alive_batch(self, worlds: World) -> Bool[Array, "agents batch"]:
        return jax.vmap(self.alive, -1, -1)(worlds)

    # Agents and roles

    @property
    def reference(self) -> str:
        """What configs call the game: its name if it comes with epcx, else module:Class."""
        built_in = type(self).__module__.startswith("epcx.games.")
        return self.name if built_in else registry.reference(type(self))

    @property
    def has_script(self) -> bool:
        return type(self).scripted is not Game.scripted

    @cached_property
    def has_difference_rewards(self) -> bool:
        key, actions = jax.random.key(0), jnp.zeros((self.num_agents, self.num_actions))
        _, outcome = jax.eval_shape(self.step, key, self.world_shapes, actions)
        return outcome.difference is not None

    @property
    def has_scene(self) -> bool:
        """Whether it can be drawn."""
        return type(self).scene is not Game.scene

    def check_neighbours(self, neighbours: int | None) -> None:
        """Refuses neighbourhoods if the game cannot tell who is near."""
        cls = type(self)
        both = cls.positions, cls.observe_nearest
        if neighbours is not None and (Game.positions in both or Game.observe_nearest in both):
            raise InputError(f"neighbours {neighbours}: {self._no_neighbourhoods}")

    def check_frame(self) -> None:
        """Refuses equivariant networks if the game does not say how its worlds turn."""
        if type(self).frame is Game.frame:
            raise InputError(
                f"network equivariant does not go with {self.name}, which does not say how its "
                "worlds turn (its method `frame`): use relational"
            )

    def check_difference_rewards(self) -> None:
        """Refuses them if the game does not define them."""
        if not self.has_difference_rewards:
            raise InputError(
                f"difference-rewards does not go with {self.name}, which does not define them "
                "(the field `difference` of its outcomes)"
            )

    @property
    def _no_neighbourhoods(self) -> str:
        return (
            f"{self.name} has no neighbourhoods, which need its methods `positions` and "
            "`observe_nearest`"
        )

    @property
    def num_agents(self) -> int:
        return self.population.total

    @property
    def num_actions(self) -> int:
        """The length of an action: the most that any role has."""
        return max(role.num_actions for role in self.roles)

    @cached_property
    def action_mask(self) -> Bool[np.ndarray, "agents actions"]:
        """Which actions each agent has."""
        counts = np.repeat([role.num_actions for role in self.roles], self.population.counts)
        return np.arange(self.num_actions)[None] < counts[:, None]

    @cached_property
    def members(self) -> dict[str, slice]:
        """The agents of each role, as a slice of the agent axis."""
        ends = np.cumsum(self.population.counts)
        return {
            role.name: slice(int(end) - n, int(end))
            for role, n, end in zip(self.roles, self.population.counts, ends, strict=True)
        }

    @cached_property
    def agent_names(self) -> tuple[str, ...]:
        return tuple(
            f"{role.name}_{i}"
            for role, n in zip(self.roles, self.population.counts, strict=True)
            for i in range(n)
        )

    def role(self, name: str) -> Role:
        for role in self.roles:
            if role.name == name:
                return role
        names = ", ".join(role.name for role in self.roles)
        raise InputError(f"{self.name} has no role {name!r}: its roles are {names}")

    @cached_property
    def observation_shapes(self) -> Observation:
        """The shapes of an observation of one world."""
        return jax.eval_shape(self.observe, self.world_shapes)

    @cached_property
    def flat_width(self) -> int:
        """The length of one flat observation."""
        return int(jax.eval_shape(self.observe_flat, self.world_shapes).shape[1])

    @cached_property
    def world_shapes(self) -> World:
        """The shapes of the arrays of a world."""
        return jax.eval_shape(lambda: self.reset(jax.random.key(0)))

    # Scores

    def score(self, values: np.ndarray, role: str, axis: int = 0) -> Any:
        """Members' rewards as the paper reports them: a team's sum; the mean without opponents.

        Also the mean where all members get the same reward. `axis` is that of the members.
        """
        if self.role(role).shares_reward:
            return values.mean(axis)
        return self.total(values, axis)

    def per_member(self, score: float, role: str) -> float:
        """A team's score as the mean of its members' rewards."""
        if len(self.roles) == 1 or self.role(role).shares_reward:
            return score
        members = self.members[role]
        return score / (members.stop - members.start)

    def total(self, values: np.ndarray, axis: int = 0) -> Any:
        """Statistics of members as they are reported: a team's sum; the mean without opponents."""
        return values.sum(axis) if len(self.roles) > 1 else values.mean(axis)


def options_of(game: Game) -> dict[str, Any]:
    """What a game was made with beside the population, where that is not the default."""
    usual = type(game)(game.population)
    mine = {field.name: getattr(game, field.name) for field in fields(game)}
    return {name: value for name, value in mine.items() if value != getattr(usual, name)}


def check(cls: type[Game]) -> None:
    """Refuses a class that does not meet the contract."""
    require = ("reset", "step", "observe")
    registry.require(cls, Game, "game", require, "name", "roles", "stages")
    for stage in cls.stages:
        Population.parse(stage)
    if not cls.stages or not cls.roles or not all(isinstance(role, Role) for role in cls.roles):
        raise InputError(
            f"game {registry.reference(cls)} needs at least one stage, and roles of type Role"
        )
