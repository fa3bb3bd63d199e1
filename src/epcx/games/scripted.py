"""Scripted players of the particle games: simple fixed behaviour for every role, in one world.

They use no more force than a policy can: the weights of their actions add up to at most 1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from epcx.games.assignment import assign
from epcx.games.particle import ParticleGame, ParticleWorld
from epcx.games.physics import DAMPING, TIME_STEP, squared_distances

FLEE_DISTANCE = 0.35  # sheep and prey flee from hunters within it
HUNT_DISTANCE = 0.6  # a pair leaves the food for an enemy within it


def steer(
    game: ParticleGame, world: ParticleWorld, targets: Sequence[Float[Array, "_ 2"]]
) -> Float[Array, "agents 5"]:
    """The actions that bring each agent to its target as fast as it can, and stop it there.

    `targets` are those of each role.
    """
    aim = jnp.concatenate(targets)
    wanted = (aim - world.position) / TIME_STEP - (1 - DAMPING) * world.velocity
    force = wanted / (TIME_STEP * game.per_agent("acceleration")[:, None])
    force = force / jnp.maximum(jnp.abs(force).sum(1, keepdims=True), 1.0)
    x, y = force[:, 0], force[:, 1]
    idle = jax.nn.relu(1 - jnp.abs(force).sum(1))
    return jnp.stack([idle, *(jax.nn.relu(part) for part in (x, -x, y, -y))], 1)


def closest(
    places: Float[Array, "n 2"], to: Float[Array, "m 2"], mask: Bool[Array, "m"]
) -> tuple[Float[Array, "n 2"], Float[Array, "n"]]:
    """For each place the nearest of `to` where `mask` holds, and how far it is."""
    squared = jnp.where(mask[None], squared_distances(places, to), jnp.inf)
    if to.shape[0] == 0:
        return places, jnp.full(len(places), jnp.inf)
    return to[squared.argmin(1)], jnp.sqrt(squared.min(1))


def graze_and_flee(game: ParticleGame, world: ParticleWorld) -> Float[Array, "sheep 2"]:
    """To the nearest grass; away from a wolf that is near."""
    sheep, wolves = (world.position[game.members[role.name]] for role in game.roles)
    everything = jnp.ones(len(world.food), bool)
    grass, _ = closest(sheep, world.food, everything)
    wolf, distance = closest(sheep, wolves, jnp.ones(len(wolves), bool))
    return jnp.where((distance < FLEE_DISTANCE)[:, None], 2 * sheep - wolf, grass)


def chase(game: ParticleGame, world: ParticleWorld) -> Float[Array, "hunters 2"]:
    """To the nearest living prey (the first role)."""
    prey, hunters = (game.members[role.name] for role in game.roles)
    target, distance = closest(world.position[hunters], world.position[prey], world.alive[prey])
    return jnp.where((distance < jnp.inf)[:, None], target, world.position[hunters])


def run_away(game: ParticleGame, world: ParticleWorld) -> Float[Array, "prey 2"]:
    """Away from the nearest predator, but not out of the square."""
    prey, predators = (world.position[game.members[role.name]] for role in game.roles)
    predator, distance = closest(prey, predators, jnp.ones(len(predators), bool))
    away = (prey - predator) / jnp.maximum(distance, 1e-3)[:, None]
    place = game.visible_position(prey)
    outside = jnp.maximum(jnp.abs(place) / game.world_size - 0.7, 0.0) * jnp.sign(place)
    return prey + 0.3 * away - 2 * outside


def hunt_in_pairs(game: ParticleGame, world: ParticleWorld, team: int) -> Float[Array, "team 2"]:
    """Neighbours in number share a target: the enemy nearest to the first, or else food."""
    us, them = (game.members[game.roles[i].name] for i in (team, 1 - team))
    ours = world.position[us]
    leaders = ours[np.arange(len(ours)) // 2 * 2]
    enemy, distance = closest(leaders, world.position[them], world.alive[them])
    food, _ = closest(ours, world.food, jnp.ones(len(world.food), bool))
    return jnp.where((distance < HUNT_DISTANCE)[:, None], enemy, food)


def assign_food(game: ParticleGame, world: ParticleWorld) -> Float[Array, "collectors 2"]:
    """Each agent to a pellet of its own, by the assignment with the least total distance."""
    position, food = world.position, world.food
    if len(food) < len(position):
        pellet = assign(food, position)
        return jnp.where((pellet < len(food))[:, None], food[pellet], position)
    return position.at[assign(position, food)].set(food, mode="drop")
