"""Grassland: sheep graze and are hunted; whoever is caught is dead."""

import jax.numpy as jnp
from jaxtyping import Array

from epcx.games.particle import (
    FOOD,
    EntityType,
    ParticleGame,
    ParticleRole,
    ParticleWorld,
    Resolution,
)
from epcx.games.physics import count, nearest, squared_distances
from epcx.games.scripted import chase, graze_and_flee, steer

GRAZE_REWARD = 2.0
CATCH_REWARD = 5.0
SHAPING = 0.1


class Grassland(ParticleGame):
    name = "grassland"
    roles = (
        ParticleRole("sheep", size=0.05, acceleration=4.0, max_speed=3.0, colour="#4f8fd9"),
        ParticleRole("wolf", size=0.075, acceleration=2.0, max_speed=2.0, colour="#d9534a"),
    )
    entity_types = (
        EntityType("sheep", ("sheep", "sheep")),
        EntityType("wolves", ("wolf", "wolf")),
        EntityType("grass", FOOD),
    )
    stages = ("3-2", "6-4", "12-8", "24-16")
    statistics = {
        "ate": "pellets eaten per episode",
        "killed": "parts in kills per episode",
        "died": "deaths per episode",
    }
    rules = (
        "A sheep that touches grass gets +2 per pellet; the pellet grows again elsewhere.",
        "A wolf that touches a living sheep gets +5; the sheep gets -5 and is dead.",
        "Sheep are twice as fast as wolves.",
        "Shaping: -0.1 x distance of a sheep to the nearest grass, of a wolf to the nearest sheep.",
    )
    food_name = "grass"
    food_respawns = True

    @property
    def default_food(self) -> int:
        return 4

    def resolve(self, world: ParticleWorld, position: Array) -> Resolution:
        sheep, wolves = (position[self.members[role.name]] for role in self.roles)
        alive = world.alive[self.members["sheep"]]
        sheep_size, wolf_size = (role.size for role in self.roles)

        to_wolf = squared_distances(sheep, wolves)  # [sheep, wolves]
        to_grass = squared_distances(sheep, world.food)  # [sheep, food]
        caught = (to_wolf < (sheep_size + wolf_size) ** 2) & alive[:, None]
        grazed = (to_grass < (sheep_size + self.food_size) ** 2) & alive[:, None]

        reward = jnp.concatenate(
            [
                GRAZE_REWARD * count(grazed, 1) - CATCH_REWARD * count(caught, 1),
                CATCH_REWARD * count(caught, 0),
            ]
        )
        none = jnp.zeros(wolves.shape[:1] + wolves.shape[2:])
        return Resolution(
            reward=reward,
            difference=reward,  # nobody's reward depends on teammates
            shaping=-SHAPING
            * jnp.concatenate(
                [nearest(to_grass, alive[:, None], 1), nearest(to_wolf, alive[:, None], 0)]
            ),
            died=jnp.concatenate([caught.any(1), none > 0]),
            ate=jnp.concatenate([count(grazed, 1), none]),
            killed=jnp.concatenate([jnp.zeros(alive.shape), count(caught, 0)]),
            touched=jnp.concatenate([count(caught, 1), count(caught, 0)]),
            occupied=grazed.any(0),
        )

    def finished(self, alive: Array) -> Array:
        sheep = alive[self.members["sheep"]]
        wolves = alive[self.members["wolf"]]
        return jnp.concatenate([~sheep, jnp.broadcast_to(~sheep.any(0), wolves.shape)])

    def scripted(self, key: Array, world: ParticleWorld) -> Array:
        return steer(self, world, [graze_and_flee(self, world), chase(self, world)])
