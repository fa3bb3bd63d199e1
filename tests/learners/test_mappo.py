"""MAPPO and IPPO: advantages and losses against NumPy, who is left out, and that they learn."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, learners
from epcx.errors import InputError
from epcx.learners import IPPO, MAPPO, MAPPOConfig
from epcx.learners.mappo import Batch, Moments, gae, join_steps, normalised
from epcx.networks.seat import seats
from tests.games.ring import Ring
from tests.networks import reference

SMALL = MAPPOConfig(learning_rate=5e-4, num_envs=3, epochs=2, minibatches=2)
GAME = games.make("grassland", "2-2")
LEARNERS = {cls.name: cls(GAME, SMALL) for cls in (MAPPO, IPPO)}


def one(tree, i):
    return jax.tree.map(lambda x: jnp.asarray(x)[i], tree)


@pytest.fixture(scope="module")
def played():
    """Agents of MAPPO, and the steps of three worlds in which some agents are dead."""
    learner = LEARNERS["mappo"]
    agents = jax.jit(learner.init)(jax.random.key(0))
    samples, last, _ = jax.jit(learner.play)(agents, jax.random.key(1))
    alive = jax.random.bernoulli(jax.random.key(2), 0.7, samples.alive.shape)
    worlds = eqx.tree_at(lambda w: w.alive, samples.worlds, alive)
    return agents, samples._replace(alive=alive, learns=alive, worlds=worlds), last


@pytest.fixture(scope="module")
def batch(played):
    agents, samples, last = played
    return jax.jit(LEARNERS["mappo"].prepare)(agents, samples, last)[1]


def test_advantages_equal_a_loop_in_numpy():
    """Sums of (gamma lambda)^k delta_(t+k), up to the step in which an agent is done."""
    rng = np.random.default_rng(0)
    reward, values = rng.normal(size=(2, 7, 3, 4))
    final, done = rng.normal(size=(3, 4)), rng.random((7, 3, 4)) < 0.2
    found = gae(*map(jnp.asarray, (reward, values, final, done)), 0.9, 0.8)
    for agent in range(3):
        for world in range(4):
            for t in range(7):
                expected, weight = 0.0, 1.0
                for k in range(t, 7):
                    after = values[k + 1, agent, world] if k < 6 else final[agent, world]
                    ends = done[k, agent, world]
                    delta = reward[k, agent, world] - values[k, agent, world]
                    expected += weight * (delta + (0 if ends else 0.9 * after))
                    if ends:
                        break
                    weight *= 0.9 * 0.8
                np.testing.assert_allclose(found[t, agent, world], expected, rtol=1e-4, atol=1e-5)


def test_agents_learn_from_difference_rewards_and_shaping_but_report_rewards():
    game = games.make("food-collection", "3")
    learner = MAPPO(game, replace(SMALL, difference_rewards=True))
    agents = jax.jit(learner.init)(jax.random.key(0))
    samples, last, rewards = jax.jit(learner.play)(agents, jax.random.key(1))
    worlds = jax.tree.map(lambda x, y: jnp.concatenate([x[1:], y[None]]), samples.worlds, last)
    expected = [
        game.resolve(one(samples.worlds, t), worlds.position[t]) for t in range(game.horizon)
    ]
    np.testing.assert_allclose(
        samples.reward, np.stack([x.difference + x.shaping for x in expected]), atol=1e-4
    )
    np.testing.assert_allclose(
        rewards["reward"], sum(x.reward.mean(-1) for x in expected), rtol=1e-4, atol=1e-4
    )


def test_scripts_play_one_role_in_their_share_of_the_worlds_and_are_not_learnt_from():
    """Worlds 0 and 2 have scripted sheep, world 1 scripted wolves, and in the other three policies
    play both. Movements are those of the game with these actions, which has no chance in them."""
    learner = MAPPO(GAME, replace(SMALL, num_envs=6, scripted_opponents=0.5))
    agents = jax.jit(learner.init)(jax.random.key(0))
    samples, last, rewards = jax.jit(learner.play)(agents, jax.random.key(1))
    scripted = np.zeros((GAME.num_agents, 6), bool)
    scripted[GAME.members["sheep"], [[0], [2]]] = True
    scripted[GAME.members["wolf"], 1] = True
    np.testing.assert_array_equal(samples.learns, samples.alive & ~scripted)

    def step(world, actions, scripted):
        mixed = jnp.where(scripted[:, None], GAME.scripted(jax.random.key(0), world), actions)
        after, outcome = GAME.step(jax.random.key(0), world, mixed)
        return after.position, outcome.reward

    over_worlds = jax.vmap(step, (-1, -1, -1), -1)
    per_step = jax.vmap(over_worlds, (0, 0, None))
    position, reward = per_step(samples.worlds, samples.actions.swapaxes(1, 2), scripted)
    expected = jnp.concatenate([samples.worlds.position[1:], last.position[None]])
    np.testing.assert_allclose(position, expected, atol=1e-5)
    for agent in range(GAME.num_agents):
        played = np.asarray(reward)[:, agent, ~scripted[agent]]
        np.testing.assert_allclose(rewards["reward"][agent], played.mean(1).sum(), rtol=1e-4)


def test_scripted_opponents_need_a_script_and_opponents():
    config = replace(SMALL, scripted_opponents=0.5)
    with pytest.raises(InputError, match=r"scripted-opponents 0.5 do not go with ring"):
        MAPPO(games.make(Ring, "2-1"), config)
    assert not MAPPO(games.make("food-collection", "3"), config).scripted_seats.any()


def test_minibatches_need_a_step_each():
    config = replace(SMALL, num_envs=4, minibatches=101)
    with pytest.raises(InputError, match=r"minibatches 101 are more than the 100 steps of an"):
        MAPPO(games.make("food-collection", "3"), config)


def test_advantages_are_normalised_over_the_living(played):
    alive = np.asarray(played[1].alive)
    raw = np.random.default_rng(0).normal(3, 5, alive.shape)
    found = np.asarray(normalised(jnp.asarray(raw), jnp.asarray(alive)))
    for agent in range(4):
        mine = raw[:, agent][alive[:, agent]]
        expected = (mine - mine.mean()) / mine.std()
        np.testing.assert_allclose(found[:, agent][alive[:, agent]], expected, rtol=1e-3)


def test_scale_of_returns_is_that_of_what_was_seen():
    rng = np.random.default_rng(0)
    moments, seen = Moments.none(), []
    assert [float(x) for x in moments.location_and_scale()] == [0.0, 1.0]
    for _ in range(4):
        values, mask = rng.normal(50, 7, 2000), rng.random(2000) < 0.5
        seen.append(values[mask])
        moments = moments.add(jnp.asarray(values), jnp.asarray(mask))
    found = [float(x) for x in moments.location_and_scale()]
    np.testing.assert_allclose(found, [np.mean(np.concatenate(seen)), 7], rtol=0.05)
    unseen = moments.add(jnp.full(3, 1e6), jnp.zeros(3, bool))
    assert unseen.location_and_scale() == moments.location_and_scale()


def value_in_numpy(critic, view, alive, agent):
    """V of one agent: equation 3 without actions."""

    def f(j):
        encoded = reference.encode(critic.encoder, view, j)
        return reference.relu(reference.dense(critic.combine, encoded))

    role = np.repeat(np.arange(2), GAME.population.counts)
    embedded = [f(j) for j in range(GAME.num_agents)]
    parts = [reference.relu(reference.dense(critic.own, embedded[agent]))]
    for same in (True, False):
        members = [
            embedded[j]
            for j in range(GAME.num_agents)
            if alive[j] and j != agent and (role[j] == role[agent]) == same
        ]
        keys = [reference.dense(critic.key, x) for x in members]
        query = reference.dense(critic.query, embedded[agent])
        parts.append(reference.layer_norm(reference.attention(query, keys, members)))
    return reference.mlp(critic.value, np.concatenate(parts), reference.leaky_relu)[0]


def test_losses_equal_the_equations_in_numpy(played, batch):
    """With another policy than the one that has played, so that ratios are not 1."""
    learner = LEARNERS["mappo"]
    others = jax.jit(learner.init)(jax.random.key(5))
    views = jax.jit(lambda worlds: learner.networks.views(GAME, worlds))(batch.samples.worlds)
    observe = jax.jit(GAME.observe)
    size = batch.advantage.shape[-1]
    chosen = range(0, size, 4)
    ratios = []
    for i in (0, 3):
        agent, seat = one(others, i), one(seats(GAME), i)
        gains, entropies, errors = [], [], []
        for b in chosen:
            world = jax.tree.map(lambda x, b=b: x[..., b], batch.samples.worlds)
            if not world.alive[i]:
                continue
            seen = observe(world)
            logits = reference.logits(agent.policy, seen, i)
            log_probs = logits - np.log(np.exp(logits).sum())
            taken = np.asarray(batch.samples.actions[:, i, b]).argmax()
            ratio = np.exp(log_probs[taken] - batch.samples.log_prob[i, b])
            advantage = float(batch.advantage[i, b])
            ratios.append(ratio)
            gains.append(min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage))
            entropies.append(-(np.exp(log_probs) * log_probs).sum())
            value = value_in_numpy(agent.critic, seen, world.alive, i)
            errors.append((value - float(batch.target[i, b])) ** 2 / 2)
        some = jax.tree.map(lambda x: x[..., np.array(chosen)], (batch, views))
        loss, entropy = jax.jit(learner.policy_loss)(agent.policy, seat, *some)
        expected = -np.mean(gains) - 0.01 * np.mean(entropies)
        np.testing.assert_allclose([loss, entropy], [expected, np.mean(entropies)], rtol=1e-3)
        critic_loss = jax.jit(learner.critic_loss)(agent.critic, seat, *some)
        np.testing.assert_allclose(critic_loss, np.mean(errors), rtol=1e-3)
    clipped = [ratio for ratio in ratios if not 0.8 <= ratio <= 1.2]
    assert 0 < len(clipped) < len(ratios)


def test_without_clipping_the_first_step_is_the_policy_gradient(played):
    agents, *_ = played
    learner = MAPPO(GAME, replace(SMALL, clip=1e6, entropy=0.0))
    samples, last, _ = jax.jit(learner.play)(agents, jax.random.key(1))
    _, batch = jax.jit(learner.prepare)(agents, samples, last)
    views = learner.networks.views(GAME, batch.samples.worlds)
    agent, seat = one(agents, 1), one(seats(GAME), 1)

    def objective(policy):
        log_probs = jax.nn.log_softmax(policy(jax.tree.map(seat.mine, views)), 0)
        taken = (log_probs * seat.mine(batch.samples.actions)).sum(0)
        alive = batch.samples.alive[1]
        return -(taken * batch.advantage[1] * alive).sum() / alive.sum()

    loss = lambda policy: learner.policy_loss(policy, seat, batch, views)[0]  # noqa: E731
    found, expected = (jax.jit(jax.grad(f))(agent.policy) for f in (loss, objective))
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_dead_agents_learn_nothing(played, batch):
    agents, *_ = played
    learner = LEARNERS["mappo"]
    nobody = jnp.zeros_like(batch.samples.alive)
    dead = batch._replace(samples=batch.samples._replace(alive=nobody, learns=nobody))
    losses, grads = jax.jit(learner.gradients)(agents, dead)
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves((losses, grads)))


@pytest.mark.parametrize("name", LEARNERS)
def test_values_do_not_depend_on_the_order_of_others_nor_on_the_dead(played, name):
    """Agents 0 and 1 are sheep, 2 and 3 wolves: wolves change places, and a dead one moves."""
    _, samples, _ = played
    learner = LEARNERS[name]
    agents = jax.jit(learner.init)(jax.random.key(0))
    world = jax.tree.map(lambda x: x[0], samples.worlds)
    value = jax.jit(learner.values)
    alive = jnp.ones((4, 3), bool).at[1].set(False)
    world = replace(world, alive=alive)
    expected = value(agents, world)
    order = np.array([0, 1, 3, 2])
    swapped = replace(
        world,
        position=world.position[order],
        velocity=world.velocity[order],
        alive=world.alive[order],
    )
    np.testing.assert_allclose(value(agents, swapped)[0], expected[0], rtol=1e-4, atol=1e-5)
    moved = replace(world, position=world.position.at[1].add(0.3))
    np.testing.assert_allclose(
        np.asarray(value(agents, moved))[[0, 2, 3]], np.asarray(expected)[[0, 2, 3]], atol=1e-5
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_relational_values_equal_the_equations(played, name):
    _, samples, _ = played
    learner = replace(LEARNERS[name], config=replace(SMALL, network="relational"))
    agents = jax.jit(learner.init)(jax.random.key(0))
    worlds = jax.tree.map(lambda x: x[0], samples.worlds)
    worlds = replace(worlds, alive=jnp.ones((4, 3), bool).at[1, 0].set(False))
    values = jax.jit(learner.values)(agents, worlds)
    world = jax.tree.map(lambda x: x[..., 0], worlds)
    view = GAME.observe(world)
    for i in np.flatnonzero(world.alive):
        critic = jax.tree.map(lambda x: np.asarray(x)[i], agents.critic)  # noqa: B023
        if name == "ippo":
            (expected,) = reference.relational_logits(critic.network, view, i)
        else:
            expected = reference.relational_value(critic, GAME, view, None, world.alive, i)
        np.testing.assert_allclose(values[i, 0], expected, rtol=1e-3, atol=1e-4)


def test_critic_of_ippo_sees_only_what_its_agent_sees(played):
    """And that of MAPPO sees what others see: a wolf's own velocity changes a sheep's value."""
    _, samples, _ = played
    world = jax.tree.map(lambda x: x[0], samples.worlds)
    world = replace(world, alive=jnp.ones((4, 3), bool))
    moved = replace(world, velocity=world.velocity.at[3].add(0.5))
    changed = {}
    for name, learner in LEARNERS.items():
        agents = jax.jit(learner.init)(jax.random.key(0))
        before, after = (jax.jit(learner.values)(agents, x)[0] for x in (world, moved))
        changed[name] = not np.allclose(before, after)
    seen = [np.allclose(*(GAME.observe_batch(x).own[0] for x in (world, moved)))]
    assert all(seen)
    assert changed["mappo"]


def test_agents_in_turn_learn_as_together(played, batch):
    agents, *_ = played
    together = jax.jit(LEARNERS["mappo"].gradients)(agents, batch)
    in_turn = jax.jit(replace(LEARNERS["mappo"], agents_at_once=1).gradients)(agents, batch)
    for a, b in zip(*map(jax.tree.leaves, (together, in_turn)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_learning_rate_falls_to_zero_over_a_stage():
    learner = LEARNERS["mappo"].with_updates(10)
    rates = [float(learner.learning_rate(jnp.asarray(n))) for n in (0, 5, 10)]
    np.testing.assert_allclose(rates, [5e-4, 2.5e-4, 0], rtol=1e-6)
    constant = replace(learner, config=replace(SMALL, anneal=False))
    assert float(constant.learning_rate(jnp.asarray(9))) == pytest.approx(5e-4)


def test_weights_that_are_not_finite_set_diverged_and_leave_agents_unchanged():
    learner = LEARNERS["ippo"]
    agents = jax.jit(learner.init)(jax.random.key(0))
    poisoned = eqx.tree_at(lambda a: a.returns.square, agents, jnp.full(4, jnp.nan))
    state = jax.jit(learner.start)(jax.random.key(1), poisoned)
    after, _ = jax.jit(learner.advance)(state, 1)
    assert bool(after.diverged)
    for new, old in zip(*map(jax.tree.leaves, (after.agents, poisoned)), strict=True):
        np.testing.assert_array_equal(new, old)


def test_worlds_without_food_are_learnt_from():
    learner = MAPPO(games.make("predator-prey", "2-1"), SMALL)
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    after, metrics = jax.jit(learner.advance)(state, 1)
    assert not bool(after.diverged)
    assert np.isfinite(metrics["critic_loss"]).all()


def test_roles_with_fewer_actions_never_take_others():
    """In a game outside the package, whose catchers have two of three actions."""
    learner = MAPPO(games.make(Ring, "2-1"), SMALL)
    agents = jax.jit(learner.init)(jax.random.key(0))
    samples, *_ = jax.jit(learner.play)(agents, jax.random.key(1))
    actions = np.asarray(samples.actions)  # [steps, actions, agents, batch]
    assert (actions[:, 2, 2] == 0).all()
    np.testing.assert_array_equal(actions.sum(1), 1)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("mappo", "attention"),
        pytest.param("mappo", "relational", marks=pytest.mark.slow),
        ("ippo", "mlp"),
    ],
)
def test_one_collector_learns_to_stand_on_its_food(name, network):
    game = games.make("food-collection", "1")
    config = MAPPOConfig(network, learning_rate=0.003, num_envs=32)
    learner = learners.make(name, game, config).with_updates(60)
    agents = jax.jit(learner.init)(jax.random.key(0))
    state = jax.jit(learner.start)(jax.random.key(1), agents)
    advance = jax.jit(learner.advance)
    state, before = advance(state, 5)
    state, _ = advance(state, 50)
    _, after = advance(state, 5)
    assert float(before["reward"][0]) < 30 < 60 < float(after["reward"][0])


def test_episodes_that_end_before_the_first_update_are_refused():
    with pytest.raises(InputError, match="episodes 2 end before the first update: use at least 3"):
        LEARNERS["mappo"].updates(2)
    assert LEARNERS["mappo"].updates(10) == 3
    assert LEARNERS["mappo"].episodes(3) == 9


def test_joined_steps_keep_what_belongs_together():
    x = jnp.arange(24).reshape(2, 3, 4)  # steps, agents, batch
    joined = np.asarray(join_steps(x))
    np.testing.assert_array_equal(joined[1], [4, 5, 6, 7, 16, 17, 18, 19])
    assert Batch._fields == ("samples", "advantage", "target")
