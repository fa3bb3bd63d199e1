"""Predator-prey: `simple_tag` of the multi-agent particle environments (mpe2), any counts."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epcx.errors import InputError, whole_number
from epcx.games.game import MAX_AGENTS
from epcx.games.particle import (
    OBSTACLES,
    EntityType,
    ParticleGame,
    ParticleRole,
    ParticleWorld,
    Resolution,
    flatten,
    others,
)
from epcx.games.physics import TIME_STEP, count, squared_distances
from epcx.games.scripted import chase, run_away, steer

TAG_REWARD = 10.0


@dataclass(frozen=True)
class PredatorPrey(ParticleGame):
    """`obstacles` is the number of large bodies that stand in the way."""

    obstacles: int = 2

    name = "predator-prey"
    roles = (
        ParticleRole("prey", size=0.05, acceleration=4.0, max_speed=1.3, colour="#4f8fd9"),
        ParticleRole(
            "predator",
            size=0.075,
            acceleration=3.0,
            max_speed=1.0,
            colour="#d9534a",
            shares_reward=True,
        ),
    )
    entity_types = (
        EntityType("prey", ("prey", "prey")),
        EntityType("predators", ("predator", "predator"), with_velocity=False),
        EntityType("obstacles", OBSTACLES),
    )
    stages = ("3-2", "6-4", "12-8")
    statistics = {"touched": "contacts per episode"}
    rules = (
        "Every step, each touch of predator and prey: -10 for that prey, +10 for every predator.",
        "Nobody dies. Obstacles stand in the way, and there are no walls.",
        "Shaping: prey pay for leaving the square, up to -10 per axis and step.",
    )
    walls = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_food:
            raise InputError(f"food {self.food} does not fit predator-prey, which has none")
        whole_number("obstacles", self.obstacles, 0, MAX_AGENTS)

    @property
    def default_food(self) -> int:
        return 0

    @property
    def num_obstacles(self) -> int:
        return round(self.growth * self.obstacles)

    def reset(self, key: Array) -> ParticleWorld:
        agents, obstacles = jax.random.split(key)
        return replace(super().reset(agents), obstacles=self.scatter(obstacles, self.num_obstacles))

    def move(self, world: ParticleWorld, thrust: Array) -> tuple[Array, Array]:
        """As mpe2: positions follow the old velocities, and nothing keeps anybody inside."""
        moved = world.position + TIME_STEP * world.velocity
        moved = jnp.where(world.alive[:, None], moved, world.position)
        return moved, self.accelerate(world, thrust)

    def resolve(self, world: ParticleWorld, position: Array) -> Resolution:
        prey, predators = (self.members[role.name] for role in self.roles)
        alive = world.alive
        reach = sum(role.size for role in self.roles)
        apart = squared_distances(position[prey], position[predators])  # [prey, predators]
        tagged = (apart < reach**2) & alive[prey][:, None] & alive[predators][None]

        hits = TAG_REWARD * count(tagged, 1)
        team = jnp.where(alive[predators], hits.sum(0), 0.0)
        own = TAG_REWARD * count(tagged, 0) * count(alive[predators], 0)  # all predators get it
        place = self.visible_position(position[prey])
        fence = leaving_penalty(jnp.abs(place) / self.world_size).sum(1)
        nothing = jnp.zeros(alive.shape)
        return Resolution(
            reward=jnp.concatenate([-hits, team]),
            difference=jnp.concatenate([-hits, own]),
            shaping=jnp.concatenate([-jnp.where(alive[prey], fence, 0.0), jnp.zeros(team.shape)]),
            died=nothing > 0,
            ate=nothing,
            killed=nothing,
            touched=jnp.concatenate([count(tagged, 1), count(tagged, 0)]),
            occupied=jnp.zeros((0, *alive.shape[1:]), bool),
        )

    def observe_flat(self, world: ParticleWorld) -> Float[Array, "agents width *batch"]:
        """mpe2's layout, prey first: own velocity, position; obstacles; others; velocities of prey.

        Prey see one velocity less than predators do; their vectors are filled up with zeros.
        """
        prey = self.population.counts[0]
        position = world.position
        assert world.obstacles is not None
        velocities = others(world.velocity)[:, :prey]
        return flatten(
            world.velocity[:, None],
            self.visible_position(position)[:, None],
            world.obstacles[None] - position[:, None],
            others(position) - position[:, None],
            velocities.at[:prey, prey - 1].set(0.0),
        )

    def scripted(self, key: Array, world: ParticleWorld) -> Array:
        return steer(self, world, [run_away(self, world), chase(self, world)])


def leaving_penalty(x: Array) -> Array:
    """What it costs to be at distance x from the centre of a world of size 1, along one axis."""
    return jnp.where(
        x < 0.9, 0.0, jnp.where(x < 1.0, 10 * (x - 0.9), jnp.minimum(jnp.exp(2 * x - 2), 10.0))
    )
