"""MAPPO: proximal policy optimisation with centralised critics (Yu et al. 2022), and IPPO.

Policies and critics are unshared, rewards individual, and all roles learn at once. An update plays
one episode in each of many worlds and learns from it for some epochs. Everything is written for one
match; execution vmaps it over many. The batch is the last axis.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from epcx.errors import InputError
from epcx.games import Game, World
from epcx.learners.batching import vmap_or_map
from epcx.learners.learner import started_bytes
from epcx.learners.mappo_config import PRESETS, MAPPOConfig
from epcx.learners.network_learner import NetworkLearner
from epcx.learners.rollout import MASKED_LOGIT, StepNoise, action_logits, available_actions
from epcx.networks.kernels import precision
from epcx.networks.relational import RelationalPolicy, RelationalValue
from epcx.networks.seat import Seat, seats
from epcx.networks.values import AttentionValue, LocalValue, MLPValue

RETURNS_DECAY = 0.99  # of the running moments of returns, per update
EPSILON = 1e-5  # of Adam, and of variances


class Moments(eqx.Module):
    """Running mean and square of an agent's returns, by which its critic's values are scaled."""

    mean: Float[Array, "*agents"]
    square: Float[Array, "*agents"]
    weight: Float[Array, "*agents"]  # of what was seen; it begins at zero

    @classmethod
    def none(cls) -> "Moments":
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def add(self, values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> "Moments":
        """With those of an update; an agent that never lived in it has seen nothing."""
        mean, square = mean_where(values, mask), mean_where(values**2, mask)
        step = jnp.where(mask.any(), 1 - RETURNS_DECAY, 0.0)
        return Moments(
            self.mean + step * (mean - self.mean),
            self.square + step * (square - self.square),
            self.weight + step * (1 - self.weight),
        )

    def location_and_scale(self) -> tuple[Float[Array, "*agents"], Float[Array, "*agents"]]:
        """Mean and standard deviation; 0 and 1 as long as nothing was seen."""
        seen = jnp.maximum(self.weight, EPSILON)
        mean, square = self.mean / seen, self.square / seen
        deviation = jnp.sqrt(jnp.maximum(square - mean**2, EPSILON))
        return mean, jnp.where(self.weight > 0, deviation, 1.0)


class PPOAgent(eqx.Module):
    """A policy, a critic of values, and their scale. An agent set is a stack of agents."""

    policy: PyTree
    critic: PyTree
    returns: Moments


class State(eqx.Module):
    """All that training needs to go on: episodes are over when an update ends."""

    agents: PPOAgent  # stacked over all seats
    optimisers: PyTree  # of the policies and of the critics
    updates: Int[Array, ""]
    key: Key[Array, ""]
    diverged: Bool[Array, ""]  # a weight was not finite: training has stopped


class Samples(NamedTuple):
    """Steps of many worlds, on the first axis, or with the batch on the last one."""

    worlds: World
    alive: Bool[Array, "*steps agents batch"]
    learns: Bool[Array, "*steps agents batch"]  # alive, and not played by a script
    actions: Float[Array, "*steps actions agents batch"]  # one-hot
    log_prob: Float[Array, "*steps agents batch"]
    reward: Float[Array, "*steps agents batch"]  # with shaping
    done: Bool[Array, "*steps agents batch"]


class Batch(NamedTuple):
    """What an update learns from."""

    samples: Samples
    advantage: Float[Array, "*steps agents batch"]
    target: Float[Array, "*steps agents batch"]  # of the critics, scaled


class Losses(NamedTuple):
    """Of one agent."""

    critic: Float[Array, "*agents"]
    policy: Float[Array, "*agents"]
    entropy: Float[Array, "*agents"]


@dataclass(frozen=True)
class MAPPO(NetworkLearner):
    """The learner of one game.

    `agents_at_once` learn in parallel, which changes speed and memory only. `total` is the number
    of updates over which the learning rate falls.
    """

    game: Game
    config: MAPPOConfig = field(default_factory=MAPPOConfig)
    agents_at_once: int | None = None
    total: int | None = None

    name = "mappo"
    Config = MAPPOConfig
    presets = PRESETS
    critics: ClassVar[dict[str, Callable[..., PyTree]]] = {
        "attention": AttentionValue,
        "relational": RelationalValue,
        "equivariant": partial(RelationalValue, equivariant=True),
        "mlp": MLPValue,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        config, horizon = self.config, self.game.horizon
        if config.minibatches > config.num_envs * horizon:
            raise InputError(
                f"minibatches {config.minibatches} are more than the {config.num_envs * horizon} "
                f"steps of an update ({config.num_envs} worlds of {horizon} steps)"
            )
        if self.scripted_seats.any() and not self.game.has_script:
            raise InputError(
                f"scripted-opponents {self.config.scripted_opponents} do not go with "
                f"{self.game.name}, which has no scripted players: use 0"
            )

    # The contract

    def init(self, key: Key[Array, ""]) -> PPOAgent:
        def agent(key: Key[Array, ""]) -> PPOAgent:
            first, second = jax.random.split(key)
            critic = self.critics[self.config.network](second, self.game)
            return PPOAgent(self.networks.policy(first, self.game), critic, Moments.none())

        return jax.vmap(agent)(jax.random.split(key, self.game.num_agents))

    def start(self, key: Key[Array, ""], agents: PPOAgent) -> State:
        init: Any = jax.vmap(self.optimiser.init)
        optimisers = init(agents.policy), init(agents.critic)
        return State(agents, optimisers, jnp.zeros((), jnp.int32), key, jnp.zeros((), bool))

    def advance(
        self, state: State, updates: Int[Array, ""]
    ) -> tuple[State, dict[str, Float[Array, "agents"]]]:
        """Plays and learns for a number of updates; means per agent over that time."""

        def cycle(_: Int[Array, ""], carry: tuple[State, dict[str, Array]]) -> Any:
            state, sums = carry
            state, metrics = self.update(state)
            return state, jax.tree.map(jnp.add, sums, metrics)

        zeros = jnp.zeros(self.game.num_agents)
        names = ("reward", "shaping", "critic_loss", "policy_loss", "entropy")
        with precision(self.config.precision):
            state, sums = jax.lax.fori_loop(0, updates, cycle, (state, dict.fromkeys(names, zeros)))
        return state, jax.tree.map(lambda x: x / updates, sums)

    def updates(self, episodes: int) -> int:
        return self.config.updates(episodes)

    def episodes(self, updates: int) -> int:
        return updates * self.config.num_envs

    def with_updates(self, updates: int) -> "MAPPO":
        return replace(self, total=updates)

    # Layout on devices

    def max_shards(self) -> int:
        return 1

    def with_layout(self, platform: str, memory: int, matches: int, shards: int) -> "MAPPO":
        """A CPU takes agent by agent; a GPU all at once."""
        return replace(self, agents_at_once=1 if platform == "cpu" else None)

    def state_bytes(self) -> int:
        """Without the samples of an update, which are gone when it ends."""
        return started_bytes(self)

    def memory_advice(self, limit: int) -> str | None:
        return None

    # Playing

    def choose(
        self,
        policies: PyTree,
        views: PyTree,
        noise: Float[Array, "actions agents batch"],
        role: str | None = None,
    ) -> Float[Array, "actions agents batch"]:
        return sample(action_logits(self.game, policies, views, role), noise)

    def play(
        self, agents: PPOAgent, key: Key[Array, ""]
    ) -> tuple[Samples, World, dict[str, Float[Array, "agents"]]]:
        """An episode of every world: its steps, the worlds after the last, and its rewards."""
        game = self.game
        noise = StepNoise.draw(key, game, game.horizon, self.config.num_envs)
        first = jax.tree.map(lambda x: x[0], noise.fresh)
        learning = jnp.asarray(~self.scripted_seats)

        def step(
            worlds: World, drawn: tuple[Array, Key[Array, "envs"]]
        ) -> tuple[World, tuple[Samples, dict[str, Array]]]:
            gumbel, keys = drawn
            logits = action_logits(game, agents.policy, self.networks.views(game, worlds))
            actions = sample(logits, gumbel)
            played = self.with_scripts(keys, worlds, actions.swapaxes(0, 1))
            after, outcome = game.step_batch(keys, worlds, played)
            alive = game.alive_batch(worlds)
            samples = Samples(
                worlds,
                alive,
                alive & learning,
                actions,
                log_prob(logits, actions),
                self.learning_reward(outcome),
                outcome.done,
            )
            of_agents = jax.vmap(mean_where)
            rewards = {
                "reward": of_agents(outcome.reward, learning),
                "shaping": of_agents(outcome.shaping, learning),
            }
            return after, (samples, rewards)

        last, (samples, rewards) = jax.lax.scan(step, first, (noise.gumbel, noise.keys))
        return samples, last, jax.tree.map(lambda x: x.sum(0), rewards)

    @cached_property
    def scripted_seats(self) -> Bool[np.ndarray, "agents envs"]:
        """Who is played by a script: in each of the first worlds one role, in turn."""
        game, num_envs = self.game, self.config.num_envs
        if len(game.roles) == 1:
            return np.zeros((game.num_agents, num_envs), bool)
        role = np.repeat(np.arange(len(game.roles)), game.population.counts)
        env = np.arange(num_envs)
        with_script = env < round(self.config.scripted_opponents * num_envs)
        return (role[:, None] == env % len(game.roles)) & with_script

    def with_scripts(
        self,
        keys: Key[Array, "envs"],
        worlds: World,
        actions: Float[Array, "agents actions envs"],
    ) -> Float[Array, "agents actions envs"]:
        """Actions of the policies, and of the scripts where these play."""
        if not self.scripted_seats.any():
            return actions
        own_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)  # not those of the step
        theirs = jax.vmap(self.game.scripted, (0, -1), -1)(own_keys, worlds)
        return jnp.where(self.scripted_seats[:, None], theirs, actions)

    # Learning

    def update(self, state: State) -> tuple[State, dict[str, Float[Array, "agents"]]]:
        """An episode of every world, and some epochs of steps of all agents."""
        key, play_key, learn_key = jax.random.split(state.key, 3)
        samples, last, rewards = self.play(state.agents, play_key)
        agents, batch = self.prepare(state.agents, samples, last)
        rate = self.learning_rate(state.updates)
        new, losses = self.learn(agents, state.optimisers, batch, rate, learn_key)
        finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(new[0])]).all()
        diverged = state.diverged | ~finite
        old = state.agents, state.optimisers
        agents, optimisers = jax.tree.map(lambda x, y: jnp.where(diverged, x, y), old, new)
        metrics = {
            "critic_loss": losses.critic,
            "policy_loss": losses.policy,
            "entropy": losses.entropy,
        }
        return State(agents, optimisers, state.updates + 1, key, diverged), rewards | metrics

    def prepare(self, agents: PPOAgent, samples: Samples, last: World) -> tuple[PPOAgent, Batch]:
        """Advantages, normalised per agent, and targets; the scale of returns follows them."""
        values = jax.lax.map(partial(self.values, agents), samples.worlds)
        final = self.values(agents, last)
        advantage = gae(
            samples.reward, values, final, samples.done, self.config.gamma, self.config.gae_lambda
        )
        returns = advantage + values
        moments = jax.vmap(Moments.add, (0, 1, 1))(agents.returns, returns, samples.learns)
        agents = eqx.tree_at(lambda a: a.returns, agents, moments)
        mean, scale = (x[:, None] for x in moments.location_and_scale())
        batch = Batch(samples, normalised(advantage, samples.learns), (returns - mean) / scale)
        return agents, jax.tree.map(join_steps, batch)

    def values(self, agents: PPOAgent, worlds: World) -> Float[Array, "agents batch"]:
        """What the critics expect, unscaled."""
        views, alive = self.networks.views(self.game, worlds), self.game.alive_batch(worlds)

        def value(critic: PyTree, returns: Moments, seat: Seat) -> Float[Array, "batch"]:
            mean, scale = returns.location_and_scale()
            return mean + scale * critic(views, alive, seat)

        stacks = agents.critic, agents.returns, seats(self.game)
        return vmap_or_map(value, stacks, self.agents_at_once)

    def learn(
        self,
        agents: PPOAgent,
        optimisers: PyTree,
        batch: Batch,
        rate: Float[Array, ""],
        key: Key[Array, ""],
    ) -> tuple[tuple[PPOAgent, PyTree], Losses]:
        """All epochs: agents and optimisers after them, and losses on the way."""
        config, size = self.config, batch.advantage.shape[-1]
        used = size - size % config.minibatches

        def step(carry: tuple[PPOAgent, PyTree], chosen: Int[Array, "_"]) -> Any:
            agents, optimisers = carry
            some = jax.tree.map(lambda x: x[..., chosen], batch)
            losses, grads = self.gradients(agents, some)
            return jax.vmap(partial(self.step, rate))(agents, optimisers, grads), losses

        keys = jax.random.split(key, config.epochs)
        orders = jax.vmap(lambda key: jax.random.permutation(key, size)[:used])(keys)
        minibatches = orders.reshape(config.epochs * config.minibatches, -1)
        carry, losses = jax.lax.scan(step, (agents, optimisers), minibatches)
        return carry, jax.tree.map(lambda x: x.mean(0), losses)

    def gradients(self, agents: PPOAgent, batch: Batch) -> tuple[Losses, PyTree]:
        """Losses of all agents, and their gradients by policy and critic."""
        views = self.networks.views(self.game, batch.samples.worlds)

        def of_agent(agent: PPOAgent, seat: Seat) -> tuple[Losses, PyTree]:
            policy_grad = jax.value_and_grad(self.policy_loss, has_aux=True)
            (policy_loss, entropy), grad_policy = policy_grad(agent.policy, seat, batch, views)
            critic_grad = jax.value_and_grad(self.critic_loss)
            critic_loss, grad_critic = critic_grad(agent.critic, seat, batch, views)
            return Losses(critic_loss, policy_loss, entropy), (grad_policy, grad_critic)

        return vmap_or_map(of_agent, (agents, seats(self.game)), self.agents_at_once)

    def policy_loss(
        self, policy: PyTree, seat: Seat, batch: Batch, views: PyTree
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Of the clipped objective and the entropy bonus, where the agent lives; the entropy."""
        samples = batch.samples
        logits = policy(jax.tree.map(seat.mine, views))
        available = available_actions(self.game)
        if available is not None:
            logits = jnp.where(seat.mine(jnp.asarray(available)), logits, MASKED_LOGIT)
        log_probs = jax.nn.log_softmax(logits, 0)
        ratio = jnp.exp(
            (log_probs * seat.mine(samples.actions)).sum(0) - seat.mine(samples.log_prob)
        )
        clipped = jnp.clip(ratio, 1 - self.config.clip, 1 + self.config.clip)
        advantage, learns = seat.mine(batch.advantage), seat.mine(samples.learns)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(0)
        loss = -mean_where(gain + self.config.entropy * entropy, learns)
        return loss, mean_where(entropy, learns)

    def critic_loss(
        self, critic: PyTree, seat: Seat, batch: Batch, views: PyTree
    ) -> Float[Array, ""]:
        """Half the squared error of scaled values, where the agent lives."""
        error = critic(views, batch.samples.alive, seat) - seat.mine(batch.target)
        return mean_where(0.5 * error**2, seat.mine(batch.samples.learns))

    @property
    def optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.chain(clip, optax.scale_by_adam(eps=EPSILON))

    def learning_rate(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        if not self.config.anneal or self.total is None:
            return jnp.asarray(self.config.learning_rate)
        return self.config.learning_rate * jnp.maximum(1 - updates / self.total, 0)

    def step(
        self, rate: Float[Array, ""], agent: PPOAgent, optimisers: PyTree, grads: PyTree
    ) -> tuple[PPOAgent, PyTree]:
        """One agent after a step of its policy and critic."""
        steps = [self.optimiser.update(*x) for x in zip(grads, optimisers, strict=True)]
        policy, critic = (
            jax.tree.map(lambda x, change: x - rate * change, network, changes)
            for network, (changes, _) in zip((agent.policy, agent.critic), steps, strict=True)
        )
        return PPOAgent(policy, critic, agent.returns), tuple(state for _, state in steps)


@dataclass(frozen=True)
class IPPO(MAPPO):
    """Independent PPO: as MAPPO, but a critic sees what its agent sees."""

    name = "ippo"
    critics: ClassVar[dict[str, Callable[..., PyTree]]] = {
        "attention": LocalValue,
        "relational": partial(LocalValue, policy=RelationalPolicy),
        "equivariant": partial(LocalValue, policy=partial(RelationalPolicy, equivariant=True)),
        "mlp": partial(MLPValue, local=True),
    }


def sample(
    logits: Float[Array, "actions *rows"], noise: Float[Array, "actions *rows"]
) -> Float[Array, "actions *rows"]:
    """One-hot samples of the categorical distribution, by Gumbel noise."""
    return jax.nn.one_hot((logits + noise).argmax(0), len(logits), axis=0)


def log_prob(
    logits: Float[Array, "actions *rows"], actions: Float[Array, "actions *rows"]
) -> Float[Array, "*rows"]:
    return (jax.nn.log_softmax(logits, 0) * actions).sum(0)


def gae(
    reward: Float[Array, "steps agents batch"],
    values: Float[Array, "steps agents batch"],
    final: Float[Array, "agents batch"],
    done: Bool[Array, "steps agents batch"],
    gamma: float,
    gae_lambda: float,
) -> Float[Array, "steps agents batch"]:
    """Generalised advantage estimation (Schulman et al. 2016).

    `final` is the value after the last step: a time limit is not an end.
    """
    following = jnp.concatenate([values[1:], final[None]])
    delta = reward + gamma * jnp.where(done, 0.0, following) - values

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, done = now
        advantage = delta + gamma * gae_lambda * jnp.where(done, 0.0, later)
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(final), (delta, done), reverse=True)[1]


def normalised(
    advantage: Float[Array, "steps agents batch"], alive: Bool[Array, "steps agents batch"]
) -> Float[Array, "steps agents batch"]:
    """With mean 0 and deviation 1 over the samples in which an agent lives."""
    count = jnp.maximum(alive.sum((0, 2), keepdims=True), 1)
    centred = advantage - (advantage * alive).sum((0, 2), keepdims=True) / count
    variance = (centred**2 * alive).sum((0, 2), keepdims=True) / count
    return centred / jnp.sqrt(variance + EPSILON)


def join_steps(x: Array) -> Array:
    """Steps, which are the first axis, and the batch, the last one, become one batch."""
    moved = jnp.moveaxis(x, 0, -2)
    return moved.reshape(*moved.shape[:-2], math.prod(moved.shape[-2:]))  # which may have no food


def mean_where(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Float[Array, ""]:
    return (values * mask).sum() / jnp.maximum(mask.sum(), 1)
