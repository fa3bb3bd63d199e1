"""MADDPG: its losses against NumPy, whom an update touches, and that it learns."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.learners import MADDPGConfig
from epcx.learners.maddpg import MADDPG, Batch, split_batch
from epcx.networks.seat import seats
from tests.games.ring import Ring
from tests.networks import reference

SMALL = MADDPGConfig(batch_size=16, buffer_size=400, num_envs=4, learning_starts=100)
GAME = games.make("grassland", "2-2")


@pytest.fixture(scope="module")
def learner():
    return MADDPG(GAME, SMALL)


@pytest.fixture(scope="module")
def state(learner):
    """Ready for the first update; target networks are those of other agents, so they differ."""
    agents = jax.jit(learner.init)(jax.random.key(0))
    others = jax.jit(learner.init)(jax.random.key(1))
    agents = eqx.tree_at(
        lambda a: (a.target_policy, a.target_critic), agents, (others.policy, others.critic)
    )
    return jax.jit(learner.start)(jax.random.key(2), agents)


@pytest.fixture(scope="module")
def batch(learner, state):
    """Some agents are dead before the step, some die in it."""
    drawn = state.buffer.sample(jax.random.key(3), 16)
    alive = jax.random.bernoulli(jax.random.key(4), 0.7, (4, 16))
    dies = jax.random.bernoulli(jax.random.key(5), 0.3, (4, 16))
    transition = drawn._replace(
        before=replace(drawn.before, alive=alive),
        step=drawn.step._replace(done=~alive | dies),
        after=replace(drawn.after, alive=alive & ~dies),
    )
    views = jax.jit(lambda worlds: learner.networks.views(GAME, worlds))
    next_actions = jnp.moveaxis(
        jax.random.dirichlet(jax.random.key(6), jnp.ones(5), (4, 16)), -1, 0
    )
    return Batch(
        transition,
        views(transition.before),
        views(transition.after),
        alive,
        alive & ~dies,
        next_actions,
    )


@pytest.fixture(scope="module")
def mean_field():
    """A learner whose networks compile faster, and its state before the first update."""
    learner = MADDPG(GAME, replace(SMALL, network="mean-field"))
    agents = jax.jit(learner.init)(jax.random.key(0))
    return learner, jax.jit(learner.start)(jax.random.key(2), agents)


def one(tree, i):
    return jax.tree.map(lambda x: jnp.asarray(x)[i], tree)


def test_start_fills_the_buffer_until_learning_starts(state):
    assert int(state.buffer.time) * SMALL.num_envs == SMALL.learning_starts
    sums = np.asarray(state.buffer.steps.actions).sum(-1)  # [rounds, horizon, envs, agents]
    np.testing.assert_allclose(sums[0], 1, atol=1e-5)  # 100 samples are one episode of 4 worlds
    assert (sums[1:] == 0).all()


def test_losses_equal_the_equations_in_numpy(learner, state, batch):
    """Sums over the batch, which the update divides by the number of living samples."""
    key = jax.random.key(7)
    transition = batch.transition
    worlds = [one_world(transition.before, b) for b in range(16)]
    later = [one_world(transition.after, b) for b in range(16)]
    observe = jax.jit(GAME.observe)
    drawn = jax.random.gumbel(key, (5, 16))
    noise = np.asarray(drawn, float)
    for i in range(4):
        agent, seat = one(state.agents, i), one(seats(GAME), i)
        target = jax.jit(learner.td_target)(agent, seat, batch)
        targets, critic_terms, policy_terms = [], [], []
        for b in range(16):
            views, next_views = observe(worlds[b]), observe(later[b])
            future = reference.value(
                agent.target_critic, GAME, next_views, batch.next_actions[:, :, b].T,
                later[b].alive, i,
            )  # fmt: skip
            done = bool(transition.step.done[i, b])
            targets.append(float(transition.step.reward[i, b]) + (0 if done else 0.95 * future))
            if not worlds[b].alive[i]:
                continue
            actions = np.array(transition.step.actions[..., b], float)
            alive = worlds[b].alive
            value = reference.value(agent.critic, GAME, views, actions, alive, i)
            critic_terms.append((value - targets[b]) ** 2)
            logits = reference.logits(agent.policy, views, i)
            soft = np.exp(logits + noise[:, b])
            actions[i] = soft / soft.sum()
            value = reference.value(agent.critic, GAME, views, actions, alive, i)
            policy_terms.append(-value + 1e-3 * (logits**2).mean())
        np.testing.assert_allclose(target, targets, rtol=1e-3, atol=1e-4)
        critic_loss, context = jax.jit(learner.critic_loss)(agent.critic, seat, batch, target)
        np.testing.assert_allclose(critic_loss, np.sum(critic_terms), rtol=1e-3, atol=1e-4)
        policy_loss = policy_loss_of(
            learner, agent.policy, agent.critic, context, seat, batch, drawn
        )
        np.testing.assert_allclose(policy_loss, np.sum(policy_terms), rtol=1e-3, atol=1e-4)


@partial(jax.jit, static_argnums=0)
def policy_loss_of(learner, policy, critic, context, seat, batch, noise):
    """The loss of a policy, given its critic and what that has encoded."""
    return learner.policy_loss(policy, partial(critic.q_value_of, context), seat, batch, noise)


def one_world(worlds, b):
    return jax.tree.map(lambda x: x[..., b], worlds)


def test_losses_of_dead_agents_have_zero_gradient(learner, state, batch):
    batch = batch._replace(alive=jnp.zeros((4, 16), bool))
    agent, seat = one(state.agents, 0), one(seats(GAME), 0)
    grad = jax.jit(jax.grad(learner.critic_loss, has_aux=True))
    grad_critic, context = grad(agent.critic, seat, batch, jnp.ones(16))
    grad_policy = jax.grad(partial(policy_loss_of, learner))(
        agent.policy, agent.critic, context, seat, batch, jnp.zeros((5, 16))
    )
    for grad in jax.tree.leaves((grad_critic, grad_policy)):
        assert (np.asarray(grad) == 0).all()


def test_policy_loss_replaces_only_the_own_action_of_the_batch(learner, state, batch):
    """The actions of the other agents are those of the batch."""
    agent, seat = one(state.agents, 1), one(seats(GAME), 1)

    @jax.jit
    @partial(jax.grad, argnums=1)
    def grad(critic, actions):
        changed = batch.transition._replace(step=batch.transition.step._replace(actions=actions))
        changed = batch._replace(transition=changed)
        _, context = learner.critic_loss(critic, seat, changed, jnp.zeros(16))
        noise = jnp.zeros((5, 16))
        return policy_loss_of(learner, agent.policy, critic, context, seat, changed, noise)

    by_action = np.asarray(grad(agent.critic, batch.transition.step.actions))
    assert (by_action[1] == 0).all()
    assert (by_action[[0, 2, 3]] != 0).any()


def test_update_of_an_agent_does_not_depend_on_the_networks_of_others(learner, state):
    """But for their target policies, whose actions are part of the critics' targets."""
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


def test_target_networks_follow_at_rate_tau(learner, state):
    after = jax.jit(learner.update)(state, jax.random.key(9))[0].agents
    for new, target, old in zip(
        *map(jax.tree.leaves, (after.critic, after.target_critic, state.agents.target_critic)),
        strict=True,
    ):
        np.testing.assert_allclose(target, 0.99 * old + 0.01 * new, atol=1e-6)


def test_non_finite_gradients_set_diverged_and_leave_agents_unchanged(learner, state):
    poisoned = eqx.tree_at(
        lambda s: s.buffer.steps.reward, state, jnp.full_like(state.buffer.steps.reward, jnp.nan)
    )
    after, _ = jax.jit(learner.update)(poisoned, jax.random.key(0))
    assert bool(after.diverged)
    for new, old in zip(*map(jax.tree.leaves, (after.agents, state.agents)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_gradients_do_not_depend_on_the_number_of_slices(learner, state, batch):
    """Up to rounding."""
    agent, seat, key = one(state.agents, 0), one(seats(GAME), 0), jax.random.key(0)

    def grads(slices):
        gradients = replace(learner, slices=slices).gradients
        return jax.jit(gradients)(agent, seat, split_batch(batch, slices), key)

    ((_, whole), living), ((_, sliced), same) = grads(1), grads(4)
    assert int(living) == int(same) == int(batch.alive[0].sum())
    for a, b in zip(*map(jax.tree.leaves, (whole, sliced)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_update_does_not_depend_on_agents_at_once(mean_field):
    learner, state = mean_field
    key = jax.random.key(0)
    together = jax.jit(learner.update)(state, key)[0].agents
    in_turn = jax.jit(replace(learner, agents_at_once=1).update)(state, key)[0].agents
    for a, b in zip(*map(jax.tree.leaves, (together, in_turn)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_batch_per_agent_changes_the_update_of_every_agent(mean_field):
    shared, state = mean_field
    own = replace(shared, config=replace(shared.config, batch_per_agent=True))
    key = jax.random.key(5)
    one_batch = jax.jit(shared.update)(state, key)[0].agents.critic
    own_batches = jax.jit(own.update)(state, key)[0].agents.critic
    differs = [
        (np.asarray(a) != np.asarray(b)).any(tuple(range(1, a.ndim)))
        for a, b in zip(*map(jax.tree.leaves, (one_batch, own_batches)), strict=True)
    ]
    assert np.any(differs, axis=0).all()


def test_sample_in_slices_equals_the_whole_sample(mean_field):
    learner, state = mean_field
    key = jax.random.key(5)
    batch = jax.jit(learner.sample)(state, key)
    again = jax.jit(replace(learner, slices=4).sample)(state, key)
    assert batch.alive.shape == (1, 4, 16)
    assert again.alive.shape == (4, 4, 4)
    for whole, sliced in zip(*map(jax.tree.leaves, (batch, again)), strict=True):
        joined = jnp.moveaxis(sliced, 0, -2).reshape(whole.shape[1:])
        np.testing.assert_allclose(joined, whole[0], atol=1e-6)


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("mlp", "grassland"),
        ("mean-field", "adversarial-battle"),
        pytest.param("attention", "predator-prey", marks=pytest.mark.slow),
    ],
)
def test_all_networks_train_in_particle_games(network, name):
    learner = MADDPG(games.make(name, "2-1"), replace(SMALL, network=network))
    train_two_updates(learner)


def test_annealed_learning_rate_falls_to_zero_over_a_stage():
    """With gradients that are all the same, Adam's steps are as large as its learning rate."""
    game = games.make("food-collection", "1")
    constant = MADDPG(game, MADDPGConfig(learning_rate=0.1))
    annealed = MADDPG(game, MADDPGConfig(learning_rate=0.1, anneal=True)).with_updates(4)
    for learner, rates in (
        (constant, [0.1] * 5),
        (constant.with_updates(4), [0.1] * 5),
        (annealed, [0.1, 0.075, 0.05, 0.025, 0.0]),
    ):
        optimiser, steps = learner.optimiser, []
        state = optimiser.init(jnp.zeros(()))
        for _ in rates:
            step, state = optimiser.update(jnp.asarray(0.3), state)
            steps.append(-float(step))
        np.testing.assert_allclose(steps, rates, atol=1e-6)


@pytest.mark.parametrize("clip_per", ["network", "variable"])
def test_gradients_are_clipped_per_network_or_per_variable(clip_per):
    """Two steps of Adam from the equations, with gradients of which one is large, one small."""
    config = replace(SMALL, clip_per=clip_per, learning_rate=0.1)
    optimiser = MADDPG(GAME, config).optimiser
    steps = [{"w": np.array([3.0, 4.0]), "b": np.array([0.3])}, {"w": np.zeros(2), "b": np.ones(1)}]
    first, second = ({k: np.zeros_like(v) for k, v in steps[0].items()} for _ in range(2))
    state = optimiser.init(first)
    for number, gradient in enumerate(steps, 1):
        norms = {k: np.sqrt((v**2).sum()) for k, v in gradient.items()}
        if clip_per == "network":
            norms = dict.fromkeys(norms, np.sqrt(sum(norm**2 for norm in norms.values())))
        clipped = {k: v * min(1, 0.5 / max(norms[k], 1e-9)) for k, v in gradient.items()}
        first = {k: 0.9 * first[k] + 0.1 * v for k, v in clipped.items()}
        second = {k: 0.999 * second[k] + 0.001 * v**2 for k, v in clipped.items()}
        updates, state = optimiser.update(jax.tree.map(jnp.asarray, gradient), state)
        for k in gradient:
            mean, square = first[k] / (1 - 0.9**number), second[k] / (1 - 0.999**number)
            expected = -0.1 * mean / (np.sqrt(square) + 1e-8)
            np.testing.assert_allclose(updates[k], expected, rtol=1e-4)


def train_two_updates(learner):
    """State and metrics of fresh agents after two updates, which change all policies."""
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    state, metrics = jax.jit(learner.advance)(state, 2)
    assert not bool(state.diverged)
    assert all(x.shape == (learner.game.num_agents,) for x in metrics.values())
    assert all(np.isfinite(x).all() for x in metrics.values())
    changed = [
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(*map(jax.tree.leaves, (agents.policy, state.agents.policy)), strict=True)
    ]
    assert all(changed)
    return state, metrics


@pytest.fixture(scope="module")
def trained_ring():
    """A game outside the package, whose roles have different numbers of actions, trained.

    The game; then, of all played steps [steps, envs, ...], the actions, the rewards with shaping
    and the light before them; then the metrics of the last four of these steps.
    """
    config = MADDPGConfig(
        batch_size=8,
        buffer_size=64,
        num_envs=4,
        learning_starts=32,
        steps_per_update=2,
    )
    game = games.make(Ring, "2-1")
    state, metrics = train_two_updates(MADDPG(game, config))
    assert int(state.buffer.time) == 8 + 2 * 2
    stored = state.buffer.steps.actions, state.buffer.steps.reward, state.buffer.worlds["lit"]
    played = [  # a round has one world more than steps
        np.asarray(x)[:, : game.horizon].reshape(-1, *x.shape[2:])[:12] for x in stored
    ]
    return game, *played, metrics


def test_discrete_game_is_played_with_one_hot_available_actions(trained_ring):
    game, actions, *_ = trained_ring
    assert (actions[..., ~game.action_mask] == 0).all()
    np.testing.assert_array_equal((actions == 1).sum(-1), 1)
    np.testing.assert_array_equal((actions == 0).sum(-1), 2)
    assert (actions[..., game.action_mask].sum((0, 1)) > 0).all()  # all that are available occur


def test_metrics_are_means_per_episode_of_reward_and_shaping(trained_ring):
    """In this game the shaping is -0.1 in each step that begins in the light."""
    game, _, rewards, lit, metrics = trained_ring
    shaping = -0.1 * lit[-4:, :, None]
    assert 0 < lit[-4:].sum() < lit[-4:].size
    per_episode = np.full(3, shaping.mean() * game.horizon)
    np.testing.assert_allclose(metrics["shaping"], per_episode, rtol=1e-5)
    per_episode = (rewards[-4:] - shaping).mean((0, 1)) * game.horizon
    np.testing.assert_allclose(metrics["reward"], per_episode, atol=1e-5)
    assert np.abs(per_episode).max() > 0


def test_discrete_game_is_learned_with_one_hot_available_actions():
    """Those of the target policies in a sample, and those of the policy in its loss."""
    config = MADDPGConfig(network="mlp", batch_size=64, num_envs=4, learning_starts=4)
    game = games.make(Ring, "2-1")
    learner = MADDPG(game, replace(config, buffer_size=64))
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    batch = one(jax.jit(learner.sample)(state, jax.random.key(2)), 0)
    actions = np.asarray(batch.next_actions)  # [actions, agents, batch]
    np.testing.assert_array_equal((actions == 1).sum(0), 1)
    np.testing.assert_array_equal((actions == 0).sum(0), 2)
    np.testing.assert_array_equal(actions.any(-1), game.action_mask.T)

    noise = jnp.zeros((3, 64)).at[2].set(1e3)  # for the last action, which catchers do not have
    chosen = []
    for i in range(3):

        def q_value_of(action):
            chosen.append(np.asarray(action))
            return action.sum(0)

        learner.policy_loss(one(agents.policy, i), q_value_of, one(seats(game), i), batch, noise)
    for i in (0, 1):
        np.testing.assert_array_equal(chosen[i], np.eye(3)[2][:, None] * np.ones(64))
    np.testing.assert_array_equal(chosen[2].sum(0), 1)
    np.testing.assert_array_equal(chosen[2][2], 0)
    assert ((chosen[2] == 0) | (chosen[2] == 1)).all()


@pytest.mark.parametrize("role", [None, "runner", "catcher"])
def test_act_gives_one_hot_actions_of_a_role(role):
    game = games.make(Ring, "2-1")
    learner = MADDPG(game, replace(SMALL, network="mlp"))
    agents = jax.jit(learner.init)(jax.random.key(0))
    members = slice(None) if role is None else game.members[role]
    policies = jax.tree.map(lambda x: x[members], learner.policies(agents))
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 50))
    views = learner.observe(worlds, role)
    actions = np.asarray(learner.act(jax.random.key(2), policies, views, role))
    mask = game.action_mask[members]
    assert actions.shape == (*mask.shape, 50)
    np.testing.assert_array_equal((actions == 1).sum(1), 1)
    np.testing.assert_array_equal((actions == 0).sum(1), 2)
    np.testing.assert_array_equal(actions.any(-1), mask)
