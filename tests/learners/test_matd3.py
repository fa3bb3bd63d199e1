"""MATD3: what twin critics, delayed policies and smoothed targets change in MADDPG."""

import itertools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.learners import MADDPG, MATD3, MADDPGConfig, MATD3Config
from epcx.networks.seat import seats

SMALL = {"batch_size": 16, "buffer_size": 400, "num_envs": 4, "learning_starts": 100}
GAME = games.make("grassland", "2-1")
LEARNER = MATD3(GAME, MATD3Config("mean-field", **SMALL))
SINGLE = MADDPG(GAME, MADDPGConfig("mean-field", **SMALL))


@pytest.fixture(scope="module")
def state():
    """Ready for the first update; target networks are those of other agents."""
    agents, others = (jax.jit(LEARNER.init)(jax.random.key(seed)) for seed in (0, 1))
    agents = eqx.tree_at(
        lambda a: (a.target_policy, a.target_critic), agents, (others.policy, others.critic)
    )
    return jax.jit(LEARNER.start)(jax.random.key(2), agents)


@pytest.fixture(scope="module")
def batch(state):
    sampled = jax.jit(LEARNER.sample)(state, jax.random.key(3))
    return jax.tree.map(lambda x: x[0], sampled)  # the only slice


def one(tree, i):
    return jax.tree.map(lambda x: jnp.asarray(x)[i], tree)


def with_critic(agent, number):
    """The agent with one of its critics, as MADDPG has it."""
    critics = [jax.tree.map(lambda x: x[number], x) for x in (agent.critic, agent.target_critic)]
    return eqx.tree_at(lambda a: (a.critic, a.target_critic), agent, critics)


def test_target_is_the_lower_one_of_both_critics(state, batch):
    lower = set()
    for number in range(GAME.num_agents):
        agent, seat = one(state.agents, number), one(seats(GAME), number)
        found = np.asarray(LEARNER.td_target(agent, seat, batch))
        each = [SINGLE.td_target(with_critic(agent, critic), seat, batch) for critic in (0, 1)]
        np.testing.assert_allclose(found, np.minimum(*each), rtol=1e-5)
        lower |= set(np.argmin(each, 0).tolist())
    assert lower == {0, 1}


def test_both_critics_learn_and_the_policy_follows_the_first(state, batch):
    agent, seat = one(state.agents, 1), one(seats(GAME), 1)
    target = LEARNER.td_target(agent, seat, batch)
    sliced = jax.tree.map(lambda x: x[None], batch)
    key = jax.random.key(4)
    (losses, grads), _ = jax.jit(LEARNER.gradients)(agent, seat, sliced, key)
    singles = []
    for number in (0, 1):
        mine = with_critic(agent, number)
        loss, grad = jax.value_and_grad(SINGLE.critic_loss, has_aux=True)(
            mine.critic, seat, batch, target
        )
        singles.append(loss[0])
        for a, b in zip(*map(jax.tree.leaves, (grads[0], grad)), strict=True):
            np.testing.assert_allclose(a[number], b, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(losses.critic, sum(map(float, singles)), rtol=1e-4)
    (_, of_first), _ = jax.jit(SINGLE.gradients)(with_critic(agent, 0), seat, sliced, key)
    for a, b in zip(*map(jax.tree.leaves, (grads[1], of_first[1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_policies_and_targets_follow_every_other_update(state):
    advance = jax.jit(LEARNER.advance)
    states = [state]
    for _ in range(4):
        states.append(advance(states[-1], 1)[0])
    changed = [
        [moved(old.agents, new.agents, part) for part in ("critic", "policy", "target_critic")]
        for old, new in itertools.pairwise(states)
    ]
    assert changed == [[True, True, True], [True, False, False]] * 2


def moved(old, new, part):
    leaves = zip(*(jax.tree.leaves(getattr(x, part)) for x in (old, new)), strict=True)
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in leaves)


def test_noise_on_target_actions_is_bounded(state):
    """Logits move by at most 2.5 deviations; without it, actions are MADDPG's."""
    key = jax.random.key(3)
    plain = replace(LEARNER, config=replace(LEARNER.config, target_noise=0.0))
    with_noise, without = (
        np.log(np.asarray(learner.sample(state, key).next_actions)) for learner in (LEARNER, plain)
    )
    shifts = with_noise - without
    shifts -= shifts.mean(1, keepdims=True)  # a softmax does not tell them apart
    assert 0.05 < shifts.std() < 0.25
    assert np.abs(shifts).max() <= 2 * 2.5 * 0.2


def test_twin_critics_of_attention_train():
    learner = MATD3(games.make("food-collection", "2"), MATD3Config(**SMALL))
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    state, metrics = jax.jit(learner.advance)(state, 2)
    assert not bool(state.diverged)
    assert all(np.isfinite(x).all() for x in metrics.values())
    first, second = (jax.tree.map(lambda x, n=n: x[:, n], state.agents.critic) for n in (0, 1))
    leaves = zip(*map(jax.tree.leaves, (first, second)), strict=True)
    assert any((np.asarray(x) != np.asarray(y)).any() for x, y in leaves)
