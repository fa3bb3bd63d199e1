"""Whom a critic looks at: all agents, or its agent and the nearest teammates and opponents."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from epcx.games import Game, Observation, World
from epcx.games.neighbours import k_nearest
from epcx.networks.layers import flatten_rows, take_rows
from epcx.networks.seat import Seat

ABSENT, TEAMMATE, OPPONENT = 0, 1, 2  # the agent itself is in no group, either


class NearViews(Observation):
    """What agents see, features first, and the neighbourhood of each.

    Slot 0 is the agent itself; then come teammates and opponents, each in the order of seats.
    """

    agents: Int[Array, "slots *agents batch"]  # by seat
    group: Int[Array, "slots *agents batch"]


class Attended(NamedTuple):
    """The agents that a critic encodes: all, in the order of seats, or its neighbourhood."""

    seat: Seat
    alive: Bool[Array, "agents batch"]
    agents: Int[Array, "slots batch"] | None = None  # of the neighbourhood
    group: Int[Array, "slots batch"] | None = None

    @property
    def groups(self) -> list[Bool[Array, "slots batch"]]:
        """Those that it attends to: living teammates, living opponents."""
        if self.group is None:
            return self.seat.groups(self.alive)
        return [self.group == TEAMMATE, self.group == OPPONENT]

    def take(
        self, values: Shaped[Array, "*axes agents batch"]
    ) -> Shaped[Array, "*axes slots batch"]:
        """Those of the agents that are encoded."""
        if self.agents is None:
            return values
        rows = take_rows(flatten_rows(values, 2), row_index(self.agents))
        return rows.reshape(*values.shape[:-2], *self.agents.shape)

    def mine(self, values: Shaped[Array, "*axes slots batch"]) -> Shaped[Array, "*axes batch"]:
        """The agent's own."""
        return self.seat.mine(values) if self.agents is None else values[..., 0, :]


def attended(views: Observation, alive: Bool[Array, "agents batch"], seat: Seat) -> Attended:
    """Those of the agent in a seat."""
    if not isinstance(views, NearViews):
        return Attended(seat, alive)
    return Attended(seat, alive, seat.mine(views.agents), seat.mine(views.group))


def row_index(agents: Int[Array, "slots batch"]) -> Int[Array, "rows"]:
    """Where the agents are among rows of all agents and samples."""
    batch = agents.shape[1]
    return (agents * batch + jnp.arange(batch)).reshape(-1)


def add_neighbourhoods(views: Observation, game: Game, worlds: World, k: int) -> Observation:
    """Views with the `k` nearest teammates and opponents that live, for every agent.

    If these are everybody, views remain as they are, and critics look at all agents.
    """
    if covers_everybody(game, k):
        return views
    agents, group = neighbourhoods(game, worlds, k)
    return NearViews(views.own, views.entities, agents, group)


def covers_everybody(game: Game, k: int) -> bool:
    return k >= max(_group_sizes(game))


def num_slots(game: Game, k: int) -> int:
    """Agents that a critic encodes."""
    if covers_everybody(game, k):
        return game.num_agents
    return 1 + sum(min(k, size) for size in _group_sizes(game))


def num_seen(game: Game, k: int | None) -> int:
    """Entities that an agent sees: all, or of each type at most the nearest `k`."""
    slots = [entities.mask.shape[1] for entities in game.observation_shapes.entities.values()]
    return sum(slots if k is None else (min(k, n) for n in slots))


def _group_sizes(game: Game) -> tuple[int, int]:
    """The most teammates, and the most opponents, that an agent has."""
    counts = game.population.counts
    return max(counts) - 1, game.num_agents - min(counts)


def neighbourhoods(
    game: Game, worlds: World, k: int
) -> tuple[Int[Array, "slots agents batch"], Int[Array, "slots agents batch"]]:
    """Agents and groups, as in `NearViews`."""
    place, alive = game.positions_batch(worlds), game.alive_batch(worlds)
    slots = [min(k, size) for size in _group_sizes(game)]
    blocks = []
    for members in game.members.values():
        first, last, mine = members.start, members.stop, place[members]
        others = [jnp.concatenate([x[:first], x[last:]]) for x in (place, alive)]
        teammates = k_nearest(mine, mine, alive[members], k, same=True)
        opponents = k_nearest(mine, others[0], others[1], k)
        before = opponents.number < first
        shape = len(mine), 1, place.shape[-1]
        me = jnp.broadcast_to(jnp.arange(first, last, dtype=jnp.int32)[:, None, None], shape)
        parts = [
            (me, jnp.zeros(shape, jnp.int8)),
            _widened(teammates.number + first, teammates.present, TEAMMATE, slots[0]),
            _widened(
                jnp.where(before, opponents.number, opponents.number + last - first),
                opponents.present,
                OPPONENT,
                slots[1],
            ),
        ]
        blocks.append([jnp.concatenate(x, 1) for x in zip(*parts, strict=True)])
    agents, groups = (jnp.concatenate(x).swapaxes(0, 1) for x in zip(*blocks, strict=True))
    return agents, groups


def _widened(
    agents: Int[Array, "agents found batch"],
    present: Bool[Array, "agents found batch"],
    group: int,
    slots: int,
) -> tuple[Int[Array, "agents slots batch"], Int[Array, "agents slots batch"]]:
    """Agents and their group in as many slots as all roles have; the absent are in none."""
    padding = (0, 0), (0, slots - agents.shape[1]), (0, 0)
    groups = jnp.where(present, group, ABSENT).astype(jnp.int8)
    return jnp.pad(agents, padding), jnp.pad(groups, padding)
