"""What games speak of: populations, roles, worlds, and what agents see and get."""

import re
import reprlib
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from epcx.errors import InputError, whole_number

FOOD = "food"
OBSTACLES = "obstacles"
MAX_AGENTS = 10_000
PART = re.compile("0*[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True)
class Population:
    """How many agents each role has; written `3-2`, or `6` for one role."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = tuple(whole_number("number of agents", n, 1, MAX_AGENTS) for n in self.counts)
        object.__setattr__(self, "counts", counts)
        if not 0 < self.total <= MAX_AGENTS:
            raise InputError(
                f"population '{self}' has {self.total} agents: from 1 to {MAX_AGENTS} are allowed"
            )

    @classmethod
    def parse(cls, text: "str | int | Population") -> "Population":
        if isinstance(text, Population):
            return text
        parts = str(text).strip().split("-")
        if not all(PART.fullmatch(part) for part in parts):
            shown = reprlib.repr(str(text))
            raise InputError(
                f"population {shown} is malformed: write one whole number of at least 1 per "
                "role, joined by '-', such as 3-2"
            )
        return cls(tuple(int(part) for part in parts))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def __str__(self) -> str:
        return "-".join(map(str, self.counts))


@dataclass(frozen=True)
class Role:
    """A kind of agent: its body and the colour it is drawn in."""

    name: str
    size: float
    acceleration: float
    max_speed: float
    colour: str
    shares_reward: bool = False  # all members get the same, which counts once in a team's score


@dataclass(frozen=True)
class EntityType:
    """A set of entities that an agent sees, encoded alike.

    `shows` names, for each observing role in order, the role whose members are seen; or it is
    FOOD or OBSTACLES for all.
    """

    name: str
    shows: tuple[str, ...] | str
    with_velocity: bool = True


class World(eqx.Module):
    """The full state of one running episode: agents N, food F, obstacles O."""

    position: Float[Array, "..."]  # [N, 2]
    velocity: Float[Array, "..."]  # [N, 2]
    alive: Bool[Array, "..."]  # [N]
    food: Float[Array, "..."]  # [F, 2]
    time: Int[Array, "..."]  # [], the steps played so far
    obstacles: Float[Array, "..."] | None = None  # [O, 2], in predator-prey


class Events(eqx.Module):
    """What happened in a step, so that statistics need no second copy of the rules."""

    ate: Int[Array, "..."]  # [N], pellets touched
    killed: Int[Array, "..."]  # [N], deaths that the agent had a part in
    died: Bool[Array, "..."]  # [N]
    touched: Int[Array, "..."]  # [N], agents whose contact counts in the rules
    occupied: Bool[Array, "..."]  # [F], touched by somebody who may
    invalid: Bool[Array, "..."]  # [N], the action was not finite, and was ignored


class Outcome(eqx.Module):
    """What a step gives: task reward and shaping are kept apart."""

    reward: Float[Array, "..."]  # [N]
    shaping: Float[Array, "..."]  # [N]
    done: Bool[Array, "..."]  # [N], nothing to come concerns the agent; not the time limit
    events: Events


class Entities(NamedTuple):
    """One set per agent: features (relative position, velocity) and who is there to be seen."""

    features: Float[Array, "..."]  # [N, slots, 2 or 4]
    mask: Bool[Array, "..."]  # [N, slots]


class Observation(eqx.Module):
    """What every agent sees: itself (velocity, position, alive) and one set per entity type."""

    own: Float[Array, "..."]  # [N, 5]
    entities: dict[str, Entities]


class Verdict(NamedTuple):
    """What `judge` decides. Axes: agents (and food for `occupied`), then any batch."""

    reward: Array
    shaping: Array
    died: Array
    ate: Array
    killed: Array
    touched: Array
    occupied: Array
