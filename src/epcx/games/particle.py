"""Particle games: agents move in a square by thrust, damping and contact forces.

A particle game is a subclass of `ParticleGame` with its constants and one method, `resolve`: who
eats, dies and is rewarded. Physics, respawning and observations are shared and live here. All of
it also takes many worlds at once, with the batch axes at the end of every array: on a CPU that is
several times faster than a batch axis in front.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from epcx.errors import InputError, choice, whole_number
from epcx.games import physics
from epcx.games.frames import octant
from epcx.games.game import (
    MAX_AGENTS,
    Entities,
    Game,
    Observation,
    Outcome,
    Population,
    Role,
    Scene,
)
from epcx.games.neighbours import Nearest, k_nearest

NUM_ACTIONS = 5  # none, +x, -x, +y, -y
MAX_THRUST = 1e6  # far beyond any speed limit, and safe to square
EMPTY_BORDER = 0.9  # food and obstacles appear within this share of the world
Density = Literal["paper", "constant"]
FOOD = "food"
OBSTACLES = "obstacles"


@dataclass(frozen=True)
class ParticleRole(Role):
    """A role with a body: how it accelerates, and how fast it can be."""

    num_actions: int = NUM_ACTIONS
    acceleration: float = 4.0
    max_speed: float = 3.0


@dataclass(frozen=True)
class EntityType:
    """A set of entities that an agent sees, encoded alike.

    `shows` names, for each observing role in order, the role whose members are seen; or it is
    FOOD or OBSTACLES for all.
    """

    name: str
    shows: tuple[str, ...] | str
    with_velocity: bool = True


class ParticleWorld(eqx.Module):
    """The full state of one running episode; `time` counts the steps played so far."""

    position: Float[Array, "agents 2 *batch"]
    velocity: Float[Array, "agents 2 *batch"]
    alive: Bool[Array, "agents *batch"]
    food: Float[Array, "food 2 *batch"]
    time: Int[Array, "*batch"]
    obstacles: Float[Array, "obstacles 2 *batch"] | None = None  # in predator-prey


class Events(eqx.Module):
    """What happened in a step, so that statistics need no second copy of the rules."""

    ate: Int[Array, "agents *batch"]  # pellets touched
    killed: Int[Array, "agents *batch"]  # deaths that the agent had a part in
    died: Bool[Array, "agents *batch"]
    touched: Int[Array, "agents *batch"]  # agents whose contact counts in the rules
    occupied: Bool[Array, "food *batch"]  # touched by an agent that may eat
    invalid: Bool[Array, "agents *batch"]  # the action was not finite, and was ignored

    @property
    def coverage(self) -> Float[Array, "*batch"]:
        """The share of the food that is occupied."""
        return self.occupied.mean(0)


class Resolution(NamedTuple):
    """What the rules decide in a step."""

    reward: Float[Array, "agents *batch"]
    difference: Float[Array, "agents *batch"]  # reward, as in `Outcome`
    shaping: Float[Array, "agents *batch"]
    died: Bool[Array, "agents *batch"]
    ate: Float[Array, "agents *batch"]
    killed: Float[Array, "agents *batch"]
    touched: Float[Array, "agents *batch"]
    occupied: Bool[Array, "food *batch"]


@dataclass(frozen=True)
class ParticleGame(Game):
    """`food` is the number of pellets (by default the game's own), `world_size` half the side of
    the square that the agents live in.

    With `density` "constant" both are those up to the last population of `stages`: beyond it, the
    area of the world and what lies in it grow with the number of agents.
    """

    food: int | None = None
    world_size: float = 1.0
    density: Density = "paper"

    roles: ClassVar[tuple[ParticleRole, ...]]
    entity_types: ClassVar[tuple[EntityType, ...]]
    soft_actions = True
    frame = staticmethod(octant)
    food_name: ClassVar[str] = "food"
    food_size: ClassVar[float] = 0.03
    obstacle_size: ClassVar[float] = 0.2
    food_respawns: ClassVar[bool] = False
    walls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.food is not None:
            whole_number("food", self.food, 0, MAX_AGENTS)
        if not isinstance(self.world_size, int | float) or not 0 < self.world_size < np.inf:
            raise InputError(f"world_size {self.world_size!r} is not a positive number")
        choice("density", self.density, Density)

    @cached_property
    def growth(self) -> float:
        """The area of the world, over that of the last population of `stages`."""
        if self.density == "paper":
            return 1.0
        return max(1.0, self.num_agents / Population.parse(self.stages[-1]).total)

    @property
    def half_side(self) -> float:
        """Of the square that the agents live in."""
        return self.world_size * math.sqrt(self.growth)

    @property
    def num_food(self) -> int:
        if self.growth > 1:
            last = replace(self, population=Population.parse(self.stages[-1]))
            return round(self.growth * last.num_food)
        return self.default_food if self.food is None else self.food

    @property
    def default_food(self) -> int:
        raise NotImplementedError

    @property
    def num_obstacles(self) -> int:
        return 0

    def per_agent(self, field: str) -> Float[np.ndarray, "agents"]:
        """A field of the roles for every agent."""
        values = [getattr(role, field) for role in self.roles]
        return np.repeat(np.asarray(values, np.float32), self.population.counts)

    # Playing

    def reset(self, key: PRNGKeyArray) -> ParticleWorld:
        """A new world: all agents alive, at rest, at a random place."""
        agents, food = jax.random.split(key)
        n = self.num_agents
        return ParticleWorld(
            position=self.scatter(agents, n, 1.0),
            velocity=jnp.zeros((n, 2), jnp.float32),
            alive=jnp.ones(n, bool),
            food=self.scatter(food, self.num_food),
            time=jnp.zeros((), jnp.int32),
        )

    def scatter(
        self, key: PRNGKeyArray, n: int, share: float = EMPTY_BORDER
    ) -> Float[Array, "n 2"]:
        """Places drawn uniformly from a share of the world, whose empty border does not grow."""
        reach = share * self.world_size + self._interior
        return jax.random.uniform(key, (n, 2), jnp.float32, minval=-reach, maxval=reach)

    def step(self, key: Array, world: ParticleWorld, actions: Any) -> tuple[ParticleWorld, Outcome]:
        """Plays one step. Actions [N, 5] are weights of none, +x, -x, +y, -y, used as they are.

        With batch axes at the end of world and actions, `key` has one key per world.
        """
        world = jax.tree.map(jnp.asarray, world)  # NumPy's arrays are welcome
        actions = self._checked(key, world, actions)
        new_food = world.food
        if self.food_respawns:
            scatter = partial(self.scatter, n=self.num_food)
            for _ in world.time.shape:
                scatter = jax.vmap(scatter, out_axes=-1)
            new_food = scatter(key)
        return self._batched_transition(world, actions, new_food)

    def step_batch(
        self, keys: Array, worlds: ParticleWorld, actions: Any
    ) -> tuple[ParticleWorld, Outcome]:
        return self.step(keys, worlds, actions)

    def _checked(
        self, key: Array, world: ParticleWorld, actions: Any
    ) -> Float[Array, "agents 5 *batch"]:
        """The actions as numbers, if they, the world and the keys fit the game and each other."""
        batch, n = world.time.shape, self.num_agents
        here = f"{self.name} {self.population}"
        fits = world.position.shape == world.velocity.shape == (n, 2, *batch)
        fits &= world.alive.shape == (n, *batch) and world.alive.dtype == bool
        for places, number in ((world.food, self.num_food), (world.obstacles, self.num_obstacles)):
            fits &= number == 0 if places is None else places.shape == (number, 2, *batch)
        if not fits:
            raise InputError(f"this world does not fit {here}: use one that its reset or step gave")
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if (key.shape if typed else key.shape[:-1]) != batch:
            raise InputError(f"{here} needs one key per world, for worlds of shape {batch}")
        expected = (n, NUM_ACTIONS, *batch)
        try:
            numbers = jnp.asarray(actions)
        except (TypeError, ValueError):
            raise InputError(f"actions of {here} must be numbers of shape {expected}") from None
        if numbers.shape != expected or jnp.issubdtype(numbers.dtype, jnp.complexfloating):
            raise InputError(
                f"actions of shape {numbers.shape} and type {numbers.dtype} do not fit {here}: it "
                f"takes real numbers {expected}, for each agent the weights of none, +x, -x, +y, -y"
            )
        return numbers.astype(jnp.float32)

    @cached_property
    def _batched_transition(self):  # type: ignore[no-untyped-def]
        return physics.batch_last(self._transition)

    def _transition(
        self, world: ParticleWorld, actions: Array, new_food: Array
    ) -> tuple[ParticleWorld, Outcome]:
        thrust = jnp.stack([actions[:, 1] - actions[:, 2], actions[:, 3] - actions[:, 4]], 1)
        thrust = thrust * physics.expand(self.per_agent("acceleration"), thrust)
        valid = jnp.isfinite(actions).all(1)
        thrust = jnp.clip(jnp.where(valid[:, None], thrust, 0.0), -MAX_THRUST, MAX_THRUST)
        position, velocity = self.move(world, thrust)
        decided = self.resolve(world, position)
        alive = world.alive & ~decided.died
        food = world.food
        if self.food_respawns:
            food = jnp.where(decided.occupied[:, None], new_food, food)
        events = Events(
            ate=decided.ate.astype(jnp.int32),
            killed=decided.killed.astype(jnp.int32),
            died=decided.died,
            touched=decided.touched.astype(jnp.int32),
            occupied=decided.occupied,
            invalid=~valid,
        )
        after = ParticleWorld(position, velocity, alive, food, world.time + 1, world.obstacles)
        numbers = decided.reward, decided.shaping, decided.difference
        reward, shaping, difference = (x.astype(jnp.float32) for x in numbers)
        return after, Outcome(reward, shaping, self.finished(alive), events, difference)

    def move(self, world: ParticleWorld, thrust: Array) -> tuple[Array, Array]:
        """Positions and velocities after the step. The dead stay, but still push."""
        velocity = self.accelerate(world, thrust)
        moved = world.position + physics.TIME_STEP * velocity
        moved = jnp.clip(moved, -self.half_side, self.half_side)
        return jnp.where(world.alive[:, None], moved, world.position), velocity

    def accelerate(self, world: ParticleWorld, thrust: Array) -> Array:
        """Velocities after the step, under thrust and the contact with agents and obstacles."""
        position, size = world.position, self.per_agent("size")
        force = thrust + physics.contact_forces(position, position, size[:, None] + size[None, :])
        if world.obstacles is not None:
            force = force + physics.contact_forces(
                position, world.obstacles, size[:, None] + self.obstacle_size
            )
        return physics.accelerate(world.velocity, force, self.per_agent("max_speed"))

    def resolve(
        self, world: ParticleWorld, position: Float[Array, "agents 2 *batch"]
    ) -> Resolution:
        """The rules: `world` as the step began, `position` where everybody is now.

        Index and reduce axes from the front: axes at the end belong to a batch of worlds.
        """
        raise NotImplementedError

    def finished(self, alive: Bool[Array, "agents *batch"]) -> Bool[Array, "agents *batch"]:
        """Agents without any reward to come, given who is alive after the step."""
        return ~alive

    # Observing

    def alive(self, world: ParticleWorld) -> Bool[Array, "agents *batch"]:
        return world.alive

    def alive_batch(self, worlds: ParticleWorld) -> Bool[Array, "agents batch"]:
        return self.alive(worlds)

    def scene(self, world: ParticleWorld) -> Scene:
        nothing = jnp.zeros((0, 2))
        return Scene(
            world.position, world.food, nothing if world.obstacles is None else world.obstacles
        )

    @property
    def _interior(self) -> float:
        """Half the side of the square from which no wall is in sight; 0 unless the world grew."""
        return self.half_side - self.world_size

    def visible_position(self, position: Float[Array, "n 2 *batch"]) -> Float[Array, "n 2 *batch"]:
        """Positions as agents see their own: in a world that grew, relative to the walls.

        0 in the interior; from there to the walls, as in the world of `world_size`.
        """
        if self.growth == 1:
            return position
        return position - jnp.clip(position, -self._interior, self._interior)

    def observe(self, world: ParticleWorld) -> Observation:
        """What every agent sees. The dead, itself and empty slots are masked, and zero."""
        return self._observe(world)

    def observe_batch(self, worlds: ParticleWorld) -> Observation:
        return self.observe(worlds)

    def positions(self, world: ParticleWorld) -> Float[Array, "agents 2 *batch"]:
        return world.position

    def positions_batch(self, worlds: ParticleWorld) -> Float[Array, "agents 2 batch"]:
        return self.positions(worlds)

    def observe_nearest(self, world: ParticleWorld, k: int) -> Observation:
        return self._observe(world, k)

    def observe_nearest_batch(self, worlds: ParticleWorld, k: int) -> Observation:
        return self.observe_nearest(worlds, k)

    def _observe(self, world: ParticleWorld, k: int | None = None) -> Observation:
        """All that there is, or the `k` nearest of each type."""
        place = self.visible_position(world.position)
        own = jnp.concatenate([world.velocity, place, world.alive[:, None]], 1)
        return Observation(
            own, {kind.name: self._entities(kind, world, k) for kind in self.entity_types}
        )

    def _entities(self, kind: EntityType, world: ParticleWorld, k: int | None) -> Entities:
        if isinstance(kind.shows, str):
            things = world.food if kind.shows == FOOD else world.obstacles
            assert things is not None
            if k is not None and k < len(things):
                there = jnp.broadcast_to(world.time >= 0, things[:, 0].shape)
                near = k_nearest(world.position, things, there, k)
                return seen_from(world.position, near, things)
            features = things[None] - world.position[:, None]
            # Always true, but not a constant: XLA would spend seconds on folding a large one.
            mask = jnp.broadcast_to(world.time >= 0, features.shape[:2] + features.shape[3:])
            return Entities(features, mask)
        blocks = [
            self._others(world, self.members[role.name], self.members[seen], kind.with_velocity, k)
            for role, seen in zip(self.roles, kind.shows, strict=True)
        ]
        slots = max(block.mask.shape[1] for block in blocks)

        def stack(parts: tuple[Array, ...]) -> Array:
            """The blocks below each other, widened to the same number of slots."""
            return jnp.concatenate(
                [
                    jnp.pad(x, [(0, 0), (0, slots - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
                    for x in parts
                ]
            )

        return Entities(*map(stack, zip(*blocks, strict=True)))

    def _others(
        self,
        world: ParticleWorld,
        observers: slice,
        seen: slice,
        with_velocity: bool,
        k: int | None,
    ) -> Entities:
        """The agents `seen`, as the agents `observers` see them."""
        if k is not None and k < seen.stop - seen.start:
            place, others = world.position[observers], world.position[seen]
            near = k_nearest(place, others, world.alive[seen], k, observers == seen)
            return seen_from(place, near, others, world.velocity[seen] if with_velocity else None)
        features = world.position[seen][None] - world.position[observers][:, None]
        if with_velocity:
            velocity = jnp.broadcast_to(world.velocity[seen], features.shape)
            features = jnp.concatenate([features, velocity], 2)
        mask = jnp.broadcast_to(world.alive[seen], features.shape[:2] + features.shape[3:])
        if observers == seen:
            mask = mask & ~physics.expand(np.eye(len(mask), dtype=bool), mask)
        return Entities(jnp.where(mask[:, :, None], features, 0.0), mask)

    def observe_flat(self, world: ParticleWorld) -> Float[Array, "agents width *batch"]:
        """The same as one vector per agent, in the layout of the paper's authors.

        Own velocity, position, alive; (relative position, 1) of each pellet; then of all others, in
        order and without the agent itself: relative positions, velocities, alive. The dead are 0.
        """
        position = world.position
        pellets = world.food[None] - position[:, None]
        seen = others(world.alive[:, None])
        return flatten(
            world.velocity[:, None],
            self.visible_position(position)[:, None],
            world.alive[:, None, None],
            jnp.concatenate([pellets, jnp.ones_like(pellets[:, :, :1])], 2),
            jnp.where(seen, others(position) - position[:, None], 0.0),
            jnp.where(seen, others(world.velocity), 0.0),
            seen,
        )

    def observe_flat_batch(self, worlds: ParticleWorld) -> Float[Array, "agents width batch"]:
        return self.observe_flat(worlds)


def seen_from(
    place: Float[Array, "observers 2 *batch"],
    near: Nearest,
    position: Float[Array, "others 2 *batch"],
    velocity: Float[Array, "others 2 *batch"] | None = None,
) -> Entities:
    """Relative positions of the chosen, and their velocities; zero for the absent."""
    # Indices first: all pairs of features would be a hundred times as large.
    features = near.take(position) - place[:, None]
    if velocity is not None:
        features = jnp.concatenate([features, near.take(velocity)], 2)
    return Entities(jnp.where(near.present[:, :, None], features, 0.0), near.present)


def others(values: Shaped[Array, "n k *batch"]) -> Shaped[Array, "n others k *batch"]:
    """For each row all rows but itself, in order."""
    n = len(values)
    before = np.arange(n - 1)[None, :] < np.arange(n)[:, None]
    # A select between two shifted copies: gathers are slow.
    return jnp.where(
        before.reshape(n, n - 1, *[1] * (values.ndim - 1)), values[None, :-1], values[None, 1:]
    )


def flatten(*parts: Array) -> Float[Array, "agents width *batch"]:
    """Joins parts [agents, slots, features, *batch] to one vector per agent."""
    rows = [x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]) for x in parts]
    return jnp.concatenate([row.astype(jnp.float32) for row in rows], 1)
