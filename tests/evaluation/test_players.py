"""Fixed players: random ones act within the rules, scripted ones are clearly better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from epcx import games
from epcx.errors import InputError
from epcx.evaluation.players import FixedPlayers, fixed_players, random_actions
from epcx.games.scripted import assign_food
from tests.execution.toy import Walk

EPISODES = 64


def play(game, acts):
    """Task reward per agent and episode [N]; `acts[i]` decides for role i."""

    def advance(world, key):
        action_key, step_key = jax.random.split(key)
        actions = jnp.concatenate(
            [
                act(action_key, world)[members]
                for act, members in zip(acts, game.members.values(), strict=True)
            ]
        )
        after, outcome = game.step(step_key, world, actions)
        return after, (outcome.reward, actions)

    def episode(key):
        keys = jax.random.split(key, game.horizon + 1)
        return jax.lax.scan(advance, game.reset(keys[0]), keys[1:])[1]

    reward, actions = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES))
    assert (np.asarray(actions) >= 0).all()
    assert (np.asarray(actions).sum(-1) <= 1 + 1e-5).all()
    return np.asarray(reward).sum(1).mean(0)


@pytest.mark.parametrize(
    ("name", "population"),
    [("grassland", "6-4"), ("adversarial-battle", "4-4"), ("predator-prey", "3-2")],
)
def test_scripted_players_beat_random_ones_in_each_role(name, population):
    game = games.make(name, population)
    random = random_actions(game)
    base = play(game, (random, random))
    for i, members in enumerate(game.members.values()):
        acts = [random, random]
        acts[i] = game.scripted
        assert play(game, acts)[members].sum() > base[members].sum() + 1


def test_scripted_collectors_spread_out_over_the_food():
    """The reward of a perfect team would be 6 per step and agent, 150 in all."""
    game = games.make("food-collection", "6")
    assert play(game, (random_actions(game),)).mean() < 20
    assert play(game, (game.scripted,)).mean() > 105


@pytest.mark.parametrize(("agents", "food"), [(6, 6), (4, 7), (7, 3)])
def test_assigned_food_has_the_least_total_distance(agents, food):
    """As scipy has it; who is left over stays where it is."""
    game = games.make("food-collection", agents, food=food)
    for seed in range(5):
        world = game.reset(jax.random.key(seed))
        targets = np.asarray(jax.jit(assign_food, static_argnums=0)(game, world))
        distances = np.linalg.norm(world.position[:, None] - world.food[None], axis=2)
        expected = distances[linear_sum_assignment(distances)].sum()
        np.testing.assert_allclose(
            np.linalg.norm(targets - world.position, axis=1).sum(), expected, 1e-5
        )
        places = {tuple(target) for target in targets} & {tuple(x) for x in np.asarray(world.food)}
        assert len(places) == min(agents, food)


def test_random_actions_are_soft_where_the_game_allows_it():
    soft, hard = games.make("grassland", "3-2"), games.make(Walk, 5)
    for game, largest in ((soft, 0.999), (hard, 1.0)):
        worlds = game.reset(jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), 300)
        actions = np.asarray(jax.vmap(random_actions(game), (0, None))(keys, worlds))
        assert actions.shape == (300, 5, game.num_actions)
        np.testing.assert_allclose(actions.sum(2), 1, rtol=1e-5)
        np.testing.assert_allclose(actions.mean((0, 1)), 1 / game.num_actions, atol=0.05)
        assert (actions.max(2) <= largest).all()
    assert set(np.unique(actions)) == {0, 1}


def test_game_without_scripted_players_has_random_ones_only():
    game = games.make(Walk, 2)
    assert [player.name for player in fixed_players(game)] == ["random"]
    assert [player.name for player in fixed_players(games.FoodCollection)] == ["scripted", "random"]
    with pytest.raises(InputError, match="walk has no scripted players: use random"):
        FixedPlayers("scripted").player(game, "walker")


def test_fixed_player_acts_in_the_seats_of_its_role():
    game = games.make("grassland", "2-2")
    worlds = game.reset_batch(jax.random.split(jax.random.key(0), 3))
    act = jax.jit(jax.vmap(game.scripted, (None, -1), -1))
    expected = act(jax.random.key(0), worlds)
    for role, members in game.members.items():
        player = FixedPlayers("scripted").player(game, role)
        actions = jax.jit(player.act)(jax.random.key(1), None, worlds)
        np.testing.assert_allclose(actions, expected[members], atol=1e-6)
