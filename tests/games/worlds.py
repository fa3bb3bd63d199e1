"""Random worlds of the particle games, which several test modules use."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from epcx import games

PARTICLE_GAMES = ("grassland", "adversarial-battle", "food-collection", "predator-prey")


def make_population(name, *counts):
    """A population of the first of `counts`, as many as the game has roles."""
    return "-".join(map(str, counts[: len(games.find(name).roles)]))


def random_world(game, seed, spread=1.0):
    """A world with dead agents, all within `spread` of the centre, and random soft actions."""
    rng = np.random.default_rng(seed)
    n = game.num_agents
    world = replace(
        game.reset(jax.random.key(seed)),
        position=jnp.asarray(rng.uniform(-spread, spread, (n, 2)), jnp.float32),
        velocity=jnp.asarray(rng.normal(size=(n, 2)), jnp.float32),
        alive=jnp.asarray(rng.random(n) < 0.8),
        time=jnp.asarray(rng.integers(0, 25), jnp.int32),
    )
    actions = jnp.asarray(rng.uniform(0, 2, (n, 5)), jnp.float32)
    return world, actions
