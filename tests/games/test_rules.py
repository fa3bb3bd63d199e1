"""The rules in small worlds, with results worked out by hand, beyond the recordings."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.games import physics


@pytest.fixture(autouse=True)
def _no_contact_forces(monkeypatch):
    """Agents stay where a test puts them."""
    monkeypatch.setattr(physics, "CONTACT_FORCE", 0.0)


def play(game, position, food=None, alive=None, time=0):
    """One step without actions."""
    world = game.reset(jax.random.key(0))
    world = replace(
        world,
        position=jnp.asarray(position, jnp.float32),
        food=world.food if food is None else jnp.asarray(food, jnp.float32),
        alive=world.alive if alive is None else jnp.asarray(alive),
        time=jnp.asarray(time, jnp.int32),
    )
    return jax.jit(game.step)(jax.random.key(1), world, jnp.zeros((game.num_agents, 5)))


FAR = [[0.9, 0.9], [0.9, -0.9], [-0.9, 0.9], [-0.9, -0.9]]


def test_grassland_rewards_every_wolf_that_catches_a_sheep():
    game = games.make("grassland", "2-2")
    after, outcome = play(game, [[0, 0], [-0.5, 0], [0.12, 0], [-0.12, 0]], food=FAR)
    np.testing.assert_allclose(outcome.reward, [-10, 0, 5, 5])
    assert after.alive.tolist() == [False, True, True, True]
    assert outcome.done.tolist() == [True, False, False, False]
    assert outcome.events.killed.tolist() == [0, 0, 1, 1]
    assert outcome.events.died.tolist() == [True, False, False, False]


def test_grassland_wolves_are_done_when_the_last_sheep_dies():
    game = games.make("grassland", "1-2")
    _, outcome = play(game, [[0, 0], [0.12, 0], [0.8, 0]], food=FAR)
    assert outcome.done.all()


def test_grassland_sheep_eats_two_pellets_at_once_and_both_respawn():
    game = games.make("grassland", "1-1", food=3)
    food = [[0.05, 0], [-0.05, 0], [0.9, 0.9]]
    after, outcome = play(game, [[0, 0], [-0.9, -0.9]], food=food)
    assert outcome.reward[0] == 4
    assert outcome.events.ate.tolist() == [2, 0]
    assert outcome.events.occupied.tolist() == [True, True, False]
    moved = (after.food != jnp.asarray(food, jnp.float32)).any(1)
    assert moved.tolist() == [True, True, False]


def test_grassland_wolf_does_not_eat_grass():
    game = games.make("grassland", "1-1", food=1)
    after, outcome = play(game, [[0.9, 0.9], [0, 0]], food=[[0, 0]])
    assert not outcome.events.occupied.any()
    assert after.food.tolist() == [[0, 0]]


def test_grassland_shaping_is_zero_without_living_sheep_or_grass():
    game = games.make("grassland", "1-1", food=0)
    _, outcome = play(game, [[0, 0], [0.5, 0]], food=np.zeros((0, 2)), alive=[False, True])
    assert outcome.shaping.tolist() == [0, 0]


def test_battle_takes_two_enemies_to_kill():
    game = games.make("adversarial-battle", "2-2")
    apart = [[0, 0], [-0.8, 0.8], [0.15, 0], [0.8, 0.8]]
    _, outcome = play(game, apart, food=FAR)
    assert not outcome.events.died.any()
    together = [[0, 0], [-0.8, 0.8], [0.15, 0], [-0.15, 0]]
    after, outcome = play(game, together, food=FAR)
    assert after.alive.tolist() == [False, True, True, True]
    np.testing.assert_allclose(outcome.reward, [-6, -6, 6, 6])
    assert outcome.events.killed.tolist() == [0, 0, 1, 1]


def test_battle_shares_food_among_living_teammates():
    game = games.make("adversarial-battle", "3-1")
    position = [[0, 0], [0.5, 0.5], [-0.5, 0.5], [0.5, -0.5]]
    food = [[0, 0.05], [0.9, 0.9], [0.9, -0.9], [-0.9, -0.9]]
    _, outcome = play(game, position, food=food, alive=[True, True, False, True])
    np.testing.assert_allclose(outcome.reward, [1, 1, 0, 0])


def test_food_collection_rewards_occupied_food_and_penalises_collisions():
    game = games.make("food-collection", 3)
    food = [[0, 0], [0.5, 0.5], [-0.5, -0.5]]
    _, outcome = play(game, [[0, 0.01], [0, 0.1], [0.5, 0.5]], food=food)
    np.testing.assert_allclose(outcome.reward, [4 - 1, 4 - 1, 4], atol=1e-6)
    assert outcome.events.occupied.tolist() == [True, True, False]
    assert outcome.events.touched.tolist() == [1, 1, 0]


def test_food_collection_coverage_bonus_is_shaping_and_decays():
    game = games.make("food-collection", 1)
    for time in (0, 10):
        _, outcome = play(game, [[0, 0]], food=[[0, 0]], time=time)
        assert outcome.reward[0] == 6
        np.testing.assert_allclose(outcome.shaping[0], 10 - 2 * (time + 1) / 26, rtol=1e-6)


def test_world_size_scales_walls_and_initial_places():
    game = games.make("grassland", "2-1", world_size=3.0, food=50)
    world = game.reset(jax.random.key(0))
    assert 1 < np.abs(world.food).max() <= 2.7
    after, _ = game.step(
        jax.random.key(0),
        replace(world, position=jnp.full((3, 2), 2.99), velocity=jnp.full((3, 2), 2.0)),
        jnp.zeros((3, 5)),
    )
    np.testing.assert_allclose(after.position.max(), 3.0)


def test_collector_is_paid_for_a_place_that_nobody_else_occupies():
    game = games.make("food-collection", "3")
    food = [[0.0, 0.0], [0.5, 0.5], [-0.9, -0.9]]
    _, outcome = play(game, [[0, 0], [0.5, 0.53], [0.5, 0.47]], food=food)
    # The second place stays occupied without either of two, who touch each other: -1 each.
    np.testing.assert_allclose(outcome.difference, [6, -2, -2], atol=1e-5)
    np.testing.assert_allclose(outcome.reward, [4, 3, 3], atol=1e-5)


def test_killers_are_paid_if_both_were_needed():
    game = games.make("adversarial-battle", "3-1")
    near = [[0.1, 0], [-0.1, 0], [0, 0.1], [0, 0]]
    _, outcome = play(game, near, food=FAR)
    np.testing.assert_allclose(outcome.difference, [0, 0, 0, -6])  # any two of three suffice
    near[2] = [0.5, 0.5]
    _, outcome = play(game, near, food=FAR)
    np.testing.assert_allclose(outcome.difference, [18, 18, 0, -6])  # 6 for each of the team
