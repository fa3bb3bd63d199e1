"""Assignments of the least total distance, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from epcx import games
from epcx.games.assignment import assign
from epcx.games.scripted import assign_food


def distances(a, b):
    return np.linalg.norm(np.asarray(a, float)[:, None] - np.asarray(b, float)[None], axis=-1)


@pytest.mark.parametrize(("agents", "places"), [(1, 1), (2, 2), (3, 7), (24, 24), (60, 61)])
def test_assignment_has_the_least_total_distance_in_parallel_worlds(agents, places):
    rng = np.random.default_rng(agents)
    a, b = (jnp.asarray(rng.uniform(-2, 2, (8, n, 2)), jnp.float32) for n in (agents, places))
    owners = np.asarray(jax.jit(jax.vmap(assign))(a, b))
    for mine, theirs, owner in zip(a, b, owners, strict=True):
        cost = distances(mine, theirs)
        taken = np.flatnonzero(owner < agents)
        assert sorted(owner[taken]) == list(range(agents))
        assert cost[owner[taken], taken].sum() == pytest.approx(
            cost[linear_sum_assignment(cost)].sum(), rel=1e-5
        )


def test_assignment_of_large_populations_is_optimal():
    game = games.make("food-collection", "384", "constant")
    world = game.reset(jax.random.key(0))
    owner = jax.jit(assign)(world.position, world.food)
    cost = distances(world.position, world.food)
    total = cost[np.asarray(owner), np.arange(384)].sum()
    assert total == pytest.approx(cost[linear_sum_assignment(cost)].sum(), rel=1e-5)


def test_agents_and_places_at_the_same_point_are_assigned():
    points = jnp.zeros((5, 2))
    assert sorted(np.asarray(assign(points, points)).tolist()) == list(range(5))
    grid = jnp.stack(jnp.meshgrid(jnp.arange(4.0), jnp.arange(4.0)), -1).reshape(-1, 2)
    assert np.asarray(assign(grid, grid)).tolist() == list(range(16))


@pytest.mark.parametrize(("agents", "food"), [(6, 6), (6, 9), (9, 6)])
def test_scripted_collectors_go_to_pellets_of_their_own(agents, food):
    game = games.make("food-collection", str(agents), food=food)
    world = game.reset(jax.random.key(1))
    targets = np.asarray(assign_food(game, world))
    cost = distances(world.position, world.food)
    expected = np.array(world.position)
    rows, columns = linear_sum_assignment(cost)
    expected[rows] = np.asarray(world.food)[columns]
    np.testing.assert_array_equal(targets, expected)
