"""Sampling of actions, and steps of many worlds."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from epcx import games
from epcx.learners.rollout import (
    MANY_ROWS,
    StepNoise,
    action_logits,
    available_actions,
    gumbel_softmax,
    sample_actions,
    step_worlds,
)
from epcx.networks.agent import ARCHITECTURES
from tests.games.ring import Ring

SAMPLES = 20_000
PROBABILITIES = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
LOGITS = jnp.broadcast_to(jnp.log(PROBABILITIES)[:, None], (5, SAMPLES))
NOISE = jax.random.gumbel(jax.random.key(0), LOGITS.shape)
AVAILABLE = jnp.array([True, False, True, True, False])[:, None]


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("available", [None, AVAILABLE])
def test_gumbel_softmax_samples_the_categorical_distribution(soft, available):
    """Over the available actions; the largest weight of a soft sample is the choice."""
    samples = np.asarray(gumbel_softmax(LOGITS, NOISE, available, soft))
    np.testing.assert_allclose(samples.sum(0), 1, atol=1e-5)
    mask = np.ones(5, bool) if available is None else np.asarray(available)[:, 0]
    counts = np.bincount(samples.argmax(0), minlength=5)
    assert (counts[~mask] == 0).all()
    expected = PROBABILITIES[mask] / PROBABILITIES[mask].sum() * SAMPLES
    assert chisquare(counts[mask], expected).pvalue > 0.01


def test_hard_samples_are_one_hot_and_choose_as_soft_ones():
    hard = np.asarray(gumbel_softmax(LOGITS, NOISE, soft=False))
    soft = np.asarray(gumbel_softmax(LOGITS, NOISE))
    np.testing.assert_array_equal(hard, np.eye(5)[soft.argmax(0)].T)
    assert ((soft > 0) & (soft < 1)).all()


@pytest.mark.parametrize("available", [None, AVAILABLE])
def test_hard_samples_have_the_gradient_of_soft_ones(available):
    """Straight-through: the samples differ, their derivatives by the logits do not."""
    logits, noise = LOGITS[:, :50], NOISE[:, :50]
    values = jax.random.normal(jax.random.key(1), logits.shape)

    @partial(jax.jit, static_argnums=1)
    def grad(logits, soft):
        return jax.grad(lambda x: (gumbel_softmax(x, noise, available, soft) * values).sum())(
            logits
        )

    soft, hard = grad(logits, True), grad(logits, False)
    np.testing.assert_allclose(hard, soft, atol=1e-6)
    assert (np.abs(soft).max(0) > 1e-4).all()
    if available is not None:
        assert (np.asarray(soft)[~np.asarray(available)[:, 0]] == 0).all()


@pytest.mark.parametrize("soft", [True, False])
def test_unavailable_actions_have_no_weight_however_large_their_logits(soft):
    logits = jnp.where(AVAILABLE, -1e4, 1e4) + 0 * LOGITS
    samples = np.asarray(gumbel_softmax(logits, NOISE, AVAILABLE, soft))
    assert (samples[~np.asarray(AVAILABLE)[:, 0]] == 0).all()
    np.testing.assert_allclose(samples.sum(0), 1, atol=1e-5)


def test_available_actions_is_none_where_all_roles_have_all_actions():
    assert available_actions(games.make("grassland", "3-2")) is None
    assert available_actions(games.make("grassland", "3-2"), "wolf") is None


def test_available_actions_follow_the_action_mask():
    game = games.make(Ring, "2-1")
    np.testing.assert_array_equal(
        available_actions(game)[..., 0], [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    )
    np.testing.assert_array_equal(available_actions(game, "runner")[..., 0], np.ones((3, 2)))
    np.testing.assert_array_equal(available_actions(game, "catcher")[..., 0], [[1], [1], [0]])


@pytest.mark.parametrize("batch", [2, MANY_ROWS // 2])  # all agents at once, or one by one
@pytest.mark.parametrize("role", [None, "wolf"])
def test_logits_are_those_of_each_policy_for_what_its_agent_sees(role, batch):
    game, network = games.make("grassland", "2-1"), ARCHITECTURES["relational"]
    keys = jax.random.split(jax.random.key(0), game.num_agents)
    each = [network.policy(key, game) for key in keys][slice(None) if role is None else slice(2, 3)]
    views = network.views(game, game.reset_batch(jax.random.split(jax.random.key(1), batch)))
    first = game.num_agents - len(each)
    views = jax.tree.map(lambda x: x[..., first:, :], views)
    logits = action_logits(game, jax.tree.map(lambda *x: jnp.stack(x), *each), views, role)
    for i, policy in enumerate(each):
        expected = policy(jax.tree.map(lambda x, i=i: x[..., i, :], views))
        np.testing.assert_allclose(logits[:, i], expected, atol=1e-5)


@pytest.mark.parametrize("role", [None, "runner", "catcher"])
def test_sampled_actions_are_one_hot_and_available_in_a_game_of_discrete_actions(role):
    """The policies here are offsets of what they see, so that each has its own logits."""
    game = games.make(Ring, "2-1")
    members = slice(None) if role is None else game.members[role]
    offsets = 10 * jax.random.normal(jax.random.key(0), (3, 3))[members]
    policies = jax.tree_util.Partial(lambda offset, view: view + offset[:, None], offsets)
    n = len(offsets)
    noise = jax.random.gumbel(jax.random.key(1), (3, n, 200))
    actions = np.asarray(sample_actions(game, policies, jnp.zeros((3, n, 200)), noise, role))
    scores = np.asarray(offsets).T[..., None] + np.asarray(noise)
    available = game.action_mask[members].T[..., None]
    choice = np.where(available, scores, -np.inf).argmax(0)
    np.testing.assert_array_equal(actions, np.moveaxis(np.eye(3)[choice], -1, 0))
    if role != "runner":
        assert scores[:, -1].argmax(0).max() == 2  # unavailable to the catcher, but the largest


def test_worlds_start_anew_after_every_horizon_steps():
    game, envs = games.make(Ring, "2-1"), 3
    noise = StepNoise.draw(jax.random.key(0), game, 2 * game.horizon, envs)
    assert noise.gumbel.shape == (8, 3, 3, envs)
    assert noise.keys.shape == (8, envs)
    assert noise.fresh["cell"].shape == (8, 3, envs)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), envs))
    stay = jnp.zeros((3, 3, envs)).at[:, 0].set(1.0)
    for time in range(2 * game.horizon):
        now = jax.tree.map(lambda x, t=time: x[t], noise)
        after, outcome, following = step_worlds(game, now, worlds, stay, jnp.asarray(time))
        expected, expected_outcome = game.step_batch(now.keys, worlds, stay)
        jax.tree.map(np.testing.assert_array_equal, after, expected)
        jax.tree.map(np.testing.assert_array_equal, outcome, expected_outcome)
        over = time in (game.horizon - 1, 2 * game.horizon - 1)
        jax.tree.map(np.testing.assert_array_equal, following, now.fresh if over else after)
        assert (np.asarray(now.fresh["cell"]) != np.asarray(after["cell"])).any()
        worlds = following
