"""Input of games: bad values are refused in one sentence that names them and what is allowed."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import InputError, games
from epcx.games import Population
from tests.games.worlds import PARTICLE_GAMES, make_population


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: games.make("chess"), "unknown game 'chess': the games are grassland"),
        (lambda: games.make("grassland", "3x2"), "population '3x2' is malformed"),
        (lambda: games.make("grassland", "0-2"), "population '0-2' is malformed"),
        (lambda: games.make("grassland", "-3-2"), "population '-3-2' is malformed"),
        (lambda: games.make("grassland", ""), "population '' is malformed"),
        (lambda: games.make("grassland", "3.5-2"), "population '3.5-2' is malformed"),
        (lambda: games.make("grassland", "3"), r"has 2 roles \(sheep-wolf\): write it like 3-2"),
        (lambda: games.make("food-collection", "3-2"), r"has 1 role \(collector\)"),
        (lambda: games.make("grassland", "9999-2"), "10001 agents: at most 10000 are"),
        (lambda: games.make("food-collection", "1000000"), "'1000000' is too large: at most 10000"),
        (lambda: games.make("grassland", "12345-1"), "12346 agents: at most 10000"),
        (lambda: games.make("grassland", "9" * 5000 + "-1"), "is too large: at most 10000 agents"),
        (lambda: games.make("grassland", "3-2", grass=3), "no option 'grass': it takes food"),
        (lambda: games.make("grassland", "3-2", food=-1), "food -1 is too small"),
        (lambda: games.make("grassland", "3-2", world_size=0.0), "world_size 0.0 is not"),
        (lambda: games.make("grassland", "3-2", world_size=float("nan")), "world_size nan"),
        (lambda: games.make("food-collection", "3", food=0), "food 0 leaves nothing"),
        (lambda: games.make("predator-prey", "3-2", food=1), "food 1 does not fit"),
        (lambda: games.make("predator-prey", "3-2", obstacles=-1), "obstacles -1"),
        (lambda: Population((3, -2)), "number of agents -2 is too small"),
        (lambda: Population((0, 0)), "number of agents 0 is too small"),
        (lambda: games.make("grassland").role("cow"), "no role 'cow': its roles are sheep, wolf"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(InputError, match=message) as caught:
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
    lambda: games.make("grassland", "3-2", "dense"),
    lambda: games.Grassland("3-2", density=None),
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
    else:
        print("accepted")
"""


def test_wrong_types_are_refused_in_one_sentence():
    """In a process of its own, since the tests check types before the games do."""
    result = subprocess.run(
        [sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True
    )
    wrong = ("2.5", "'4'", "True", "'1'", "None", "'2'", "'dense'", "None")
    wrong += ("grassland", "3, 2", "3.5", "3.5", "'a'")
    for value, message in zip(wrong, result.stdout.splitlines(), strict=True):
        assert value in message


@pytest.mark.parametrize("shape", [(5,), (5, 4), (4, 5), (2, 5, 5), ()])
def test_actions_of_wrong_shape_are_refused(shape):
    game = games.make("grassland", "3-2")
    world = game.reset(jax.random.key(0))
    with pytest.raises(InputError, match=r"it takes real numbers \(5, 5\)"):
        game.step(jax.random.key(0), world, jnp.zeros(shape))


@pytest.mark.parametrize("actions", ["fast", [[1.0], [2.0, 3.0]], np.ones((5, 5), complex)])
def test_actions_that_are_not_real_numbers_are_refused(actions):
    game = games.make("grassland", "3-2")
    with pytest.raises(InputError, match="actions of"):
        game.step(jax.random.key(0), game.reset(jax.random.key(0)), actions)


def test_world_of_another_game_or_population_is_refused():
    game = games.make("grassland", "3-2")
    for other in (games.make("grassland", "2-3", food=5), games.make("predator-prey", "3-2")):
        world = other.reset(jax.random.key(0))
        with pytest.raises(InputError, match="this world does not fit grassland 3-2"):
            game.step(jax.random.key(0), world, jnp.zeros((5, 5)))


@pytest.mark.parametrize("name", ["grassland", "food-collection"])
def test_batched_step_needs_one_key_per_world(name):
    game = games.make(name)
    n = game.num_agents
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(0), 4))
    for keys in (jax.random.key(0), jax.random.split(jax.random.key(0), 3)):
        with pytest.raises(InputError, match="needs one key per world"):
            game.step(keys, worlds, jnp.zeros((n, 5, 4)))


def test_step_takes_worlds_of_numpy_arrays():
    game = games.make("grassland", "3-2")
    world, actions = game.reset(jax.random.key(0)), np.ones((5, 5))
    arrays = jax.tree.map(lambda x: np.asarray(x), world)
    ours, _ = game.step(jax.random.key(1), arrays, actions)
    expected, _ = game.step(jax.random.key(1), world, jnp.asarray(actions))
    np.testing.assert_array_equal(ours.position, expected.position)


def test_step_takes_legacy_prng_keys():
    game = games.make("grassland", "3-2")
    world = game.reset(jax.random.PRNGKey(0))
    after, _ = jax.jit(game.step)(jax.random.PRNGKey(1), world, jnp.zeros((5, 5)))
    assert after.time == 1


def test_population_parses_what_it_prints():
    assert str(Population.parse("24-16")) == "24-16"
    assert Population.parse(6) == Population((6,))
    assert Population.parse("3-2").total == 5
    assert games.make("grassland", Population((1, 7))).num_agents == 8


def test_agents_are_ordered_by_role():
    game = games.make("grassland", "2-1")
    assert game.agent_names == ("sheep_0", "sheep_1", "wolf_0")
    assert game.members == {"sheep": slice(0, 2), "wolf": slice(2, 3)}


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_step_works_at_large_uneven_populations(name):
    game = games.make(name, make_population(name, 96, 64))
    world = jax.jit(game.reset)(jax.random.key(0))
    after, outcome = jax.jit(game.step)(jax.random.key(0), world, jnp.ones((game.num_agents, 5)))
    assert after.position.shape == (game.num_agents, 2)
    assert outcome.reward.shape == (game.num_agents,)


@pytest.mark.parametrize("name", ["grassland", "adversarial-battle", "food-collection"])
def test_masks_of_observations_are_no_constants(name):
    """They grow with the square of the population and the batch, and XLA is slow at folding."""
    game = games.make(name)
    worlds = jax.eval_shape(game.reset_batch, jax.random.split(jax.random.key(0), 7))
    for kind in game.entity_types:
        mask = jax.jit(
            lambda worlds, kind=kind: game.observe_batch(worlds).entities[kind.name].mask
        )
        assert "%arg0" in mask.lower(worlds).as_text()  # unused arguments are left out
