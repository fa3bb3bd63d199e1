"""Adversarial Battle: two teams gather food and kill by pairs."""

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
from epcx.games.scripted import hunt_in_pairs, steer

FOOD_REWARD = 1.0
KILL_REWARD = 6.0
KILLERS_NEEDED = 2
FOOD_SHAPING = 0.1
ENEMY_SHAPING = 0.04


class AdversarialBattle(ParticleGame):
    name = "adversarial-battle"
    roles = (
        ParticleRole("team1", size=0.08, acceleration=4.0, max_speed=3.0, colour="#d9534a"),
        ParticleRole("team2", size=0.08, acceleration=4.0, max_speed=3.0, colour="#4f8fd9"),
    )
    entity_types = (
        EntityType("teammates", ("team1", "team2")),
        EntityType("enemies", ("team2", "team1")),
        EntityType("food", FOOD),
    )
    stages = ("4-4", "8-8", "16-16")
    symmetric = True
    statistics = {
        "ate": "pellets eaten per episode",
        "killed": "parts in kills per episode",
        "died": "deaths per episode",
    }
    rules = (
        "Food that an agent touches gives +1 to each living member of its team, and moves away.",
        "An agent touched by two or more living enemies at once is dead: each living member of "
        "its team gets -6, each living enemy +6.",
        "Shaping: -0.1 x distance to the nearest food, -0.04 x distance to the nearest enemy.",
    )
    food_respawns = True

    @property
    def default_food(self) -> int:
        return 4

    def resolve(self, world: ParticleWorld, position: Array) -> Resolution:
        first, second = (self.members[role.name] for role in self.roles)
        alive = world.alive
        size = self.roles[0].size

        apart = squared_distances(position[first], position[second])  # [team1, team2]
        both = alive[first][:, None] & alive[second][None, :]
        contact = (apart < (2 * size) ** 2) & both
        died1 = count(contact, 1) >= KILLERS_NEEDED
        died2 = count(contact, 0) >= KILLERS_NEEDED

        to_food = squared_distances(position, world.food)  # [agents, food]
        gathered = (to_food < (size + self.food_size) ** 2) & alive[:, None]
        ate = count(gathered, 1)

        balance = KILL_REWARD * (count(died2, 0) - count(died1, 0))
        team1 = FOOD_REWARD * ate[first].sum(0) + balance
        team2 = FOOD_REWARD * ate[second].sum(0) - balance
        own = FOOD_REWARD * ate + KILL_REWARD * jnp.concatenate(
            [count(needed(contact, 0), 1) - died1, count(needed(contact, 1), 0) - died2]
        )
        members = jnp.concatenate(
            [jnp.broadcast_to(count(alive[team], 0), alive[team].shape) for team in (first, second)]
        )
        to_enemy = jnp.concatenate([nearest(apart, both, 1), nearest(apart, both, 0)])
        return Resolution(
            reward=jnp.concatenate(
                [jnp.where(alive[first], team1, 0.0), jnp.where(alive[second], team2, 0.0)]
            ),
            difference=own * members,
            shaping=-FOOD_SHAPING * nearest(to_food, alive[:, None], 1) - ENEMY_SHAPING * to_enemy,
            died=jnp.concatenate([died1, died2]),
            ate=ate,
            killed=jnp.concatenate(
                [count(contact & died2[None], 1), count(contact & died1[:, None], 0)]
            ),
            touched=jnp.concatenate([count(contact, 1), count(contact, 0)]),
            occupied=gathered.any(0),
        )

    def scripted(self, key: Array, world: ParticleWorld) -> Array:
        return steer(self, world, [hunt_in_pairs(self, world, team) for team in (0, 1)])


def needed(contact: Array, axis: int) -> Array:
    """Contacts without which the victim would live; `axis` is that of the killers."""
    return contact & jnp.expand_dims(count(contact, axis) == KILLERS_NEEDED, axis)
