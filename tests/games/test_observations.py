"""Structured observations against a plain loop over agents and entities."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from tests.games.worlds import PARTICLE_GAMES, random_world

CASES = [
    ("grassland", "3-2"),
    ("grassland", "1-4"),
    ("adversarial-battle", "3-3"),
    ("adversarial-battle", "4-2"),
    ("food-collection", "1"),
    ("food-collection", "5"),
    ("predator-prey", "2-3"),
]


def role_of(game, agent):
    return next(
        name for name, members in game.members.items() if members.start <= agent < members.stop
    )


def visible_entities(game, world, agent, kind):
    """The features of all entities of type `kind` that `agent` sees, from the description."""
    me = np.asarray(world.position[agent])
    if kind in ("grass", "food"):
        return [tuple(x - me) for x in np.asarray(world.food)]
    if kind == "obstacles":
        return [tuple(x - me) for x in np.asarray(world.obstacles)]
    mine = role_of(game, agent)
    wanted = {
        "sheep": {"sheep"},
        "wolves": {"wolf"},
        "prey": {"prey"},
        "predators": {"predator"},
        "teammates": {mine},
        "enemies": {role.name for role in game.roles} - {mine},
    }[kind]
    seen = []
    for other in range(game.num_agents):
        if other == agent or not world.alive[other] or role_of(game, other) not in wanted:
            continue
        features = list(np.asarray(world.position[other]) - me)
        if kind != "predators":
            features += list(np.asarray(world.velocity[other]))
        seen.append(tuple(features))
    return seen


@pytest.mark.parametrize(("name", "population"), CASES)
def test_observed_entities_equal_a_numpy_loop(name, population):
    game = games.make(name, population)
    world, _ = random_world(game, seed=1)
    view = jax.device_get(jax.jit(game.observe)(world))
    assert set(view.entities) == {kind.name for kind in game.entity_types}
    for kind, (features, mask) in view.entities.items():
        assert features.shape[:2] == mask.shape
        assert (np.asarray(features)[~np.asarray(mask)] == 0).all()
        for agent in range(game.num_agents):
            ours = np.asarray(features[agent])[np.asarray(mask[agent])]
            wanted = np.array(visible_entities(game, world, agent, kind)).reshape(ours.shape)
            np.testing.assert_allclose(ours, wanted, atol=1e-6)


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_own_features_are_velocity_position_and_alive(name):
    game = games.make(name)
    world, _ = random_world(game, seed=2)
    own = np.asarray(game.observe(world).own)
    np.testing.assert_array_equal(own[:, :2], world.velocity)
    np.testing.assert_array_equal(own[:, 2:4], world.position)
    np.testing.assert_array_equal(own[:, 4], world.alive)


def test_observation_after_a_step_shows_deaths_and_respawned_food():
    game = games.make("grassland", "2-1", food=1)
    world = game.reset(jax.random.key(0))
    world = replace(
        world,
        position=jnp.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.0]]),
        food=jnp.array([[0.5, 0.05]]),
    )
    after, outcome = jax.jit(game.step)(jax.random.key(1), world, jnp.zeros((3, 5)))
    assert outcome.events.died[0]
    assert outcome.events.ate[1] == 1
    sheep = game.observe(after).entities["sheep"]
    assert not sheep.mask[1].any()  # the other sheep sees nobody of its kind any more
    grass = game.observe(after).entities["grass"]
    np.testing.assert_allclose(grass.features[1, 0], after.food[0] - after.position[1], atol=1e-6)
    assert not np.array_equal(after.food, world.food)


def test_flat_width_equals_that_of_the_authors():
    assert games.make("grassland", "3-2").flat_width == 37
    assert games.make("grassland", "24-16").flat_width == 212
    assert games.make("food-collection", "24").flat_width == 192
