"""MADDPG: decentralised policies and centralised critics (equations 1 and 2 of the paper).

Everything is written for one match; the engine puts many side by side. Batches are last axes.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from epcx.agents.agent import Agent, Architecture
from epcx.agents.kernels import precision
from epcx.agents.seat import Seat, seats
from epcx.games import NUM_ACTIONS, Game, World
from epcx.learners.hyperparameters import Hyperparameters
from epcx.learners.learner import PART
from epcx.learners.replay import Replay, Step, Transition, replay_bytes, tree_bytes
from epcx.learners.rollout import Chance, choose, gumbel_softmax, step_worlds

CACHE = 2**21  # bytes of the widest layer at a time: about a core's second-level cache
LEAST_PART = 2**19  # bytes of the widest layer that make another device worth its while
SHARE = 24  # of a GPU's memory, for the same: several such layers are alive at once


class State(eqx.Module):
    """All that training needs to go on."""

    agents: Agent  # stacked over all seats
    optimisers: Any  # of the policies and of the critics
    replay: Replay
    worlds: World  # batch last
    key: Array
    diverged: Bool[Array, "..."]  # weights would have become infinite: training has stopped


class Batch(NamedTuple):
    """A slice of a draw from the replay, and what the agents see before and after."""

    transition: Transition
    before: Any
    after: Any
    next_actions: Float[Array, "..."]  # [5, N, batch], of the target policies


class Losses(NamedTuple):
    """Of one agent."""

    critic: Array
    policy: Array


@dataclass(frozen=True)
class MADDPG:
    """The learner of one game, with one architecture.

    `slices` and `agents_at_once` say how an update is laid out in time: gradients are summed over
    slices of the batch, for some agents side by side. `parts` says over how many devices: all of
    them play the same, each keeps a part of the replay and learns from a part of the batch. The
    three change speed and memory only.
    """

    game: Game
    architecture: Architecture
    hyper: Hyperparameters = field(default_factory=Hyperparameters)
    slices: int = 1
    agents_at_once: int | None = None
    parts: int = 1

    # The contract

    def init(self, key: Array) -> Agent:
        """Fresh agents for all seats."""
        return self.architecture.agents(key, self.game)

    def start(self, key: Array, agents: Agent) -> State:
        """Fresh optimisers and replay, filled by playing until the first update is due."""
        reset, warm, rest = jax.random.split(key, 3)
        keys = jax.random.split(reset, self.hyper.worlds)
        state = State(
            agents=agents,
            optimisers=self.optimisers(agents),
            replay=Replay.empty(self.game, self.hyper.worlds, self.hyper.replay, self.parts),
            worlds=jax.vmap(self.game.reset, out_axes=-1)(keys),
            key=rest,
            diverged=jnp.zeros((), bool),
        )

        def step(i: Array, state: State) -> State:
            chance = self.chance(jax.random.fold_in(warm, i), 1)
            return self.play(state, jax.tree.map(lambda x: x[0], chance))[0]

        with precision(self.hyper.precision):
            return jax.lax.fori_loop(0, self.hyper.warm_up_steps, step, state)

    def advance(self, state: State, updates: Array) -> tuple[State, dict[str, Array]]:
        """Plays and learns for a number of updates; means per agent over that time.

        Rewards are per episode.
        """

        def cycle(_: Array, carry: tuple[State, dict[str, Array]]) -> Any:
            state, sums = carry
            key, chance, learn = jax.random.split(state.key, 3)
            state = eqx.tree_at(lambda s: s.key, state, key)
            chances = self.chance(chance, self.hyper.steps_per_update)
            state, gains = jax.lax.scan(self.play, state, chances)
            state, losses = self.update(state, learn)
            gains = jax.tree.map(lambda x: x.mean(0) * self.game.horizon, gains)
            news = {**gains, "critic_loss": losses.critic, "policy_loss": losses.policy}
            return state, jax.tree.map(jnp.add, sums, news)

        zeros = jnp.zeros(self.game.num_agents)
        sums = dict.fromkeys(("reward", "shaping", "critic_loss", "policy_loss"), zeros)
        with precision(self.hyper.precision):
            state, sums = jax.lax.fori_loop(0, updates, cycle, (state, sums))
        return state, jax.tree.map(lambda x: x / updates, sums)

    def agents(self, state: State) -> Agent:
        return state.agents

    def diverged(self, state: State) -> Bool[Array, "..."]:
        return state.diverged

    def updates(self, episodes: int) -> int:
        return self.hyper.updates(episodes, self.game.horizon)

    def episodes(self, updates: int) -> int:
        return self.hyper.episodes(updates, self.game.horizon)

    def most_parts(self) -> int:
        """Parts are powers of two, and not too small: they wait for each other.

        A checkpoint has as many: on CPUs the number depends on the game alone.
        """
        fair = self.hyper.batch & -self.hyper.batch
        worth = self.hyper.batch * self.architecture.effort(self.game) // LEAST_PART
        return max(1, min(fair, 2 ** (worth.bit_length() - 1) if worth else 1))

    def memory(self) -> int:
        replay = replay_bytes(self.game, self.hyper.worlds, self.hyper.replay, self.parts)
        agents = jax.eval_shape(self.init, jax.random.key(0))
        optimisers = jax.eval_shape(self.optimisers, agents)
        return replay + tree_bytes((agents, optimisers))

    def fitted(self, platform: str, memory: int, matches: int, parts: int) -> "MADDPG":
        """A CPU takes agent by agent, in slices that stay in its cache; a GPU all at once."""
        on_cpu = platform == "cpu"
        batch = self.hyper.batch // parts
        widest = self.architecture.widest(self.game)
        spare = max(memory - matches * replace(self, parts=parts).memory(), memory // 10)
        room = CACHE if on_cpu else spare // (SHARE * matches * self.game.num_agents)
        # One slice is inlined, and what it shares with other agents is computed again for each.
        slices = 2 if on_cpu and batch % 2 == 0 and batch * widest > CACHE // 8 else 1
        while batch // slices * widest > room and batch % (2 * slices) == 0:
            slices *= 2
        return replace(self, slices=slices, agents_at_once=1 if on_cpu else None, parts=parts)

    def observe(self, worlds: World, role: str | None = None) -> Any:
        """What all seats see in a batch of worlds, or those of one role: [agents, ..., batch]."""
        seen = self.architecture.see(self.game, worlds)
        who = slice(None) if role is None else self.game.members[role]
        return jax.tree.map(lambda x: x[who], seen)

    def policies(self, agents: Agent) -> Any:
        return agents.policy

    def act(self, key: Array, policies: Any, seen: Any) -> Float[Array, "agents 5 batch"]:
        """Samples of the policies, in training and in evaluation."""
        first = jax.tree.leaves(seen)[0]
        noise = jax.random.gumbel(key, (NUM_ACTIONS, len(first), first.shape[-1]))
        with precision(self.hyper.precision):
            return choose(policies, self.architecture.arrange(seen), noise).swapaxes(0, 1)

    # Playing

    def chance(self, key: Array, steps: int) -> Chance:
        return Chance.draw(key, self.game, steps, self.hyper.worlds)

    def play(self, state: State, chance: Chance) -> tuple[State, dict[str, Array]]:
        """One step of all worlds, stored; worlds whose time is over start anew."""
        views = self.architecture.observe(self.game, state.worlds)
        actions = choose(state.agents.policy, views, chance.choices).swapaxes(0, 1)
        after, outcome, fresh = step_worlds(self.game, chance, state.worlds, actions)
        step = Step(actions, outcome.reward + outcome.shaping, outcome.done)
        replay = state.replay.add(state.worlds, step, after)
        gains = {"reward": outcome.reward.mean(-1), "shaping": outcome.shaping.mean(-1)}
        return eqx.tree_at(lambda s: (s.replay, s.worlds), state, (replay, fresh)), gains

    # Learning

    def update(self, state: State, key: Array) -> tuple[State, Losses]:
        """One step of every agent's critic, policy and targets."""
        shared, own = jax.random.split(key)
        draw = None if self.hyper.draw_per_agent else self.draw(state, shared)

        def learn(agent: Agent, seat: Seat, key: Array) -> Any:
            first, second = jax.random.split(key)
            batches = self.draw(state, first) if draw is None else draw
            return self.gradients(agent, seat, batches, second)

        keys = jax.random.split(own, self.game.num_agents)
        stacks = state.agents, seats(self.game), keys
        sums, living = side_by_side(learn, stacks, self.agents_at_once)
        if self.parts > 1:
            sums, living = jax.lax.psum((sums, living), PART)
        losses, slopes = jax.vmap(lambda x, n: jax.tree.map(lambda x: x / n, x))(
            sums, jnp.maximum(living, 1)
        )
        agents, optimisers = jax.vmap(self.step)(state.agents, state.optimisers, slopes)
        # Adam's steps are small: weights that are finite stay so while the gradients are.
        sizes = jax.vmap(lambda slopes: jnp.array([optax.tree.norm(x) for x in slopes]))(slopes)
        diverged = state.diverged | ~jnp.isfinite(sizes).all()
        old, new = (state.agents, state.optimisers), (agents, optimisers)
        kept = jax.tree.map(lambda old, new: jnp.where(diverged, old, new), old, new)
        where = lambda s: (s.agents, s.optimisers, s.diverged)  # noqa: E731
        return eqx.tree_at(where, state, (*kept, diverged)), losses

    def draw(self, state: State, key: Array) -> Batch:
        """A draw of transitions, this device's part of it, in slices on the first axis."""
        which, choice = jax.random.split(key)
        whole = self.hyper.batch
        noise = jax.random.gumbel(choice, (NUM_ACTIONS, self.game.num_agents, whole))
        mine = self.part((state.replay.sample(which, whole), noise))

        def complete(transition: Transition, noise: Array) -> Batch:
            before = self.architecture.observe(self.game, transition.before)
            after = self.architecture.observe(self.game, transition.after)
            next_actions = choose(state.agents.target_policy, after, noise)
            return Batch(transition, before, after, next_actions)

        return side_by_side(complete, cut(mine, self.slices), 1)

    def part(self, batch: Any) -> Any:
        """This device's part of what all devices of the match have."""
        if self.parts == 1:
            return batch
        size = self.hyper.batch // self.parts
        begin = jax.lax.axis_index(PART) * size
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, size, -1), batch)

    def gradients(self, agent: Agent, seat: Seat, batches: Batch, key: Array) -> Any:
        """Losses of one agent, their gradients by critic and by policy, and its living samples.

        All of them are sums over this device's part of the batch.
        """

        def one(batch: Batch, noise: Array) -> Any:
            goal = self.target(agent, seat, batch)
            descend = jax.value_and_grad(self.critic_loss, has_aux=True)
            (critic_loss, context), to_critic = descend(agent.critic, seat, batch, goal)
            # The same critic in the same situations: only the own actions differ.
            judge = partial(agent.critic.reconsider, context)
            ascend = jax.value_and_grad(self.policy_loss)
            policy_loss, to_policy = ascend(agent.policy, judge, seat, batch, noise)
            return Losses(critic_loss, policy_loss), (to_critic, to_policy)

        noise = self.part(jax.random.gumbel(key, (NUM_ACTIONS, self.hyper.batch)))
        rows = batches, cut(noise, self.slices)
        nothing = Losses(jnp.zeros(()), jnp.zeros(()))
        zeros = nothing, jax.tree.map(jnp.zeros_like, (agent.critic, agent.policy))
        sums, _ = jax.lax.scan(
            lambda sums, row: (jax.tree.map(jnp.add, sums, one(*row)), None), zeros, rows
        )
        return sums, seat.mine(batches.transition.before.alive).sum()

    def target(self, agent: Agent, seat: Seat, batch: Batch) -> Float[Array, "batch"]:
        """y = r + gamma Q'(x', a') (equation 2); nothing follows for those who are done."""
        step, alive = batch.transition.step, batch.transition.after.alive
        critic = agent.target_critic
        value = critic.judge(critic.context(batch.after, batch.next_actions, alive, seat))
        future = jnp.where(seat.mine(step.done), 0.0, value)
        return seat.mine(step.reward) + self.hyper.discount * future

    def critic_loss(
        self, critic: Any, seat: Seat, batch: Batch, goal: Float[Array, "batch"]
    ) -> tuple[Float[Array, ""], Any]:
        """The sum of (Q(x, a) - y)^2 (equation 2) over the samples in which the agent lives.

        Also the critic's context, in which other actions of the agent can be judged.
        """
        alive = batch.transition.before.alive
        actions = batch.transition.step.actions.swapaxes(0, 1)
        context = critic.context(batch.before, actions, alive, seat)
        value = critic.judge(context)
        return ((value - goal) ** 2 * seat.mine(alive)).sum(), context

    def policy_loss(
        self, policy: Any, judge: Any, seat: Seat, batch: Batch, noise: Float[Array, "5 batch"]
    ) -> Float[Array, ""]:
        """-Q with the agent's own action taken from its policy (equation 1), summed likewise."""
        logits = policy(jax.tree.map(seat.mine, batch.before))
        value = judge(gumbel_softmax(logits, noise))
        penalty = self.hyper.logit_penalty * (logits**2).mean(0)
        return ((penalty - value) * seat.mine(batch.transition.before.alive)).sum()

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.hyper.gradient_norm),
            optax.adam(self.hyper.learning_rate),
        )

    def optimisers(self, agents: Agent) -> tuple[Any, Any]:
        """Fresh ones, of the policies and of the critics."""
        init: Any = jax.vmap(self.optimiser.init)
        return init(agents.policy), init(agents.critic)

    def step(self, agent: Agent, optimisers: Any, slopes: Any) -> tuple[Agent, Any]:
        """One agent after a step of its critic and policy; its targets follow."""
        critic, critic_state = self.descend(agent.critic, slopes[0], optimisers[1])
        policy, policy_state = self.descend(agent.policy, slopes[1], optimisers[0])
        rate = self.hyper.target_rate
        target_policy = optax.incremental_update(policy, agent.target_policy, rate)
        target_critic = optax.incremental_update(critic, agent.target_critic, rate)
        agent = Agent(policy, critic, target_policy, target_critic)
        return agent, (policy_state, critic_state)

    def descend(self, network: Any, gradient: Any, state: Any) -> tuple[Any, Any]:
        updates, state = self.optimiser.update(gradient, state)
        return optax.apply_updates(network, updates), state


def cut(tree: Any, slices: int) -> Any:
    """Slices of the batch, which is the last axis, on a new first axis."""
    return jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], slices, x.shape[-1] // slices), -2, 0),
        tree,
    )


def side_by_side(function: Any, stacks: tuple[Any, ...], at_once: int | None) -> Any:
    """`function` of every row of the stacks: `at_once` in parallel, or all of them."""
    rows = len(jax.tree.leaves(stacks)[0])
    if at_once is None or at_once >= rows:
        return jax.vmap(function)(*stacks)
    return jax.lax.map(
        lambda row: function(*row), stacks, batch_size=at_once if at_once > 1 else None
    )
