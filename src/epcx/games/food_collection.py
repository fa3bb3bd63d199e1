"""Food Collection: one team, as many places as agents; stand on all of them, and do not collide."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epcx.errors import InputError
from epcx.games.particle import (
    FOOD,
    EntityType,
    ParticleGame,
    ParticleRole,
    ParticleWorld,
    Resolution,
)
from epcx.games.physics import count, expand, nearest, squared_distances
from epcx.games.scripted import assign_food, steer

FOOD_REWARD = 6.0  # for all places together, when there are as many as agents
COLLISION_PENALTY = 3.0
ALL_OCCUPIED_BONUS = 10.0
BONUS_DECAY = 2.0 / 26  # per step


class FoodCollection(ParticleGame):
    name = "food-collection"
    roles = (
        ParticleRole("collector", size=0.05, acceleration=4.0, max_speed=4.0, colour="#4f8fd9"),
    )
    entity_types = (
        EntityType("teammates", ("collector",)),
        EntityType("food", FOOD),
    )
    stages = ("3", "6", "12", "24")
    statistics = {"ate": "pellets touched per episode", "touched": "contacts per episode"}
    final_statistics = {"coverage": "share of the food occupied at the end"}
    rules = (
        "Every step, each food place that somebody stands on gives +6/N to all of the N agents.",
        "Two agents that touch get -3/N each.",
        "Food stays where it is, and nobody dies.",
        "Shaping: -1 x distance to the nearest food; about +9 while all food is occupied.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_food == 0:
            raise InputError("food 0 leaves nothing to collect in food-collection: use at least 1")

    @property
    def default_food(self) -> int:
        return self.num_agents

    def resolve(self, world: ParticleWorld, position: Array) -> Resolution:
        alive, size, n = world.alive, self.roles[0].size, self.num_agents
        apart = squared_distances(position, position)  # [agents, agents]
        themselves = expand(np.eye(n, dtype=bool), apart)
        collided = (apart < (2 * size) ** 2) & alive[:, None] & alive[None] & ~themselves

        to_food = squared_distances(position, world.food)  # [agents, food]
        on_food = (to_food < (size + self.food_size) ** 2) & alive[:, None]
        occupied = on_food.any(0)
        alone = on_food & (count(on_food, 0) == 1)[None]

        penalty = COLLISION_PENALTY / n * count(collided, 1)
        reward = FOOD_REWARD / n * count(occupied, 0) - penalty
        bonus = ALL_OCCUPIED_BONUS - BONUS_DECAY * (world.time + 1)
        shaping = jnp.where(occupied.all(0), bonus, 0.0) - nearest(to_food, alive[:, None], 1)
        nothing = jnp.zeros(alive.shape)
        return Resolution(
            reward=jnp.where(alive, reward, 0.0),
            # Its share of a place goes to everybody, and whoever it touches pays as much.
            difference=FOOD_REWARD / n * count(alive, 0) * count(alone, 1) - 2 * penalty,
            shaping=jnp.where(alive, shaping, 0.0),
            died=nothing > 0,
            ate=count(on_food, 1),
            killed=nothing,
            touched=count(collided, 1),
            occupied=occupied,
        )

    def scripted(self, key: Array, world: ParticleWorld) -> Array:
        return steer(self, world, [assign_food(self, world)])
