"""MADDPG: its losses against NumPy, whom an update touches, and that it learns."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.agents.agent import ARCHITECTURES
from epcx.agents.seat import seats
from epcx.learners import Hyperparameters
from epcx.learners.maddpg import MADDPG, Batch, cut
from epcx.learners.rollout import gumbel_softmax
from tests.agents import reference

SMALL = Hyperparameters(batch=16, replay=400, worlds=4, warm_up=100)
GAME = games.make("grassland", "2-2")


@pytest.fixture(scope="module")
def learner():
    return MADDPG(GAME, ARCHITECTURES["attention"], SMALL)


@pytest.fixture(scope="module")
def state(learner):
    """After the warm-up; targets are other agents, so that nothing hides behind equality."""
    agents = jax.jit(learner.init)(jax.random.key(0))
    others = jax.jit(learner.init)(jax.random.key(1))
    agents = eqx.tree_at(
        lambda a: (a.target_policy, a.target_critic), agents, (others.policy, others.critic)
    )
    return jax.jit(learner.start)(jax.random.key(2), agents)


@pytest.fixture(scope="module")
def batch(learner, state):
    """Some agents are dead before the step, some die in it."""
    drawn = state.replay.sample(jax.random.key(3), 16)
    alive = jax.random.bernoulli(jax.random.key(4), 0.7, (4, 16))
    dies = jax.random.bernoulli(jax.random.key(5), 0.3, (4, 16))
    transition = drawn._replace(
        before=replace(drawn.before, alive=alive),
        step=drawn.step._replace(done=~alive | dies),
        after=replace(drawn.after, alive=alive & ~dies),
    )
    observe = jax.jit(lambda worlds: learner.architecture.observe(GAME, worlds))
    next_actions = jnp.moveaxis(
        jax.random.dirichlet(jax.random.key(6), jnp.ones(5), (4, 16)), -1, 0
    )
    return Batch(transition, observe(transition.before), observe(transition.after), next_actions)


@pytest.fixture(scope="module")
def simple():
    """A learner that compiles faster, where the networks do not matter; after the warm-up."""
    learner = MADDPG(GAME, ARCHITECTURES["mean-field"], SMALL)
    agents = jax.jit(learner.init)(jax.random.key(0))
    return learner, jax.jit(learner.start)(jax.random.key(2), agents)


def one(tree, i):
    return jax.tree.map(lambda x: jnp.asarray(x)[i], tree)


def test_warm_up_fills_the_replay_with_played_steps(state):
    assert int(state.replay.time) * SMALL.worlds == SMALL.warm_up
    assert (np.asarray(state.replay.steps.actions).reshape(-1, 5)[:100].sum(-1) > 0.99).all()


def test_the_losses_are_those_of_the_equations(learner, state, batch):
    """The sums over the batch, which the update divides by the number of the living."""
    key = jax.random.key(7)
    transition = batch.transition
    worlds = [one_world(transition.before, b) for b in range(16)]
    later = [one_world(transition.after, b) for b in range(16)]
    observe = jax.jit(GAME.observe)
    drawn = jax.random.gumbel(key, (5, 16))
    noise = np.asarray(drawn, float)
    for i in range(4):
        agent, seat = one(state.agents, i), one(seats(GAME), i)
        goal = jax.jit(learner.target)(agent, seat, batch)
        goals, errors, gains = [], [], []
        for b in range(16):
            views, next_views = observe(worlds[b]), observe(later[b])
            future = reference.value(
                agent.target_critic, GAME, next_views, batch.next_actions[:, :, b].T,
                later[b].alive, i,
            )  # fmt: skip
            done = bool(transition.step.done[i, b])
            goals.append(float(transition.step.reward[i, b]) + (0 if done else 0.95 * future))
            if not worlds[b].alive[i]:
                continue
            actions = np.array(transition.step.actions[..., b], float)
            alive = worlds[b].alive
            value = reference.value(agent.critic, GAME, views, actions, alive, i)
            errors.append((value - goals[b]) ** 2)
            logits = reference.logits(agent.policy, views, i)
            soft = np.exp(logits + noise[:, b])
            actions[i] = soft / soft.sum()
            value = reference.value(agent.critic, GAME, views, actions, alive, i)
            gains.append(-value + 1e-3 * (logits**2).mean())
        np.testing.assert_allclose(goal, goals, rtol=1e-3, atol=1e-4)
        critic_loss, context = jax.jit(learner.critic_loss)(agent.critic, seat, batch, goal)
        np.testing.assert_allclose(critic_loss, np.sum(errors), rtol=1e-3, atol=1e-4)
        policy_loss = loss_of(learner, agent.policy, agent.critic, context, seat, batch, drawn)
        np.testing.assert_allclose(policy_loss, np.sum(gains), rtol=1e-3, atol=1e-4)


@partial(jax.jit, static_argnums=0)
def loss_of(learner, policy, critic, context, seat, batch, noise):
    """Of a policy, as its critic judges it."""
    return learner.policy_loss(policy, partial(critic.reconsider, context), seat, batch, noise)


def one_world(worlds, b):
    return jax.tree.map(lambda x: x[..., b], worlds)


def test_the_dead_carry_no_loss(learner, state, batch):
    nobody = replace(batch.transition.before, alive=jnp.zeros((4, 16), bool))
    batch = batch._replace(transition=batch.transition._replace(before=nobody))
    agent, seat = one(state.agents, 0), one(seats(GAME), 0)
    slope = jax.jit(jax.grad(learner.critic_loss, has_aux=True))
    to_critic, context = slope(agent.critic, seat, batch, jnp.ones(16))
    to_policy = jax.grad(partial(loss_of, learner))(
        agent.policy, agent.critic, context, seat, batch, jnp.zeros((5, 16))
    )
    for slope in jax.tree.leaves((to_critic, to_policy)):
        assert (np.asarray(slope) == 0).all()


def test_the_policy_moves_through_its_own_action_only(learner, state, batch):
    """Other agents' actions in the batch are data, whatever their policies would do."""
    agent, seat = one(state.agents, 1), one(seats(GAME), 1)

    @jax.jit
    @partial(jax.grad, argnums=1)
    def slope(critic, actions):
        changed = batch.transition._replace(step=batch.transition.step._replace(actions=actions))
        changed = batch._replace(transition=changed)
        _, context = learner.critic_loss(critic, seat, changed, jnp.zeros(16))
        noise = jnp.zeros((5, 16))
        return loss_of(learner, agent.policy, critic, context, seat, changed, noise)

    by_action = np.asarray(slope(agent.critic, batch.transition.step.actions))
    assert (by_action[1] == 0).all()  # the own action of the batch is replaced
    assert (by_action[[0, 2, 3]] != 0).any()


def test_an_update_of_one_agent_does_not_depend_on_the_networks_of_another(learner, state):
    """Only through the target policies, whose actions enter the critics' goals."""
    update = jax.jit(learner.update)
    changed = jax.tree.map(
        lambda x: x.at[3].add(0.3),
        (state.agents.policy, state.agents.critic, state.agents.target_critic),
    )
    other = eqx.tree_at(
        lambda s: (s.agents.policy, s.agents.critic, s.agents.target_critic), state, changed
    )
    ours, theirs = (update(s, jax.random.key(9))[0].agents for s in (state, other))
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a[:3], b[:3], atol=1e-6)
    for a, old in zip(*map(jax.tree.leaves, (ours.policy, state.agents.policy)), strict=True):
        assert (np.asarray(a) != np.asarray(old)).any()


def test_targets_follow_slowly(learner, state):
    after = jax.jit(learner.update)(state, jax.random.key(9))[0].agents
    for new, target, old in zip(
        *map(jax.tree.leaves, (after.critic, after.target_critic, state.agents.target_critic)),
        strict=True,
    ):
        np.testing.assert_allclose(target, 0.99 * old + 0.01 * new, atol=1e-6)


def test_weights_that_become_nan_are_kept_out(learner, state):
    poisoned = eqx.tree_at(
        lambda s: s.replay.steps.reward, state, jnp.full_like(state.replay.steps.reward, jnp.nan)
    )
    after, _ = jax.jit(learner.update)(poisoned, jax.random.key(0))
    assert bool(after.diverged)
    for new, old in zip(*map(jax.tree.leaves, (after.agents, state.agents)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_slices_change_nothing_but_rounding(learner, state, batch):
    """The gradients of one agent, of the same draw, cut in different ways."""
    agent, seat, key = one(state.agents, 0), one(seats(GAME), 0), jax.random.key(0)

    def slopes(slices):
        sliced = replace(learner, slices=slices)
        return jax.jit(sliced.gradients)(agent, seat, cut(batch, slices), key)

    ((_, whole), living), ((_, parts), same) = slopes(1), slopes(4)
    assert int(living) == int(same) == int(batch.transition.before.alive[0].sum())
    for a, b in zip(*map(jax.tree.leaves, (whole, parts)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_agents_one_by_one_change_nothing_but_rounding(simple):
    learner, state = simple
    key = jax.random.key(0)
    together = jax.jit(learner.update)(state, key)[0].agents
    in_turn = jax.jit(replace(learner, agents_at_once=1).update)(state, key)[0].agents
    for a, b in zip(*map(jax.tree.leaves, (together, in_turn)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_draw_per_agent_is_an_option(simple):
    """Every agent then learns from transitions of its own."""
    shared, state = simple
    own = replace(shared, hyper=replace(SMALL, draw_per_agent=True))
    key = jax.random.key(5)
    one_draw = jax.jit(shared.update)(state, key)[0].agents.critic
    draws = jax.jit(own.update)(state, key)[0].agents.critic
    differs = [
        (np.asarray(a) != np.asarray(b)).any(tuple(range(1, a.ndim)))
        for a, b in zip(*map(jax.tree.leaves, (one_draw, draws)), strict=True)
    ]
    assert np.any(differs, axis=0).all()


def test_gumbel_softmax_samples_the_softmax():
    logits = jnp.log(jnp.array([0.1, 0.2, 0.3, 0.25, 0.15]))
    noise = jax.random.gumbel(jax.random.key(0), (5, 20000))
    samples = gumbel_softmax(jnp.broadcast_to(logits[:, None], noise.shape), noise)
    np.testing.assert_allclose(samples.sum(0), 1, atol=1e-5)
    chosen = np.bincount(np.asarray(samples.argmax(0)), minlength=5) / 20000
    np.testing.assert_allclose(chosen, np.exp(logits), atol=0.015)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("mlp", "grassland"),
        ("mean-field", "adversarial-battle"),
        pytest.param("attention", "predator-prey", marks=pytest.mark.slow),
    ],
)
def test_every_architecture_trains_in_every_kind_of_game(architecture, name):
    population = {1: "2", 2: "2-1"}[len(games.GAMES[name].roles)]
    learner = MADDPG(games.make(name, population), ARCHITECTURES[architecture], SMALL)
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    state, metrics = jax.jit(learner.advance)(state, 2)
    assert not bool(state.diverged)
    assert all(np.isfinite(x).all() for x in metrics.values())
    changed = [
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(*map(jax.tree.leaves, (agents.policy, state.agents.policy)), strict=True)
    ]
    assert all(changed)
