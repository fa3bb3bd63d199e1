"""A ring buffer of worlds: observations are rebuilt from them when they are sampled.

All parallel worlds play in step, in episodes of the same length, so the buffer is a ring of
rounds: in one round every world plays one episode. A round keeps one world more than it has steps:
so the world after a step is stored once, and no transition joins two episodes.

A match that is spread over several devices keeps a shard of the rounds on each: rounds go to the
shards in turn, and a sample is put together from all of them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from epcx.games import Game, World
from epcx.learners.learner import SHARD, tree_bytes


class Step(NamedTuple):
    """What a step of a batch of worlds adds to the worlds before it."""

    actions: Float[Array, "agents actions batch"]
    reward: Float[Array, "agents batch"]  # shaping included
    done: Bool[Array, "agents batch"]


class Transition(NamedTuple):
    """A batch of transitions, with the batch as last axis."""

    before: World
    step: Step
    after: World


class ReplayBuffer(eqx.Module):
    """The last rounds. `time` counts the steps that were ever stored."""

    worlds: World  # [rounds, horizon + 1, envs, ...]
    steps: Step  # [rounds, horizon, envs, ...]
    time: Int[Array, ""]
    rounds: int = eqx.field(static=True)  # in all shards together
    shards: int = eqx.field(static=True, default=1)

    @staticmethod
    def empty(game: Game, num_envs: int, capacity: int, shards: int = 1) -> "ReplayBuffer":
        """Room for `capacity` transitions, rounded up to rounds, and one round to be written.

        With several shards, one shard of that.
        """
        rounds = buffer_rounds(game, num_envs, capacity)
        rows = -(-rounds // shards) + int(shards > 1)  # the last row takes what others keep
        n = game.num_agents

        def room(steps: int, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
            return jnp.zeros((rows, steps, num_envs, *shape), dtype)

        world = jax.eval_shape(lambda: game.reset(jax.random.key(0)))
        return ReplayBuffer(
            worlds=jax.tree.map(lambda x: room(game.horizon + 1, x.shape, x.dtype), world),
            steps=Step(
                actions=room(game.horizon, (n, game.num_actions), jnp.dtype(jnp.float32)),
                reward=room(game.horizon, (n,), jnp.dtype(jnp.float32)),
                done=room(game.horizon, (n,), jnp.dtype(bool)),
            ),
            time=jnp.zeros((), jnp.int32),
            rounds=rounds,
            shards=shards,
        )

    @property
    def horizon(self) -> int:
        return self.steps.reward.shape[1]

    def locate(
        self, time: Int[Array, "*steps"]
    ) -> tuple[Int[Array, "*steps"], Int[Array, "*steps"], Bool[Array, "*steps"]]:
        """Row and step at which `time` is stored, and whether that is in this shard."""
        row, owner = jnp.divmod(time // self.horizon % self.rounds, self.shards)
        here = owner == (jax.lax.axis_index(SHARD) if self.shards > 1 else 0)
        return row, time % self.horizon, here

    def add(self, before: World, step: Step, after: World) -> "ReplayBuffer":
        """The buffer with one more step of all worlds, which are the last axis."""
        now, at, here = self.locate(self.time)
        now = jnp.where(here, now, self.steps.reward.shape[0] - 1)

        def store(place: Int[Array, ""], rows: PyTree, row: PyTree) -> PyTree:
            def put(all: Shaped[Array, "..."], x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
                x = jnp.moveaxis(x, -1, 0)[None, None]
                return jax.lax.dynamic_update_slice(all, x, (now, place, *[0] * (x.ndim - 2)))

            return jax.tree.map(put, rows, row)

        worlds = store(at + 1, store(at, self.worlds, before), after)
        steps = store(at, self.steps, step)
        return ReplayBuffer(worlds, steps, self.time + 1, self.rounds, self.shards)

    def sample(self, key: Key[Array, ""], batch_size: int) -> Transition:
        """Transitions drawn uniformly, with repetition, from those that are stored."""
        which, who = jax.random.split(key)
        # The round being written has overwritten the oldest one.
        oldest = jnp.maximum(self.time // self.horizon - (self.rounds - 1), 0) * self.horizon
        time = jax.random.randint(which, (batch_size,), oldest, jnp.maximum(self.time, 1))
        world = jax.random.randint(who, (batch_size,), 0, self.steps.reward.shape[2])
        row, at, here = self.locate(time)

        def take(place: Int[Array, "batch"], rows: PyTree) -> PyTree:
            return jax.tree.map(lambda x: jnp.moveaxis(x[row, place, world], 0, -1), rows)

        drawn = Transition(take(at, self.worlds), take(at, self.steps), take(at + 1, self.worlds))
        if self.shards == 1:
            return drawn
        mine = jax.tree.map(lambda x: jnp.where(here, x, 0), drawn)
        whole = jax.lax.psum(mine, SHARD)
        return jax.tree.map(lambda x, like: x.astype(like.dtype), whole, drawn)


def buffer_rounds(game: Game, num_envs: int, capacity: int) -> int:
    """As many as have room for `capacity` transitions, and one to be written."""
    return 1 + -(-capacity // (num_envs * game.horizon))


def rows_between(
    first: int, last: int, horizon: int, rounds: int, shards: int
) -> Int[np.ndarray, "rows"]:
    """The rows of a shard that the steps from `first` up to before `last` are stored in."""
    written = np.arange(first // horizon, -(-last // horizon))[-rounds:]
    return np.unique(written % rounds // shards)


def buffer_bytes(game: Game, num_envs: int, capacity: int, shards: int = 1) -> int:
    """The memory that `ReplayBuffer.empty` would take."""
    return tree_bytes(jax.eval_shape(lambda: ReplayBuffer.empty(game, num_envs, capacity, shards)))
