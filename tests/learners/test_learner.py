"""The contract of learners: what one gets that defines only what is required."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import InputError, games, learners
from epcx.learners import MADDPG, Learner, MADDPGConfig, ShardedLearner
from epcx.learners.learner import state_bytes
from epcx.teams import act_of
from tests.games.ring import Ring

GAME = games.make(Ring, "2-1")


@dataclass(frozen=True)
class BanditConfig:
    step: float = 0.1


class BanditState(eqx.Module):
    agents: jax.Array
    key: jax.Array


@dataclass(frozen=True)
class Bandit(Learner):
    """Agents are logits [agents, actions], which training does not change."""

    game: games.Game
    config: BanditConfig

    name = "bandit"
    Config = BanditConfig

    def init(self, key):
        return jax.random.normal(key, (self.game.num_agents, self.game.num_actions))

    def start(self, key, agents):
        return BanditState(agents, key)

    def advance(self, state, updates):
        zeros = jnp.zeros(self.game.num_agents)
        return state, {"reward": zeros, "shaping": zeros}

    def act(self, key, policies, observation, role=None):
        batch = observation.own.shape[-1]
        one_hot = jax.nn.one_hot(policies.argmax(1), self.game.num_actions)
        return jnp.broadcast_to(one_hot[..., None], (*one_hot.shape, batch))

    def updates(self, episodes):
        return episodes

    def episodes(self, updates):
        return updates


def test_make_uses_the_default_config_of_the_learner():
    assert learners.make(Bandit, GAME) == Bandit(GAME, BanditConfig())
    assert learners.make(Bandit, GAME, BanditConfig(0.5)).config.step == 0.5
    assert learners.make("maddpg", GAME) == MADDPG(GAME, MADDPGConfig())
    assert learners.make("tests.learners.test_learner:Bandit", GAME).name == "bandit"


def test_full_name_is_the_name_of_built_in_learners_and_module_and_class_of_others():
    assert learners.full_name(MADDPG) == "maddpg"
    assert learners.full_name(Bandit) == "tests.learners.test_learner:Bandit"
    assert learners.find(learners.full_name(Bandit)) is Bandit


def test_learner_without_greedy_actions_samples_as_before_and_refuses_them():
    learner = Bandit(GAME, BanditConfig())
    key, agents = jax.random.key(0), learner.init(jax.random.key(0))
    worlds = GAME.reset_batch(jax.random.split(key, 2))
    assert act_of(learner, GAME.roles[0].name)(key, agents[:2], worlds).shape[0] == 2
    with pytest.raises(InputError, match="learner bandit has no greedy actions"):
        act_of(learner, GAME.roles[0].name, greedy=True)


@pytest.mark.parametrize("name", ["maddpg", "mappo"])
def test_greedy_actions_are_among_those_that_a_role_has(name):
    learner = learners.make(name, GAME)
    policies = learner.policies(learner.init(jax.random.key(0)))
    mask = GAME.action_mask
    assert not mask.all()
    # All policies prefer the last action, whatever they see.
    bias = jnp.broadcast_to(jnp.arange(GAME.num_actions) * 100.0, mask.shape)
    policies = eqx.tree_at(lambda p: p.head.layers[-1].bias, policies, bias)
    seen = learner.observe(GAME.reset_batch(jax.random.split(jax.random.key(1), 3)))
    actions = learner.act(jax.random.key(2), policies, seen, greedy=True)
    last = np.eye(GAME.num_actions)[mask.sum(1) - 1]
    np.testing.assert_array_equal(actions, np.repeat(last[..., None], 3, -1))


def test_agents_and_policies_are_all_of_the_agents_by_default():
    learner = Bandit(GAME, BanditConfig())
    agents = learner.init(jax.random.key(0))
    state = learner.start(jax.random.key(1), agents)
    assert learner.agents(state) is agents
    assert learner.policies(agents) is agents
    np.testing.assert_array_equal(learner.with_policies(agents, 2 * agents), 2 * agents)
    assert learner.architecture == "bandit"
    assert learner.any_population


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_diverged_by_default_if_a_weight_is_not_finite(bad):
    learner = Bandit(GAME, BanditConfig())
    state = learner.start(jax.random.key(1), learner.init(jax.random.key(0)))
    assert not learner.diverged(state)
    assert learner.diverged(replace(state, agents=state.agents.at[1, 2].set(bad)))


def test_observe_gives_the_rows_of_a_role():
    worlds = GAME.reset_batch(jax.random.split(jax.random.key(0), 5))
    learner = Bandit(GAME, BanditConfig())
    everybody, catchers = learner.observe(worlds), learner.observe(worlds, "catcher")
    for seen, expected in zip(
        jax.tree.leaves(everybody), jax.tree.leaves(GAME.observe_batch(worlds)), strict=True
    ):
        np.testing.assert_array_equal(seen, expected)
    for rows, seen in zip(jax.tree.leaves(catchers), jax.tree.leaves(everybody), strict=True):
        np.testing.assert_array_equal(rows, seen[2:])


def test_state_bytes_count_the_arrays_of_a_started_match():
    """For learners that know nothing of devices; MADDPG counts its large arrays itself."""
    bandit = Bandit(GAME, BanditConfig())
    assert not isinstance(bandit, ShardedLearner)
    key_bytes = 8
    assert state_bytes(bandit) == 3 * 3 * 4 + key_bytes
    maddpg = MADDPG(GAME, MADDPGConfig(network="mlp", batch_size=8, buffer_size=64, num_envs=4))
    assert isinstance(maddpg, ShardedLearner)
    state = jax.eval_shape(lambda key: maddpg.start(key, maddpg.init(key)), jax.random.key(0))
    kept = jax.tree.leaves((state.agents, state.optimisers, state.buffer))
    assert state_bytes(maddpg) == sum(x.size * x.dtype.itemsize for x in kept)


def test_memory_advice_of_maddpg_is_a_buffer_that_fits():
    learner = MADDPG(GAME, MADDPGConfig(network="mlp", buffer_size=100_000))
    limit = learner.state_bytes() // 2
    advice = learner.memory_advice(limit)
    size = int(advice.removeprefix("--buffer-size ").removesuffix(" or less"))
    assert replace(learner, config=replace(learner.config, buffer_size=size)).state_bytes() <= limit
    assert size > 40_000
    assert learner.memory_advice(1000) is None  # the networks alone take more


@pytest.mark.parametrize("network", ["attention", "mlp"])
def test_maddpg_replaces_policies_and_their_targets(network):
    learner = MADDPG(GAME, MADDPGConfig(network=network))
    agents, others = (learner.init(jax.random.key(seed)) for seed in (0, 1))
    mixed = learner.with_policies(agents, learner.policies(others))
    for part, source in (
        ("policy", others),
        ("target_policy", others),
        ("critic", agents),
        ("target_critic", agents),
    ):
        jax.tree.map(np.testing.assert_array_equal, getattr(mixed, part), getattr(source, part))
    assert learner.architecture == network
    assert learner.any_population == (network == "attention")


def test_updates_before_learning_starts_are_refused():
    learner = MADDPG(GAME, MADDPGConfig(num_envs=4, learning_starts=40, steps_per_update=2))
    assert learner.updates(20) == (20 * GAME.horizon - 40) // 8
    assert learner.episodes(learner.updates(20)) == 20
    with pytest.raises(InputError, match="episodes 5 end before the first update: use at least 12"):
        learner.updates(5)
