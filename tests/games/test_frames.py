"""Symmetries of particle games, and frames, against matrices in NumPy."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.errors import InputError
from epcx.games import Frame
from epcx.games.frames import octant
from tests.games.ring import Ring
from tests.games.worlds import (
    PARTICLE_GAMES,
    SYMMETRIES,
    make_population,
    random_world,
    transformed,
    transformed_actions,
)

FLAGS = np.array(list(product((False, True), repeat=3)))  # a row each: mirror x, mirror y, exchange
FRAMES = Frame(*map(jnp.asarray, FLAGS.T))
all_symmetries = pytest.mark.parametrize("matrix", SYMMETRIES, ids=lambda x: str(x.tolist()))


def matrix_of(mirror_x, mirror_y, exchange):
    """First the mirrors, then the exchange of the axes."""
    mirrors = np.diag([-1 if mirror else 1 for mirror in (mirror_x, mirror_y)])
    return (np.eye(2, dtype=int)[::-1] if exchange else np.eye(2, dtype=int)) @ mirrors


MATRICES = [matrix_of(*flags) for flags in FLAGS]


@cache
def played(name):
    """A game, a compiled step of a batch, worlds (half of them crowded), and actions."""
    game = games.make(name, make_population(name, 4, 3))
    cases = [random_world(game, seed, spread) for seed in range(8) for spread in (0.2, 1.0)]
    worlds, actions = jax.tree.map(lambda *x: jnp.stack(x, -1), *cases)
    return game, jax.jit(game.step_batch), worlds, actions


@all_symmetries
@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_transformed_world_plays_in_the_same_way(name, matrix):
    _, step, worlds, actions = played(name)
    keys = jax.random.split(jax.random.key(0), 16)
    after, outcome = step(keys, worlds, actions)
    other, other_outcome = step(
        keys, transformed(worlds, matrix), transformed_actions(actions, matrix)
    )
    expected = transformed(after, matrix)
    # Sums over x and y are taken in another order, hence the tolerance.
    np.testing.assert_allclose(other.position, expected.position, atol=1e-5)
    np.testing.assert_allclose(other.velocity, expected.velocity, atol=1e-4)
    stays = ~np.asarray(outcome.events.occupied)  # the other pellets appear at random places
    where = np.broadcast_to(stays[:, None], after.food.shape)
    np.testing.assert_allclose(other.food[where], expected.food[where], atol=1e-6)
    np.testing.assert_array_equal(other.alive, after.alive)
    np.testing.assert_allclose(other_outcome.reward, outcome.reward, atol=1e-5)
    np.testing.assert_allclose(other_outcome.shaping, outcome.shaping, atol=1e-5)
    for field, values in vars(outcome.events).items():
        np.testing.assert_array_equal(getattr(other_outcome.events, field), values)


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_worlds_of_these_tests_have_contacts_walls_and_rewards(name):
    """Else they would say nothing about symmetry."""
    game, step, worlds, actions = played(name)
    after, outcome = step(jax.random.split(jax.random.key(0), 16), worlds, actions)
    assert outcome.events.touched.any()
    assert outcome.reward.any()
    assert outcome.shaping.any()
    assert (jnp.abs(after.position) >= game.half_side).any()
    assert not worlds.alive.all()
    assert outcome.events.ate.any() == (game.num_food > 0)


def test_frames_are_the_eight_symmetries_of_the_square():
    as_tuples = [{tuple(matrix.ravel()) for matrix in x} for x in (MATRICES, SYMMETRIES)]
    assert as_tuples[0] == as_tuples[1]
    assert len(as_tuples[0]) == 8


@pytest.mark.parametrize("features", [2, 4, 5])
def test_frame_turns_vectors_as_matrices_do(features):
    """Of every slot and row; a number beside the vectors stays."""
    values = np.random.default_rng(0).normal(size=(features, 3, 8)).astype(np.float32)
    expected = values.copy()
    for row, matrix in enumerate(MATRICES):
        for i in range(0, features - 1, 2):
            expected[i : i + 2, :, row] = matrix @ values[i : i + 2, :, row]
    np.testing.assert_array_equal(FRAMES.turn(jnp.asarray(values)), expected)


def test_frame_turns_actions_as_matrices_turn_their_directions():
    values = np.random.default_rng(0).normal(size=(5, 3, 8)).astype(np.float32)
    turned = np.asarray(FRAMES.turn_actions(jnp.asarray(values)))
    for row, matrix in enumerate(MATRICES):
        expected = transformed_actions(values[None, ..., row], matrix)[0]
        np.testing.assert_array_equal(turned[..., row], expected)


def test_actions_that_are_turned_back_are_those_before():
    values = jax.random.normal(jax.random.key(0), (5, 3, 8))
    np.testing.assert_array_equal(FRAMES.turn_back(FRAMES.turn_actions(values)), values)
    np.testing.assert_array_equal(FRAMES.turn_actions(FRAMES.turn_back(values)), values)


def test_octant_is_where_y_is_from_0_to_x():
    """Also on the axes and on the diagonals."""
    grid = np.array(list(product((-1.0, -0.5, 0.0, 0.5, 1.0), repeat=2)))
    places = np.concatenate([grid, np.random.default_rng(0).uniform(-1, 1, (200, 2))])
    own = np.concatenate([np.ones((len(places), 2)), places, np.ones((len(places), 1))], 1)
    own = jnp.asarray(own.T, jnp.float32)
    frame = octant(own)
    x, y = frame.turn(own)[2:4]
    assert ((y >= 0) & (y <= x)).all()
    flags = np.unique(np.stack(frame, 1), axis=0)
    assert len(flags) == 8


@cache
def framed_views(name):
    """What agents see in their own frames, all and the nearest, as a function of worlds."""
    game = played(name)[0]

    def framed(view):
        frame = game.frame(view.own.swapaxes(0, 1))
        entities = {
            name: (frame.turn(jnp.moveaxis(features, (2, 1, 0), (0, 1, 2))), mask)
            for name, (features, mask) in view.entities.items()
        }
        return frame.turn(view.own.swapaxes(0, 1)), entities

    return jax.jit(
        lambda worlds: (
            framed(game.observe_batch(worlds)),
            framed(game.observe_nearest_batch(worlds, 2)),
        )
    )


@all_symmetries
@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_transformed_world_looks_the_same_from_the_frames_of_its_agents(name, matrix):
    """All that is there, and the nearest; nobody is exactly on an axis or a diagonal here."""
    _, _, worlds, _ = played(name)
    found, expected = map(framed_views(name), (transformed(worlds, matrix), worlds))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_game_without_a_frame_says_what_it_lacks():
    with pytest.raises(InputError, match=r"equivariant .* ring, .* `frame`\): use relational"):
        games.make(Ring).check_frame()
    games.make("grassland").check_frame()
