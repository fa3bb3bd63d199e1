"""The contract of all games: how worlds start, step and look.

A game is a subclass of `Game` with its constants and one method, `judge`: who eats, dies and is
rewarded. Physics, respawning and observations are the same everywhere and live here.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epcx.errors import InputError, whole_number
from epcx.games import particle
from epcx.games.world import (
    FOOD,
    MAX_AGENTS,
    Entities,
    EntityType,
    Events,
    Observation,
    Outcome,
    Population,
    Role,
    Verdict,
    World,
)

NUM_ACTIONS = 5  # none, +x, -x, +y, -y
MAX_THRUST = 1e6  # far beyond any speed limit, and safe to square
EMPTY_BORDER = 0.9  # food and obstacles appear within this share of the world


@dataclass(frozen=True)
class Game:
    """The rules of a world, as pure functions.

    Everything is written for one world, and callers vmap. `step` and the observations also take
    many worlds at once, with the batch axes at the end of every array: fastest on a CPU.
    `food` is the number of pellets (by default the game's own), `world_size` half the side of
    the square that the agents live in.
    """

    population: Population
    food: int | None = None
    world_size: float = 1.0

    name: ClassVar[str]
    roles: ClassVar[tuple[Role, ...]]
    entity_types: ClassVar[tuple[EntityType, ...]]
    stages: ClassVar[tuple[str, ...]]  # the populations of the paper
    rules: ClassVar[tuple[str, ...]]  # for people, a sentence each
    statistics: ClassVar[tuple[str, ...]]  # the fields of `Events` that tell how a game went
    covers: ClassVar[bool] = False  # whether the share of occupied food matters
    symmetric: ClassVar[bool] = False  # whether all roles are the same but for their names
    food_name: ClassVar[str] = "food"
    food_size: ClassVar[float] = 0.03
    obstacle_size: ClassVar[float] = 0.2
    food_respawns: ClassVar[bool] = False
    walls: ClassVar[bool] = True
    horizon: ClassVar[int] = 25

    def __post_init__(self) -> None:
        object.__setattr__(self, "population", Population.parse(self.population))
        roles = "-".join(role.name for role in self.roles)
        if len(self.population.counts) != len(self.roles):
            raise InputError(
                f"population '{self.population}' does not fit {self.name}, which has "
                f"{len(self.roles)} role{'s' * (len(self.roles) > 1)} ({roles}): write it like "
                f"{self.stages[0]}"
            )
        if self.food is not None:
            whole_number("food", self.food, 0, MAX_AGENTS)
        if not isinstance(self.world_size, int | float) or not 0 < self.world_size < np.inf:
            raise InputError(f"world_size {self.world_size!r} is not a positive number")

    # Who is who

    @property
    def num_agents(self) -> int:
        return self.population.total

    @property
    def num_food(self) -> int:
        return self.default_food if self.food is None else self.food

    @property
    def default_food(self) -> int:
        raise NotImplementedError

    @property
    def num_obstacles(self) -> int:
        return 0

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
        """What members do, as it is reported: a team's sum; the mean without opponents."""
        return values.sum(axis) if len(self.roles) > 1 else values.mean(axis)

    def per_agent(self, field: str) -> np.ndarray:
        """A field of `Role` for every agent [N]."""
        values = [getattr(role, field) for role in self.roles]
        return np.repeat(np.asarray(values, np.float32), self.population.counts)

    # Playing

    def reset(self, key: Array) -> World:
        """A new world: everybody alive, at rest, at a random place."""
        agents, food = jax.random.split(key)
        n = self.num_agents
        return World(
            position=self.scatter(agents, n, 1.0),
            velocity=jnp.zeros((n, 2), jnp.float32),
            alive=jnp.ones(n, bool),
            food=self.scatter(food, self.num_food),
            time=jnp.zeros((), jnp.int32),
        )

    def scatter(self, key: Array, n: int, share: float = EMPTY_BORDER) -> Float[Array, "n 2"]:
        """Places drawn uniformly from a share of the world."""
        reach = share * self.world_size
        return jax.random.uniform(key, (n, 2), jnp.float32, minval=-reach, maxval=reach)

    def step(self, key: Array, world: World, actions: Any) -> tuple[World, Outcome]:
        """Plays one step. Actions [N, 5] are weights of none, +x, -x, +y, -y, used as they are.

        With batch axes at the end of world and actions, `key` has one key per world.
        """
        world = jax.tree.map(jnp.asarray, world)  # NumPy's arrays are welcome
        actions = self._checked(key, world, actions)
        arrivals = world.food
        if self.food_respawns:
            scatter = partial(self.scatter, n=self.num_food)
            for _ in world.time.shape:
                scatter = jax.vmap(scatter, out_axes=-1)
            arrivals = scatter(key)
        return self._batched_transition(world, actions, arrivals)

    def _checked(self, key: Array, world: World, actions: Any) -> Float[Array, "..."]:
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
        return particle.batch_last(self._transition)

    def _transition(self, world: World, actions: Array, arrivals: Array) -> tuple[World, Outcome]:
        thrust = jnp.stack([actions[:, 1] - actions[:, 2], actions[:, 3] - actions[:, 4]], 1)
        thrust = thrust * particle.expand(self.per_agent("acceleration"), thrust)
        valid = jnp.isfinite(actions).all(1)
        thrust = jnp.clip(jnp.where(valid[:, None], thrust, 0.0), -MAX_THRUST, MAX_THRUST)
        position, velocity = self.move(world, thrust)
        verdict = self.judge(world, position)
        alive = world.alive & ~verdict.died
        food = world.food
        if self.food_respawns:
            food = jnp.where(verdict.occupied[:, None], arrivals, food)
        events = Events(
            ate=verdict.ate.astype(jnp.int32),
            killed=verdict.killed.astype(jnp.int32),
            died=verdict.died,
            touched=verdict.touched.astype(jnp.int32),
            occupied=verdict.occupied,
            invalid=~valid,
        )
        after = World(position, velocity, alive, food, world.time + 1, world.obstacles)
        reward, shaping = (x.astype(jnp.float32) for x in (verdict.reward, verdict.shaping))
        return after, Outcome(reward, shaping, self.finished(alive), events)

    def move(self, world: World, thrust: Array) -> tuple[Array, Array]:
        """Positions and velocities after the step. The dead stay, but still push."""
        velocity = self.accelerate(world, thrust)
        moved = world.position + particle.TIME_STEP * velocity
        moved = jnp.clip(moved, -self.world_size, self.world_size)
        return jnp.where(world.alive[:, None], moved, world.position), velocity

    def accelerate(self, world: World, thrust: Array) -> Array:
        """Velocities after the step, under thrust and the contact with agents and obstacles."""
        position, size = world.position, self.per_agent("size")
        force = thrust + particle.contact_forces(position, position, size[:, None] + size[None, :])
        if world.obstacles is not None:
            force = force + particle.contact_forces(
                position, world.obstacles, size[:, None] + self.obstacle_size
            )
        return particle.accelerate(world.velocity, force, self.per_agent("max_speed"))

    def judge(self, world: World, position: Array) -> Verdict:
        """The rules: `world` as the step began, `position` where everybody is now.

        Index and reduce axes from the front: axes at the end belong to a batch of worlds.
        """
        raise NotImplementedError

    def finished(self, alive: Array) -> Array:
        """For whom nothing is left to come, given who is alive after the step."""
        return ~alive

    # Seeing

    def observe(self, world: World) -> Observation:
        """What every agent sees. The dead, itself and empty slots are masked, and zero."""
        own = jnp.concatenate([world.velocity, world.position, world.alive[:, None]], 1)
        return Observation(
            own, {kind.name: self._entities(kind, world) for kind in self.entity_types}
        )

    def _entities(self, kind: EntityType, world: World) -> Entities:
        if isinstance(kind.shows, str):
            things = world.food if kind.shows == FOOD else world.obstacles
            assert things is not None
            features = things[None] - world.position[:, None]
            return Entities(features, jnp.ones(features.shape[:2] + features.shape[3:], bool))
        blocks = [
            self._others(world, self.members[role.name], self.members[seen], kind.with_velocity)
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

    def _others(self, world: World, observers: slice, seen: slice, with_velocity: bool) -> Entities:
        """The agents `seen`, as the agents `observers` see them."""
        features = world.position[seen][None] - world.position[observers][:, None]
        if with_velocity:
            velocity = jnp.broadcast_to(world.velocity[seen], features.shape)
            features = jnp.concatenate([features, velocity], 2)
        mask = jnp.broadcast_to(world.alive[seen], features.shape[:2] + features.shape[3:])
        if observers == seen:
            mask = mask & ~particle.expand(np.eye(len(mask), dtype=bool), mask)
        return Entities(jnp.where(mask[:, :, None], features, 0.0), mask)

    def observe_flat(self, world: World) -> Float[Array, "agents width *batch"]:
        """The same as one vector per agent, in the layout of the paper's authors.

        Own velocity, position, alive; (relative position, 1) of each pellet; then of all others, in
        order and without the agent itself: relative positions, velocities, alive. The dead are 0.
        """
        position = world.position
        pellets = world.food[None] - position[:, None]
        seen = others(world.alive[:, None])
        return flatten(
            world.velocity[:, None],
            position[:, None],
            world.alive[:, None, None],
            jnp.concatenate([pellets, jnp.ones_like(pellets[:, :, :1])], 2),
            jnp.where(seen, others(position) - position[:, None], 0.0),
            jnp.where(seen, others(world.velocity), 0.0),
            seen,
        )

    @cached_property
    def flat_width(self) -> int:
        """The length of one flat observation."""
        world = jax.eval_shape(self.reset, jax.random.key(0))
        return int(jax.eval_shape(self.observe_flat, world).shape[1])


def others(values: Array) -> Array:
    """For each row of [n, k, *batch] all rows but itself, in order: [n, n-1, k, *batch]."""
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
