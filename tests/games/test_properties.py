"""Properties of every particle game, at any population, for any actions."""

from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from epcx import games
from tests.games.worlds import PARTICLE_GAMES, make_population, random_world

# Few populations, since each is compiled: one of each, and uneven ones.
POPULATIONS = {1: ("1", "5"), 2: ("1-1", "4-2", "2-3")}


def cases(names=PARTICLE_GAMES):
    """Strategies for `unpack`: a game and population, a seed, and how crowded the world is."""
    pairs = [(name, p) for name in names for p in POPULATIONS[len(games.find(name).roles)]]
    return st.tuples(st.sampled_from(pairs), st.integers(0, 2**31 - 1), st.sampled_from([0.2, 1.0]))


def unpack(case):
    """A game, a world and actions."""
    (name, population), seed, spread = case
    game = games.make(name, population)
    return game, *random_world(game, seed, spread)


@cache
def compiled_step(game):
    return jax.jit(game.step)


def step(game, world, actions):
    """A step, compiled once per game and population."""
    return jax.device_get(compiled_step(game)(jax.random.key(1), world, actions))


few_examples = settings(max_examples=40, deadline=None, derandomize=True)


@few_examples
@given(cases(names=("grassland", "adversarial-battle", "food-collection")))
def test_agents_and_food_stay_within_the_walls(case):
    game, world, actions = unpack(case)
    after, _ = step(game, world, 10 * actions)
    assert (np.abs(after.position) <= game.world_size).all()
    assert (np.abs(after.food) <= 0.9 * game.world_size).all()


@few_examples
@given(cases())
def test_dead_agents_stay_dead_and_get_no_reward(case):
    game, world, actions = unpack(case)
    after, outcome = step(game, world, actions)
    dead = ~np.asarray(world.alive)
    np.testing.assert_array_equal(after.position[dead], np.asarray(world.position)[dead])
    for value in (outcome.reward, outcome.shaping, outcome.events.ate, outcome.events.killed):
        if game.name == "grassland":  # wolves do not die, so no rule speaks of dead ones
            value, gone = value[game.members["sheep"]], dead[game.members["sheep"]]
        else:
            gone = dead
        assert (value[gone] == 0).all()
    assert not after.alive[dead].any()
    assert not outcome.events.died[dead].any()


@few_examples
@given(cases())
def test_step_is_finite_and_advances_time(case):
    game, world, actions = unpack(case)
    after, outcome = step(game, world, actions)
    for leaf in jax.tree.leaves((after, outcome)):
        assert np.isfinite(leaf).all()
    assert after.time == world.time + 1


@few_examples
@given(cases(), st.integers(0, 99))
def test_step_is_equivariant_to_permutations_within_a_role(case, shuffle):
    game, world, actions = unpack(case)
    order = np.arange(game.num_agents)
    for members in game.members.values():
        order[members] = np.random.default_rng(shuffle).permutation(order[members])
    permuted = replace(
        world,
        position=world.position[order],
        velocity=world.velocity[order],
        alive=world.alive[order],
    )
    after, outcome = step(game, world, actions)
    after_permuted, outcome_permuted = step(game, permuted, actions[order])
    # Sums over agents are taken in another order, hence the tolerance.
    np.testing.assert_allclose(after_permuted.position, after.position[order], atol=2e-5)
    np.testing.assert_allclose(after_permuted.velocity, after.velocity[order], atol=2e-4)
    np.testing.assert_array_equal(after_permuted.alive, after.alive[order])
    np.testing.assert_array_equal(after_permuted.food, after.food)
    np.testing.assert_allclose(outcome_permuted.reward, outcome.reward[order], atol=1e-4)
    np.testing.assert_allclose(outcome_permuted.shaping, outcome.shaping[order], atol=1e-4)
    np.testing.assert_array_equal(outcome_permuted.events.ate, outcome.events.ate[order])


@pytest.mark.parametrize("name", PARTICLE_GAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [0, 1])
def test_non_finite_action_is_flagged_and_ignored(name, bad, weight):
    game = games.make(name)
    world, actions = random_world(game, seed=3)
    harmless, _ = step(game, world, actions.at[0].set(0.0))
    after, outcome = step(game, world, actions.at[0, weight].set(bad))
    np.testing.assert_array_equal(outcome.events.invalid, np.arange(game.num_agents) == 0)
    for ours, expected in zip(jax.tree.leaves(after), jax.tree.leaves(harmless), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("huge", [1e10, 1e30, 3e38])
def test_huge_action_accelerates_to_the_speed_limit(huge):
    game = games.make("food-collection", 1)
    world = replace(game.reset(jax.random.key(0)), position=jnp.zeros((1, 2)))
    actions = jnp.array([[0.0, huge, -huge, 0.0, 0.0]], jnp.float32)
    after, outcome = step(game, world, actions)
    np.testing.assert_allclose(after.velocity, [[4.0, 0.0]], rtol=1e-6)
    assert not outcome.events.invalid.any()


def test_soft_actions_accelerate_along_their_axes():
    game = games.make("food-collection", 1)
    world = replace(game.reset(jax.random.key(0)), position=jnp.zeros((1, 2)))
    for action, direction in enumerate([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]):
        after, _ = step(game, world, 0.5 * jax.nn.one_hot(jnp.array([action]), 5))
        np.testing.assert_allclose(after.velocity[0], 0.2 * np.array(direction), atol=1e-6)


@pytest.mark.parametrize("name", PARTICLE_GAMES)
@pytest.mark.parametrize("uneven", [False, True])
def test_batched_steps_and_observations_equal_single_worlds(name, uneven):
    """However the batch is laid out: vmapped in front, nested, or as the last axis."""
    game = games.make(name, make_population(name, 5, 2) if uneven else None)
    cases = [random_world(game, seed) for seed in range(6)]
    keys = jax.random.split(jax.random.key(5), 6)
    worlds, actions = jax.tree.map(lambda *x: jnp.stack(x), *cases)
    alone = jax.jit(game.step)
    singles = [alone(k, *case) for k, case in zip(keys, cases, strict=True)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *singles)

    def equal(result):
        for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)

    equal(jax.jit(jax.vmap(game.step))(keys, worlds, actions))

    nested = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), (keys, worlds, actions))
    result = jax.jit(jax.vmap(jax.vmap(game.step)))(*nested)
    equal(jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), result))

    def last(tree):
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), tree)

    def first(tree):
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), tree)

    equal(first(jax.jit(game.step_batch)(keys, last(worlds), last(actions))))
    for one, batch in (
        (game.observe, game.observe_batch),
        (game.observe_flat, game.observe_flat_batch),
        (game.alive, game.alive_batch),
    ):
        apart, together = jax.jit(jax.vmap(one))(worlds), first(jax.jit(batch)(last(worlds)))
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_step_vmaps_over_actions_alone():
    game = games.make("grassland", "3-2")
    world, actions = random_world(game, 0)
    many = jnp.stack([actions, 0 * actions])
    over_actions = jax.jit(jax.vmap(game.step, in_axes=(None, None, 0)))
    after, _ = over_actions(jax.random.key(1), world, many)
    for i in range(2):
        alone, _ = step(game, world, many[i])
        np.testing.assert_allclose(after.position[i], alone.position, atol=1e-6)


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_episode_is_determined_by_its_seed(name):
    game = games.make(name)
    actions = jnp.ones((game.num_agents, 5)).at[:, 1].set(2.0)

    @jax.jit
    def play(seed):
        keys = jax.random.split(jax.random.key(seed), 26)
        return jax.lax.scan(
            lambda w, k: (game.step(k, w, actions)[0], None), game.reset(keys[0]), keys[1:]
        )[0]

    once, again, other = play(1), play(1), play(2)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(once.position, other.position)
