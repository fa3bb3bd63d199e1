"""MADDPG: decentralised policies and centralised critics (equations 1 and 2 of the paper).

Everything is written for one match; execution vmaps it over many. The batch is the last axis.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from epcx.games import Game, World
from epcx.learners.batching import split_batch, vmap_or_map
from epcx.learners.learner import SHARD, tree_bytes
from epcx.learners.maddpg_config import MATD3_PRESETS, PRESETS, MADDPGConfig, MATD3Config
from epcx.learners.network_learner import NetworkLearner
from epcx.learners.replay_buffer import (
    ReplayBuffer,
    Step,
    Transition,
    buffer_bytes,
    buffer_rounds,
    rows_between,
)
from epcx.learners.rollout import (
    StepNoise,
    available_actions,
    gumbel_softmax,
    sample_actions,
    step_worlds,
)
from epcx.networks.agent import Agent
from epcx.networks.kernels import precision
from epcx.networks.seat import Seat, seats

CACHE_BYTES = 2**21  # of the widest layer at a time: about a core's second-level cache
MIN_SHARD_BYTES = 2**19  # of the widest layer, for another device to be worth its while
MAX_NOISE = 2.5  # deviations of the noise on target policies, at most
LAYERS_ALIVE = 24  # as many such layers are in a GPU's memory at once, at most


class State(eqx.Module):
    """All that training needs to go on."""

    agents: Agent  # stacked over all seats
    optimisers: PyTree  # of the policies and of the critics
    buffer: ReplayBuffer
    worlds: World  # batch last
    key: Key[Array, ""]
    diverged: Bool[Array, ""]  # a gradient was not finite: training has stopped


class Batch(NamedTuple):
    """A slice of a sample from the buffer, with what agents see and who is alive."""

    transition: Transition
    views: PyTree  # features first
    next_views: PyTree
    alive: Bool[Array, "agents batch"]
    next_alive: Bool[Array, "agents batch"]
    next_actions: Float[Array, "actions agents batch"]  # of the target policies


class Losses(NamedTuple):
    """Of one agent."""

    critic: Float[Array, "*agents"]
    policy: Float[Array, "*agents"]


@dataclass(frozen=True)
class MADDPG(NetworkLearner):
    """The learner of one game, with the networks that its config names.

    `slices` and `agents_at_once` lay an update out in time: gradients are accumulated over slices
    of the batch, for some agents in parallel. `shards` is the number of devices that share the
    match: all of them play the same, and each keeps a shard of the buffer and of every batch.
    The three change speed and memory only. `total` is the number of updates over which the learning
    rate falls.
    """

    game: Game
    config: MADDPGConfig = field(default_factory=MADDPGConfig)
    slices: int = 1
    agents_at_once: int | None = None
    shards: int = 1
    total: int | None = None

    name = "maddpg"
    Config = MADDPGConfig
    presets: ClassVar[Mapping[str, MADDPGConfig]] = PRESETS

    # The contract

    def init(self, key: Key[Array, ""]) -> Agent:
        return self.networks.agents(key, self.game, self.config.twin_critics)

    def start(self, key: Key[Array, ""], agents: Agent) -> State:
        """Fresh optimisers, and a buffer filled by playing until the first update is due."""
        config = self.config
        reset, warmup, rest = jax.random.split(key, 3)
        state = State(
            agents=agents,
            optimisers=self.optimisers(agents),
            buffer=ReplayBuffer.empty(self.game, config.num_envs, config.buffer_size, self.shards),
            worlds=self.game.reset_batch(jax.random.split(reset, config.num_envs)),
            key=rest,
            diverged=jnp.zeros((), bool),
        )

        def step(i: Int[Array, ""], state: State) -> State:
            noise = self.step_noise(jax.random.fold_in(warmup, i), 1)
            return self.play(state, jax.tree.map(lambda x: x[0], noise))[0]

        with precision(config.precision):
            return jax.lax.fori_loop(0, config.warmup_steps, step, state)

    def advance(
        self, state: State, updates: Int[Array, ""]
    ) -> tuple[State, dict[str, Float[Array, "agents"]]]:
        """Plays and learns for a number of updates; means per agent over that time."""

        def cycle(_: Int[Array, ""], carry: tuple[State, dict[str, Array]]) -> Any:
            state, sums = carry
            key, play_key, update_key = jax.random.split(state.key, 3)
            state = eqx.tree_at(lambda s: s.key, state, key)
            noise = self.step_noise(play_key, self.config.steps_per_update)
            state, rewards = jax.lax.scan(self.play, state, noise)
            state, losses = self.update(state, update_key)
            per_episode = jax.tree.map(lambda x: x.mean(0) * self.game.horizon, rewards)
            metrics = {**per_episode, "critic_loss": losses.critic, "policy_loss": losses.policy}
            return state, jax.tree.map(jnp.add, sums, metrics)

        zeros = jnp.zeros(self.game.num_agents)
        sums = dict.fromkeys(("reward", "shaping", "critic_loss", "policy_loss"), zeros)
        with precision(self.config.precision):
            state, sums = jax.lax.fori_loop(0, updates, cycle, (state, sums))
        return state, jax.tree.map(lambda x: x / updates, sums)

    def updates(self, episodes: int) -> int:
        return self.config.updates(episodes, self.game.horizon)

    def episodes(self, updates: int) -> int:
        return self.config.episodes(updates, self.game.horizon)

    def with_updates(self, updates: int) -> "MADDPG":
        return replace(self, total=updates) if self.config.anneal else self

    def with_policies(self, agents: Agent, policies: PyTree) -> Agent:
        where = lambda agents: (agents.policy, agents.target_policy)  # noqa: E731
        return eqx.tree_at(where, agents, (policies, policies))

    # Layout on devices

    def max_shards(self) -> int:
        """A power of two, and shards not too small, as they wait for each other.

        A checkpoint has as many: on CPUs the number depends on the game alone.
        """
        fair = self.config.batch_size & -self.config.batch_size
        hidden = self.config.batch_size * self.networks.hidden_bytes(self.game)
        worth = hidden // MIN_SHARD_BYTES
        return max(1, min(fair, 2 ** (worth.bit_length() - 1) if worth else 1))

    def with_layout(self, platform: str, memory: int, matches: int, shards: int) -> "MADDPG":
        """A CPU takes agent by agent, in slices that stay in its cache; a GPU all at once."""
        on_cpu = platform == "cpu"
        batch = self.config.batch_size // shards
        widest = self.networks.activation_bytes(self.game)
        spare = max(memory - matches * replace(self, shards=shards).state_bytes(), memory // 10)
        room = CACHE_BYTES if on_cpu else spare // (LAYERS_ALIVE * matches * self.game.num_agents)
        # One slice is inlined, and what it shares with other agents is computed again for each.
        slices = 2 if on_cpu and batch % 2 == 0 and batch * widest > CACHE_BYTES // 8 else 1
        while batch // slices * widest > room and batch % (2 * slices) == 0:
            slices *= 2
        return replace(self, slices=slices, agents_at_once=1 if on_cpu else None, shards=shards)

    def ring(self, state: State) -> PyTree:
        return state.buffer.worlds, state.buffer.steps

    def ring_rows(self, since: int, updates: int) -> Int[np.ndarray, "rows"]:
        config = self.config
        rounds = buffer_rounds(self.game, config.num_envs, config.buffer_size)
        first, last = config.steps(since) if since else 0, config.steps(updates)
        return rows_between(first, last, self.game.horizon, rounds, self.shards)

    def state_bytes(self) -> int:
        config = self.config
        buffer = buffer_bytes(self.game, config.num_envs, config.buffer_size, self.shards)
        agents = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        optimisers = jax.eval_shape(self.optimisers, agents)
        return buffer + tree_bytes((agents, optimisers))

    def memory_advice(self, limit: int) -> str | None:
        smallest, size = self.config.batch_size, self.config.buffer_size
        least = replace(self, config=replace(self.config, buffer_size=smallest)).state_bytes()
        if not least <= limit < self.state_bytes():
            return None
        share = (limit - least) / (self.state_bytes() - least)
        fitting = int(smallest + share * (size - smallest)) // 1000 * 1000
        return f"--buffer-size {max(fitting, smallest)} or less"

    # Playing

    def choose(
        self,
        policies: PyTree,
        views: PyTree,
        noise: Float[Array, "actions agents batch"],
        role: str | None = None,
    ) -> Float[Array, "actions agents batch"]:
        return sample_actions(self.game, policies, views, noise, role)

    def step_noise(self, key: Key[Array, ""], steps: int) -> StepNoise:
        return StepNoise.draw(key, self.game, steps, self.config.num_envs)

    def play(
        self, state: State, noise: StepNoise
    ) -> tuple[State, dict[str, Float[Array, "agents"]]]:
        """One step of all worlds, stored; worlds are reset when their episode is over."""
        views = self.networks.views(self.game, state.worlds)
        actions = self.choose(state.agents.policy, views, noise.gumbel).swapaxes(0, 1)
        after, outcome, following = step_worlds(
            self.game, noise, state.worlds, actions, state.buffer.time
        )
        step = Step(actions, self.learning_reward(outcome), outcome.done)
        buffer = state.buffer.add(state.worlds, step, after)
        rewards = {"reward": outcome.reward.mean(-1), "shaping": outcome.shaping.mean(-1)}
        return eqx.tree_at(lambda s: (s.buffer, s.worlds), state, (buffer, following)), rewards

    # Learning

    def update(self, state: State, key: Key[Array, ""]) -> tuple[State, Losses]:
        """One step of every agent's critic, policy and targets."""
        batch_key, own_key = jax.random.split(key)
        shared = None if self.config.batch_per_agent else self.sample(state, batch_key)

        def learn(agent: Agent, seat: Seat, key: Key[Array, ""]) -> Any:
            batch_key, noise_key = jax.random.split(key)
            batches = self.sample(state, batch_key) if shared is None else shared
            return self.gradients(agent, seat, batches, noise_key)

        keys = jax.random.split(own_key, self.game.num_agents)
        stacks = state.agents, seats(self.game), keys
        sums, alive = vmap_or_map(learn, stacks, self.agents_at_once)
        if self.shards > 1:
            sums, alive = jax.lax.psum((sums, alive), SHARD)
        losses, grads = jax.vmap(lambda x, n: jax.tree.map(lambda x: x / n, x))(
            sums, jnp.maximum(alive, 1)
        )
        follow = self.number(state) % self.config.policy_delay == 0
        step = partial(self.step, follow)
        agents, optimisers = jax.vmap(step)(state.agents, state.optimisers, grads)
        # Adam's steps are small: weights that are finite stay so while the gradients are.
        norms = jax.vmap(lambda grads: jnp.array([optax.tree.norm(x) for x in grads]))(grads)
        diverged = state.diverged | ~jnp.isfinite(norms).all()
        old, new = (state.agents, state.optimisers), (agents, optimisers)
        kept = jax.tree.map(lambda old, new: jnp.where(diverged, old, new), old, new)
        where = lambda s: (s.agents, s.optimisers, s.diverged)  # noqa: E731
        return eqx.tree_at(where, state, (*kept, diverged)), losses

    def number(self, state: State) -> Int[Array, ""]:
        """How many updates were before the one that is due."""
        config = self.config
        return (state.buffer.time - config.warmup_steps) // config.steps_per_update - 1

    def sample(self, state: State, key: Key[Array, ""]) -> Batch:
        """A sample of transitions, this device's shard of it, in slices on the first axis."""
        game, size = self.game, self.config.batch_size
        which, noise_key = jax.random.split(key)
        noise = jax.random.gumbel(noise_key, (game.num_actions, game.num_agents, size))
        if self.config.target_noise:
            smoothing = jax.random.normal(jax.random.fold_in(noise_key, 1), noise.shape)
            noise += self.config.target_noise * jnp.clip(smoothing, -MAX_NOISE, MAX_NOISE)
        mine = self.shard((state.buffer.sample(which, size), noise))

        def complete(transition: Transition, noise: Array) -> Batch:
            before = self.networks.views(game, transition.before)
            after = self.networks.views(game, transition.after)
            return Batch(
                transition,
                before,
                after,
                game.alive_batch(transition.before),
                game.alive_batch(transition.after),
                self.choose(state.agents.target_policy, after, noise),
            )

        return vmap_or_map(complete, split_batch(mine, self.slices), 1)

    def shard(self, batch: PyTree) -> PyTree:
        """This device's share of what all devices of the match have."""
        if self.shards == 1:
            return batch
        size = self.config.batch_size // self.shards
        begin = jax.lax.axis_index(SHARD) * size
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, size, -1), batch)

    def gradients(self, agent: Agent, seat: Seat, batches: Batch, key: Key[Array, ""]) -> Any:
        """Losses of one agent, their gradients by critic and policy, and its living samples.

        All of them are sums over this device's shard of the batch.
        """

        def of_slice(batch: Batch, noise: Array) -> Any:
            target = self.td_target(agent, seat, batch)
            critic_grad = jax.value_and_grad(self.critic_loss, has_aux=True)
            (critic_loss, encoded), grad_critic = critic_grad(agent.critic, seat, batch, target)
            # The same critic in the same situations: only the agent's own actions differ.
            q_value_of = partial(self.first_critic(agent.critic).q_value_of, encoded)
            policy_grad = jax.value_and_grad(self.policy_loss)
            policy_loss, grad_policy = policy_grad(agent.policy, q_value_of, seat, batch, noise)
            return Losses(critic_loss, policy_loss), (grad_critic, grad_policy)

        noise = jax.random.gumbel(key, (self.game.num_actions, self.config.batch_size))
        rows = batches, split_batch(self.shard(noise), self.slices)
        no_loss = Losses(jnp.zeros(()), jnp.zeros(()))
        zeros = no_loss, jax.tree.map(jnp.zeros_like, (agent.critic, agent.policy))
        sums, _ = jax.lax.scan(
            lambda sums, row: (jax.tree.map(jnp.add, sums, of_slice(*row)), None), zeros, rows
        )
        return sums, seat.mine(batches.alive).sum()

    def td_target(self, agent: Agent, seat: Seat, batch: Batch) -> Float[Array, "batch"]:
        """y = r + gamma Q'(x', a') (equation 2); nothing follows for those who are done."""
        step = batch.transition.step

        def q_value(critic: PyTree) -> Float[Array, "batch"]:
            situation = batch.next_views, batch.next_actions, batch.next_alive, seat
            return critic.q_value(critic.encode(*situation))

        critic = agent.target_critic
        value = jax.vmap(q_value)(critic).min(0) if self.config.twin_critics else q_value(critic)
        future = jnp.where(seat.mine(step.done), 0.0, value)
        return seat.mine(step.reward) + self.config.gamma * future

    def critic_loss(
        self, critic: PyTree, seat: Seat, batch: Batch, target: Float[Array, "batch"]
    ) -> tuple[Float[Array, ""], PyTree]:
        """The sum of (Q(x, a) - y)^2 (equation 2) over the samples in which the agent lives.

        Also what the (first) critic has encoded, from which Q of another own action can be
        computed.
        """
        actions = batch.transition.step.actions.swapaxes(0, 1)

        def loss(critic: PyTree) -> tuple[Float[Array, ""], PyTree]:
            encoded = critic.encode(batch.views, actions, batch.alive, seat)
            error = critic.q_value(encoded) - target
            return (error**2 * seat.mine(batch.alive)).sum(), encoded

        if not self.config.twin_critics:
            return loss(critic)
        losses, encoded = jax.vmap(loss)(critic)
        return losses.sum(), jax.tree.map(lambda x: x[0], encoded)

    def first_critic(self, critic: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[0], critic) if self.config.twin_critics else critic

    def policy_loss(
        self,
        policy: PyTree,
        q_value_of: Callable[[Float[Array, "actions batch"]], Float[Array, "batch"]],
        seat: Seat,
        batch: Batch,
        noise: Float[Array, "actions batch"],
    ) -> Float[Array, ""]:
        """-Q with the agent's own action taken from its policy (equation 1), summed likewise."""
        logits = policy(jax.tree.map(seat.mine, batch.views))
        available = available_actions(self.game)
        mine = None if available is None else seat.mine(jnp.asarray(available))
        value = q_value_of(gumbel_softmax(logits, noise, mine, self.game.soft_actions))
        penalty = self.config.logit_penalty * (logits**2).mean(0)
        return ((penalty - value) * seat.mine(batch.alive)).sum()

    @property
    def optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        if self.config.clip_per == "variable":
            clip = clip_by_norm_per_variable(self.config.max_grad_norm)
        rate: optax.ScalarOrSchedule = self.config.learning_rate
        if self.config.anneal and self.total is not None:
            rate = optax.linear_schedule(rate, 0.0, self.total)
        return optax.chain(clip, optax.adam(rate))

    def optimisers(self, agents: Agent) -> PyTree:
        """Fresh ones, of the policies and of the critics."""
        init: Any = jax.vmap(self.optimiser.init)
        return init(agents.policy), init(agents.critic)

    def step(
        self, follow: Bool[Array, ""], agent: Agent, optimisers: PyTree, grads: PyTree
    ) -> tuple[Agent, PyTree]:
        """One agent after a step of its critic; in some updates policy and targets follow."""
        policy_state, critic_state = optimisers
        critic, critic_state = self.descend(agent.critic, grads[0], critic_state)
        policy, next_state = self.descend(agent.policy, grads[1], policy_state)
        target_policy = optax.incremental_update(policy, agent.target_policy, self.config.tau)
        target_critic = optax.incremental_update(critic, agent.target_critic, self.config.tau)
        moved = policy, target_policy, target_critic, next_state
        if self.config.policy_delay > 1:
            old = agent.policy, agent.target_policy, agent.target_critic, policy_state
            moved = jax.tree.map(lambda new, old: jnp.where(follow, new, old), moved, old)
        policy, target_policy, target_critic, policy_state = moved
        return Agent(policy, critic, target_policy, target_critic), (policy_state, critic_state)

    def descend(self, network: PyTree, gradient: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = self.optimiser.update(gradient, state)
        return optax.apply_updates(network, updates), state


@dataclass(frozen=True)
class MATD3(MADDPG):
    """MADDPG with twin critics, delayed policies and smoothed targets (Ackermann et al. 2019)."""

    config: MADDPGConfig = field(default_factory=MATD3Config)

    name = "matd3"
    Config = MATD3Config
    presets = MATD3_PRESETS


def clip_by_norm_per_variable(max_norm: float) -> optax.GradientTransformation:
    """The gradient of every weight and every bias is clipped by its own norm."""

    def clip(gradient: Array) -> Array:
        return gradient * jnp.minimum(1.0, max_norm / jnp.maximum(jnp.linalg.norm(gradient), 1e-12))

    return optax.stateless(lambda gradients, _: jax.tree.map(clip, gradients))
