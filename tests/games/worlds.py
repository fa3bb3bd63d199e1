"""Random worlds of the particle games, and worlds that are mirrored and turned."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from epcx import games

PARTICLE_GAMES = ("grassland", "adversarial-battle", "food-collection", "predator-prey")
DIRECTIONS = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])  # of the actions
SYMMETRIES = [  # of the square, as matrices; the first one changes nothing
    np.diag(signs)[list(order)]
    for order in ((0, 1), (1, 0))
    for signs in product((1, -1), repeat=2)
]


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


def transformed(world, matrix):
    """A world, or a batch of them, after one of the symmetries."""

    def turned(vectors):
        if vectors is None:
            return None
        return jnp.asarray(np.einsum("ij,nj...->ni...", matrix, vectors), jnp.float32)

    return replace(
        world,
        position=turned(world.position),
        velocity=turned(world.velocity),
        food=turned(world.food),
        obstacles=turned(world.obstacles),
    )


def transformed_actions(actions, matrix):
    """Weights [agents, 5, ...] of the actions that do the same in a transformed world."""
    becomes = (DIRECTIONS[:, None] @ matrix.T == DIRECTIONS[None]).all(-1)  # [before, after]
    return np.einsum("ij,ni...->nj...", becomes, actions)
