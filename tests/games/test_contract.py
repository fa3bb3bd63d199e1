"""The contract of any game, by one outside the package that has only what is required."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import InputError, games
from tests.games.ring import Ring
from tests.games.worlds import PARTICLE_GAMES, random_world

GAME = games.make(Ring, "2-1")


def random_actions(game, key, batch):
    """One-hot vectors [agents, actions, batch] of actions that the agents have."""
    choice = jax.random.randint(key, (game.num_agents, batch), 0, game.action_mask.sum(1)[:, None])
    return jax.nn.one_hot(choice, game.num_actions, axis=1)


def test_make_takes_a_class_a_reference_and_the_first_stage_by_default():
    assert games.make("tests.games.ring:Ring", "4-2") == games.make(Ring, "4-2")
    assert str(games.make(Ring).population) == "2-1"
    with pytest.raises(InputError, match="ring has no option 'food': it takes none"):
        games.make(Ring, "2-1", food=3)
    with pytest.raises(InputError, match=r"ring, which has 2 roles \(runner-catcher\)"):
        games.make(Ring, "2")


def test_reference_is_the_name_of_built_in_games_and_module_and_class_of_others():
    assert GAME.reference == "tests.games.ring:Ring"
    assert games.find(GAME.reference) is Ring
    for name in PARTICLE_GAMES:
        assert games.make(name).reference == name


def test_action_mask_follows_the_number_of_actions_of_each_role():
    game = games.make(Ring, "1-2")
    assert game.num_actions == 3
    np.testing.assert_array_equal(game.action_mask, [[1, 1, 1], [1, 1, 0], [1, 1, 0]])
    assert game.action_mask.dtype == bool
    assert games.make("grassland", "3-2").action_mask.shape == (5, 5)
    assert games.make("grassland", "3-2").action_mask.all()


def test_everybody_is_alive_by_default():
    worlds = GAME.reset_batch(jax.random.split(jax.random.key(0), 4))
    for alive, shape in (
        (GAME.alive(GAME.reset(jax.random.key(0))), (3,)),
        (GAME.alive_batch(worlds), (3, 4)),
    ):
        assert alive.shape == shape
        assert alive.dtype == bool
        assert alive.all()


def test_alive_of_particle_games_is_that_of_the_world():
    game = games.make("grassland", "6-4")
    world, _ = random_world(game, seed=0)
    assert not world.alive.all()
    np.testing.assert_array_equal(game.alive(world), world.alive)


@pytest.mark.parametrize("lit", [True, False])
def test_observe_flat_joins_own_features_and_entity_types_by_name(lit):
    """Per type, in alphabetical order: features, zero where masked, then the mask."""
    world = {"cell": jnp.array([1, 5, 6]), "lit": jnp.asarray(lit)}
    seen = 1.0 * lit
    expected = [
        #  own          catchers: ahead, ahead^2, mask   runners: ahead, mask
        [1 / 8, seen, 5, 25, 1, 0, 4 * seen, 0, seen],
        [5 / 8, seen, 1, 1, 1, 4 * seen, 0, seen, 0],
        [6 / 8, seen, 0, 0, 0, 3 * seen, 7 * seen, seen, seen],
    ]
    flat = GAME.observe_flat(world)
    assert flat.dtype == jnp.float32
    np.testing.assert_array_equal(flat, np.array(expected, np.float32))
    assert GAME.flat_width == 9


def test_observation_shapes_are_those_of_one_world():
    shapes = games.make(Ring, "4-2").observation_shapes
    assert shapes.own.shape == (6, 2)
    assert {name: x.features.shape for name, x in shapes.entities.items()} == {
        "runners": (6, 4, 1),
        "catchers": (6, 2, 2),
    }
    assert shapes.entities["runners"].mask.shape == (6, 4)


def test_batch_methods_equal_a_loop_over_worlds():
    batch = 5
    keys = jax.random.split(jax.random.key(1), batch)
    worlds = GAME.reset_batch(keys)
    actions = random_actions(GAME, jax.random.key(2), batch)
    single = [GAME.reset(key) for key in keys]

    def equal(batched, singles):
        expected = jax.tree.map(lambda *x: np.stack(x, -1), *singles)
        jax.tree.map(np.testing.assert_array_equal, batched, expected)

    equal(worlds, single)
    steps = [GAME.step(keys[b], single[b], actions[..., b]) for b in range(batch)]
    equal(GAME.step_batch(keys, worlds, actions), steps)
    equal(GAME.observe_batch(worlds), [GAME.observe(world) for world in single])
    equal(GAME.observe_flat_batch(worlds), [GAME.observe_flat(world) for world in single])
    assert len({str(jax.device_get(world)) for world in single}) > 1


def test_game_without_script_has_no_scripted_player():
    assert not GAME.has_script
    with pytest.raises(InputError, match="ring has no scripted players: use random") as caught:
        GAME.scripted(jax.random.key(0), GAME.reset(jax.random.key(0)))
    assert "\n" not in str(caught.value)
    assert all(games.make(name).has_script for name in PARTICLE_GAMES)


def test_game_without_positions_has_no_scene():
    with pytest.raises(InputError, match=r"ring cannot be replayed: .* `scene`") as caught:
        GAME.scene(GAME.reset(jax.random.key(0)))
    assert "\n" not in str(caught.value)


def test_scene_of_particle_games_shows_agents_food_and_obstacles():
    for name, food, obstacles in (("grassland", 4, 0), ("predator-prey", 0, 2)):
        game = games.make(name)
        world = game.reset(jax.random.key(0))
        scene = game.scene(world)
        np.testing.assert_array_equal(scene.position, world.position)
        np.testing.assert_array_equal(scene.food, world.food)
        assert scene.food.shape == (food, 2)
        assert scene.obstacles.shape == (obstacles, 2)
    np.testing.assert_array_equal(scene.obstacles, world.obstacles)


def test_scores_are_sums_over_a_team_and_means_without_opponents_or_with_shared_reward():
    values = np.array([[1.0, 2.0], [3.0, 6.0]])  # [members, episodes]
    tag = games.make("predator-prey", "2-2")
    collection = games.make("food-collection", "2")
    np.testing.assert_array_equal(games.make("grassland", "2-2").score(values, "wolf"), [4, 8])
    np.testing.assert_array_equal(tag.score(values, "prey"), [4, 8])
    np.testing.assert_array_equal(tag.score(values, "predator"), [2, 4])  # the same for all
    np.testing.assert_array_equal(tag.total(values), [4, 8])
    np.testing.assert_array_equal(collection.score(values, "collector"), [2, 4])
    np.testing.assert_array_equal(collection.score(values, "collector", axis=1), [1.5, 4.5])
    assert tag.per_member(8.0, "prey") == 4.0
    assert tag.per_member(8.0, "predator") == 8.0
    assert collection.per_member(8.0, "collector") == 8.0
