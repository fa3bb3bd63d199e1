"""Worlds of constant density: they grow with the population beyond the last of the stages."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples.grid_battle import GridBattle

from epcx import InputError, games
from tests.games.worlds import PARTICLE_GAMES, random_world

LARGER = {  # population, times as many agents as at the last of the stages, food, obstacles
    "grassland": ("96-64", 4, 16, 0),
    "adversarial-battle": ("64-64", 4, 16, 0),
    "food-collection": ("96", 4, 96, 0),
    "predator-prey": ("48-32", 4, 0, 8),
}


def grown(name):
    return games.make(name, LARGER[name][0], "constant")


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_area_food_and_obstacles_grow_with_the_population(name):
    population, times, food, obstacles = LARGER[name]
    game = grown(name)
    last = games.make(name, games.find(name).stages[-1])
    assert game.num_agents == times * last.num_agents
    assert (2 * game.half_side) ** 2 == times * (2 * last.half_side) ** 2 == 4.0 * times
    assert (game.num_food, game.num_obstacles) == (food, obstacles)
    world = game.reset(jax.random.key(0))
    assert world.food.shape == (food, 2)
    assert obstacles == (0 if world.obstacles is None else len(world.obstacles))
    paper = games.make(name, population)
    assert paper.half_side == 1.0
    assert paper.num_food == (96 if name == "food-collection" else last.num_food)


def test_growth_between_doublings_is_rounded():
    game = games.make("grassland", "50-50", "constant")
    assert game.half_side == pytest.approx(np.sqrt(100 / 40))
    assert game.num_food == 10
    assert games.make("grassland", "30-16", "constant").num_food == 5  # 4.6


def test_options_by_hand_are_those_of_the_smaller_world():
    game = games.make("grassland", "96-64", "constant", food=7, world_size=2.0)
    assert (game.half_side, game.num_food) == (4.0, 28)
    assert games.make("predator-prey", "48-32", "constant", obstacles=3).num_obstacles == 12


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_worlds_of_the_paper_are_the_same_at_both_densities(name):
    paper, constant = (
        games.make(name, games.find(name).stages[-1], density) for density in ("paper", "constant")
    )
    world, actions = random_world(paper, seed=3)

    def programs(game):
        return [
            jax.make_jaxpr(game.reset)(jax.random.key(1)),
            jax.make_jaxpr(game.step)(jax.random.key(2), world, actions),
            jax.make_jaxpr(game.observe)(world),
            jax.make_jaxpr(game.observe_flat)(world),
            jax.make_jaxpr(game.scripted)(jax.random.key(3), world),
        ]

    assert list(map(str, programs(paper))) == list(map(str, programs(constant)))


def test_paper_density_computes_the_same_program_as_without_the_option():
    world = games.make("grassland", "96-64").reset(jax.random.key(0))
    programs = [
        str(jax.make_jaxpr(games.make("grassland", "96-64", **options).observe)(world))
        for options in ({}, {"density": "paper"}, {"density": "constant", "food": 1})
    ]
    assert programs[0] == programs[1] != programs[2]


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_agents_and_food_are_scattered_over_the_whole_world(name):
    game = grown(name)
    worlds = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), 50))
    things = {"agents": (worlds.position, 2.0), "food": (worlds.food, 1.9)}
    if worlds.obstacles is not None:
        things["obstacles"] = worlds.obstacles, 1.9
    for places, reach in things.values():
        places = np.asarray(places).reshape(-1, 2)
        if not len(places):
            continue
        assert (np.abs(places) <= reach).all()
        assert (np.abs(places).max(0) > 0.95 * reach).all()
        # As many in each of 4 x 4 cells, up to five standard deviations.
        cells = np.histogram2d(*places.T, 4, [[-reach, reach]] * 2)[0]
        share = len(places) / 16
        assert (np.abs(cells - share) < 5 * np.sqrt(share)).all()


def test_eaten_food_grows_again_anywhere_in_the_larger_world():
    game = games.make("grassland", "96-64", "constant", food=10)
    world = game.reset(jax.random.key(0))
    world = replace(world, food=world.position[: game.num_food])  # all of it is eaten
    after, outcome = game.step(jax.random.key(1), world, jnp.zeros((game.num_agents, 5)))
    new = np.asarray(after.food)[np.asarray(outcome.events.occupied)]
    assert len(new) > 30
    assert 0.8 * game.half_side < np.abs(new).max() <= game.half_side - 0.1


def test_walls_are_those_of_the_larger_world():
    game = grown("grassland")
    world = game.reset(jax.random.key(0))
    position = world.position.at[:2].set(jnp.array([[1.99, -1.99], [0.99, 0.99]]))
    velocity = world.velocity.at[:2].set(jnp.array([[2.0, -2.0], [2.0, 2.0]]))
    world = replace(world, position=position, velocity=velocity)
    after, _ = game.step(jax.random.key(0), world, jnp.zeros((game.num_agents, 5)))
    np.testing.assert_array_equal(after.position[0], [2.0, -2.0])
    assert (after.position[1] > 1.0).all()


def wall_distance(position, half_side):
    """What an agent sees of its own position, coordinate by coordinate, from the description."""
    seen = []
    for p in position:
        if abs(p) <= half_side - 1:
            seen.append(0.0)
        else:
            seen.append(p - (half_side - 1) if p > 0 else p + (half_side - 1))
    return seen


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_own_position_shows_the_walls_of_a_larger_world(name):
    game = grown(name)
    world, _ = random_world(game, seed=4, spread=2.3 if name == "predator-prey" else 2.0)
    expected = [wall_distance(p, 2.0) for p in np.asarray(world.position, float)]
    np.testing.assert_allclose(game.observe(world).own[:, 2:4], expected, atol=1e-6)
    np.testing.assert_allclose(game.observe_flat(world)[:, 2:4], expected, atol=1e-6)


def in_a_corner(game, seed):
    """A random world whose agents and things are all near the upper right corner."""
    world, _ = random_world(game, seed, spread=0.2)
    corner = jnp.array([0.8, 0.8])
    obstacles = None if world.obstacles is None else jnp.array([[0.6, 0.9], [0.3, 0.5]])
    return replace(
        world,
        position=corner + world.position,
        food=corner + 0.2 * world.food,
        obstacles=obstacles,
    )


def in_a_larger_world(world, game, seats):
    """The same corner, with `seats` taken by its agents; everything else is at the opposite one."""

    def moved(places, number, where):
        rest = jnp.full((number, 2), -1.5) + 0.001 * jnp.arange(number)[:, None]
        return rest.at[where].set(places + game.half_side - 1)

    n = game.num_agents
    return replace(
        game.reset(jax.random.key(0)),
        position=moved(world.position, n, seats),
        velocity=jnp.zeros((n, 2)).at[seats].set(world.velocity),
        alive=jnp.zeros(n, bool).at[seats].set(world.alive),
        food=moved(world.food, game.num_food, np.arange(len(world.food))),
        obstacles=None
        if world.obstacles is None
        else moved(world.obstacles, game.num_obstacles, np.arange(len(world.obstacles))),
        time=world.time,
    )


@pytest.mark.parametrize("name", PARTICLE_GAMES)
def test_agents_near_a_corner_see_do_and_get_the_same_in_a_larger_world(name):
    small, large = games.make(name, "5" if name == "food-collection" else "3-2"), grown(name)
    world = in_a_corner(small, seed=5)
    first = zip(small.population.counts, large.members.values(), strict=True)
    seats = np.concatenate([np.arange(n) + members.start for n, members in first])

    def played(game, world):
        _, outcome = game.step(jax.random.key(1), world, jnp.zeros((game.num_agents, 5)))
        return game.observe(world), game.scripted(jax.random.key(2), world), outcome

    mine = jax.device_get(jax.jit(lambda: played(small, world))())
    bigger = in_a_larger_world(world, large, seats)
    theirs = jax.device_get(jax.jit(lambda: played(large, bigger))())
    np.testing.assert_allclose(theirs[0].own[seats], mine[0].own, atol=1e-6)
    for kind, (features, mask) in mine[0].entities.items():
        others = theirs[0].entities[kind]
        for agent, seat in enumerate(seats):
            near = others.mask[seat] & (np.abs(others.features[seat, :, :2]) < 2).all(1)
            wanted = features[agent][mask[agent]]
            np.testing.assert_allclose(others.features[seat][near], wanted, atol=1e-5)
    np.testing.assert_allclose(theirs[2].shaping[seats], mine[2].shaping, atol=1e-5)
    assert (mine[2].shaping[np.asarray(world.alive)][:2] < 0).any()
    if name != "food-collection":  # where all agents share rewards and are assigned together
        np.testing.assert_allclose(theirs[2].reward[seats], mine[2].reward, atol=1e-5)
        alive = np.asarray(world.alive)
        np.testing.assert_allclose(theirs[1][seats][alive], mine[1][alive], atol=1e-4)


def test_games_whose_worlds_do_not_grow_refuse_constant_density():
    sentence = "density constant does not go with grid-battle, whose worlds do not grow: use paper"
    with pytest.raises(InputError, match=sentence):
        games.make(GridBattle, "3-3", "constant")
    assert games.make(GridBattle, "3-3", "paper") == games.make(GridBattle, "3-3")


def test_options_of_a_game_are_those_that_are_not_the_default():
    assert games.options_of(games.make("grassland", "3-2")) == {}
    game = games.make("predator-prey", "3-2", "constant", obstacles=3)
    assert games.options_of(game) == {"density": "constant", "obstacles": 3}
    assert games.options_of(games.make(GridBattle, "3-3")) == {}
