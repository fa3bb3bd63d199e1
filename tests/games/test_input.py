"""Bad input is answered by one sentence that names the value and what is allowed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import InputError, games
from epcx.games import Population


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: games.make("chess"), "unknown game 'chess': the games are grassland"),
        (lambda: games.make("grassland", "3x2"), "population '3x2' is malformed"),
        (lambda: games.make("grassland", "0-2"), "population '0-2' is malformed"),
        (lambda: games.make("grassland", "-3-2"), "population '-3-2' is malformed"),
        (lambda: games.make("grassland", ""), "population '' is malformed"),
        (lambda: games.make("grassland", "3.5-2"), "population '3.5-2' is malformed"),
        (lambda: games.make("grassland", "3"), r"has 2 roles \(sheep-wolf\): write it like 3-2"),
        (lambda: games.make("food-collection", "3-2"), r"has 1 role \(collector\)"),
        (lambda: games.make("grassland", "9999-2"), "from 1 to 10000 are allowed"),
        (lambda: games.make("grassland", "3-2", grass=3), "no option 'grass': it takes food"),
        (lambda: games.make("grassland", "3-2", food=-1), "food -1 is not"),
        (lambda: games.make("grassland", "3-2", world_size=0.0), "world_size 0.0 is not"),
        (lambda: games.make("grassland", "3-2", world_size=float("nan")), "world_size nan"),
        (lambda: games.make("food-collection", "3", food=0), "food 0 leaves nothing"),
        (lambda: games.make("predator-prey", "3-2", food=1), "food 1 does not fit"),
        (lambda: games.make("predator-prey", "3-2", obstacles=-1), "obstacles -1"),
        (lambda: Population((3, -2)), "number of agents -2 is not"),
        (lambda: Population((0, 0)), "number of agents 0 is not"),
        (lambda: games.make("grassland").role("cow"), "no role 'cow': its roles are sheep, wolf"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


WRONG_TYPES = """
from epcx import InputError, games
from epcx.games import Population

for call in (
    lambda: games.make("grassland", "3-2", food=2.5),
    lambda: games.make("grassland", "3-2", food="4"),
    lambda: games.make("grassland", "3-2", food=True),
    lambda: games.make("grassland", "3-2", world_size="1"),
    lambda: games.make("grassland", "3-2", world_size=None),
    lambda: games.make("predator-prey", "3-2", obstacles="2"),
    lambda: games.make(["grassland"], "3-2"),
    lambda: games.make("grassland", [3, 2]),
    lambda: games.make("grassland", 3.5),
    lambda: Population((3.5, 2)),
    lambda: Population(("a", "b")),
):
    try:
        call()
    except InputError as error:
        print(error)
"""


def test_wrong_types():
    """In a process of its own, since the tests check types before the games do."""
    result = subprocess.run(
        [sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True
    )
    assert len(result.stdout.splitlines()) == 11


@pytest.mark.parametrize("shape", [(5,), (5, 4), (4, 5), (2, 5, 5), ()])
def test_wrong_action_shape(shape):
    game = games.make("grassland", "3-2")
    world = game.reset(jax.random.key(0))
    with pytest.raises(InputError, match=r"it takes real numbers \(5, 5\)"):
        game.step(jax.random.key(0), world, jnp.zeros(shape))


@pytest.mark.parametrize("actions", ["fast", [[1.0], [2.0, 3.0]], np.ones((5, 5), complex)])
def test_actions_that_are_not_numbers(actions):
    game = games.make("grassland", "3-2")
    with pytest.raises(InputError, match="actions of"):
        game.step(jax.random.key(0), game.reset(jax.random.key(0)), actions)


def test_a_world_of_another_game_or_population():
    game = games.make("grassland", "3-2")
    for other in (games.make("grassland", "2-3", food=5), games.make("predator-prey", "3-2")):
        world = other.reset(jax.random.key(0))
        with pytest.raises(InputError, match="this world does not fit grassland 3-2"):
            game.step(jax.random.key(0), world, jnp.zeros((5, 5)))


@pytest.mark.parametrize("name", ["grassland", "food-collection"])
def test_one_key_per_world(name):
    game = games.make(name)
    n = game.num_agents
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(0), 4))
    for keys in (jax.random.key(0), jax.random.split(jax.random.key(0), 3)):
        with pytest.raises(InputError, match="needs one key per world"):
            game.step(keys, worlds, jnp.zeros((n, 5, 4)))


def test_worlds_of_numpy_arrays_work():
    game = games.make("grassland", "3-2")
    world, actions = game.reset(jax.random.key(0)), np.ones((5, 5))
    arrays = jax.tree.map(lambda x: np.asarray(x), world)
    ours, _ = game.step(jax.random.key(1), arrays, actions)
    expected, _ = game.step(jax.random.key(1), world, jnp.asarray(actions))
    np.testing.assert_array_equal(ours.position, expected.position)


def test_old_style_keys_work():
    game = games.make("grassland", "3-2")
    world = game.reset(jax.random.PRNGKey(0))
    after, _ = jax.jit(game.step)(jax.random.PRNGKey(1), world, jnp.zeros((5, 5)))
    assert after.time == 1


def test_populations_read_back():
    assert str(Population.parse("24-16")) == "24-16"
    assert Population.parse(6) == Population((6,))
    assert Population.parse("3-2").total == 5
    assert games.make("grassland", Population((1, 7))).num_agents == 8


def test_agents_are_ordered_by_role():
    game = games.make("grassland", "2-1")
    assert game.agent_names == ("sheep_0", "sheep_1", "wolf_0")
    assert game.members == {"sheep": slice(0, 2), "wolf": slice(2, 3)}


@pytest.mark.parametrize("name", games.GAMES)
def test_large_and_uneven_populations(name):
    roles = len(games.GAMES[name].roles)
    game = games.make(name, "-".join(["96", "64"][:roles]))
    world = jax.jit(game.reset)(jax.random.key(0))
    after, outcome = jax.jit(game.step)(jax.random.key(0), world, jnp.ones((game.num_agents, 5)))
    assert after.position.shape == (game.num_agents, 2)
    assert outcome.reward.shape == (game.num_agents,)
