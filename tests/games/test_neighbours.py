"""The nearest against loops in NumPy, by plain JAX and by the GPU kernel, interpreted."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import backends, games
from epcx.errors import InputError
from epcx.games import nearest_kernel
from epcx.games.neighbours import by_top_k, k_nearest
from tests.games.ring import Ring
from tests.games.test_observations import visible_entities
from tests.games.worlds import PARTICLE_GAMES, make_population, random_world


def by_kernel(*arguments):
    options = nearest_kernel.Options(interpret=True, worlds=16)
    return nearest_kernel.by_insertion(*arguments, options)


def by_loop(observers, others, there, k, same):
    """Numbers in ascending order; that of the absent is how many others there are."""
    (n, _, batch), m = observers.shape, len(others)
    chosen = np.full((n, k, batch), m)
    for i in range(n):
        for b in range(batch):
            wanted = [j for j in range(m) if there[j, b] and not (same and i == j)]
            apart = {j: ((observers[i, :, b] - others[j, :, b]) ** 2).sum() for j in wanted}
            found = sorted(sorted(wanted, key=lambda j: (apart[j], j))[:k])
            chosen[i, : len(found), b] = found
    return chosen


@pytest.mark.parametrize("number", [by_top_k, by_kernel])
@pytest.mark.parametrize(("k", "alive"), [(1, 0.8), (3, 0.8), (3, 0.3), (2, 0.0)])
@pytest.mark.parametrize("same", [False, True])
def test_nearest_equal_a_loop(number, k, alive, same):
    """Also with few who live, and with nobody; places on a grid have the same distance."""
    rng = np.random.default_rng(0)
    others = rng.integers(-1, 2, (5, 2, 37)).astype(np.float32)
    observers = others if same else rng.integers(-1, 2, (4, 2, 37)).astype(np.float32)
    there = rng.random((5, 37)) < alive
    expected = by_loop(observers, others, there, k, same)
    found = number(jnp.asarray(observers), jnp.asarray(others), jnp.asarray(there), k, same)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("number", [by_top_k, by_kernel])
def test_nearest_take_any_batch_and_any_dimension(number):
    keys = jax.random.split(jax.random.key(0), 3)
    observers, others = (jax.random.normal(k, (3, 3, 2, 4)) for k in keys[:2])
    there = jax.random.bernoulli(keys[2], 0.7, (3, 2, 4))
    found = number(observers, others, there, 2, False)
    flat = [np.asarray(x).reshape(*x.shape[:-2], 8) for x in (observers, others, there)]
    np.testing.assert_array_equal(found.reshape(3, 2, 8), by_loop(*flat, 2, False))
    alone = number(observers[..., 1, 1], others[..., 1, 1], there[..., 1, 1], 2, False)
    np.testing.assert_array_equal(alone, found[..., 1, 1])


def test_kernel_takes_matches_in_parallel():
    place = jax.random.normal(jax.random.key(0), (2, 4, 2, 5))
    there = jnp.ones((2, 4, 5), bool)
    both = jax.vmap(lambda place, there: by_kernel(place, place, there, 2, True))(place, there)
    for one, x, y in zip(both, place, there, strict=True):
        np.testing.assert_array_equal(one, by_top_k(x, x, y, 2, True))


def test_kernel_lowers_for_gpus():
    """Triton does not take all of JAX; compiling further needs a GPU."""
    place, there = jnp.ones((5, 2, 40)), jnp.ones((5, 40), bool)
    choose = jax.jit(lambda x, there: nearest_kernel.by_insertion(x, x, there, 3, True))
    program = choose.trace(place, there).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 1


def test_kernel_is_chosen_on_gpus_except_for_portable_programs(monkeypatch):
    def failing(*arguments):
        raise NotImplementedError

    place, there = jnp.ones((5, 2, 3)), jnp.ones((5, 3), bool)
    monkeypatch.setattr(nearest_kernel, "by_insertion", failing)
    monkeypatch.setattr(backends, "runs_pallas", lambda: True)
    with pytest.raises(NotImplementedError):
        k_nearest(place, place, there, 2)
    with backends.plain_only():
        k_nearest(place, place, there, 2)


def test_nobody_is_chosen_where_nobody_else_is():
    place, there = jnp.zeros((1, 2, 3)), jnp.ones((1, 3), bool)
    assert k_nearest(place, place, there, 4, same=True).number.shape == (1, 0, 3)
    assert k_nearest(place, place[:0], there[:0], 4).number.shape == (1, 0, 3)
    assert k_nearest(place, place, there, 4).present.all()


def worlds_of(game, number=6):
    """Random worlds with dead agents, as a batch."""
    worlds = [random_world(game, seed)[0] for seed in range(number)]
    return jax.tree.map(lambda *x: jnp.stack(x, -1), *worlds)


CASES = [(name, make_population(name, 6, 4)) for name in PARTICLE_GAMES]
CASES += [("grassland", "1-5"), ("adversarial-battle", "5-2")]


@pytest.mark.parametrize(("name", "population"), CASES)
def test_agents_see_the_nearest_that_live(name, population):
    """The same entities as all that are seen, less those that are farther away, in order."""
    game, k = games.make(name, population), 3
    observe = jax.jit(lambda world: game.observe_nearest(world, k))
    for seed in range(3):
        world, _ = random_world(game, seed)
        everything, seen = game.observe(world), observe(world)
        np.testing.assert_array_equal(seen.own, everything.own)
        for kind, (features, mask) in seen.entities.items():
            assert mask.shape[1] == min(k, everything.entities[kind].mask.shape[1])
            assert not np.asarray(features)[~np.asarray(mask)].any()
            for agent in range(game.num_agents):
                visible = visible_entities(game, world, agent, kind)
                nearest = sorted(visible, key=lambda x: x[0] ** 2 + x[1] ** 2)[:k]
                expected = [x for x in visible if x in nearest]
                found = np.asarray(features[agent])[np.asarray(mask[agent])]
                np.testing.assert_allclose(found, np.reshape(expected, found.shape), atol=1e-6)


@pytest.mark.parametrize(("name", "population"), CASES)
def test_enough_neighbours_are_everybody(name, population):
    game = games.make(name, population)
    worlds = worlds_of(game)
    everything, seen = game.observe_batch(worlds), game.observe_nearest_batch(worlds, 10)
    assert jax.tree.structure(seen) == jax.tree.structure(everything)
    for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(everything), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nearest_in_a_batch_are_those_of_each_world():
    game = games.make("grassland", "5-3")
    worlds = worlds_of(game)
    both = game.observe_nearest_batch(worlds, 2)
    for number in range(3):
        world = jax.tree.map(lambda x, i=number: x[..., i], worlds)
        alone = game.observe_nearest(world, 2)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(both), strict=True):
            np.testing.assert_array_equal(a, b[..., number])


def test_no_features_of_all_pairs_are_computed():
    """Distances are, by plain JAX; features are gathered for the nearest alone."""
    game = games.make("grassland", "20-10", food=30)
    worlds = jax.eval_shape(game.reset_batch, jax.random.split(jax.random.key(0), 3))
    program = jax.make_jaxpr(lambda worlds: game.observe_nearest_batch(worlds, 2))(worlds)
    largest = max(np.prod(x.aval.shape) for x in arrays(program.jaxpr))
    assert largest <= 30 * 30 * 3


def arrays(program):
    for equation in program.eqns:
        yield from equation.outvars
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from arrays(inner)


def test_game_without_neighbourhoods_says_what_it_lacks():
    game = games.make(Ring)
    world = game.reset(jax.random.key(0))
    for ask in (
        lambda: game.positions(world),
        lambda: game.observe_nearest(world, 2),
        lambda: game.check_neighbours(2),
    ):
        with pytest.raises(InputError, match="`positions` and `observe_nearest`"):
            ask()
    game.check_neighbours(None)


def test_dead_are_nobodys_neighbours():
    game = games.make("food-collection", "4")
    world = replace(
        game.reset(jax.random.key(0)),
        position=jnp.asarray([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.9, 0.0]]),
        alive=jnp.asarray([True, False, True, True]),
    )
    features, mask = game.observe_nearest(world, 2).entities["teammates"]
    assert mask[0].all()
    np.testing.assert_allclose(features[0, :, 0], [0.2, 0.9], atol=1e-6)
