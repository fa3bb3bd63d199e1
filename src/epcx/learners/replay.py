"""A ring buffer of worlds: observations are rebuilt from them when they are sampled.

All parallel worlds play in step, in episodes of the same length, so the buffer is a ring of
rounds: in one round every world plays one episode. A round keeps one world more than it has steps:
so the world after a step is stored once, and no transition joins two episodes.

A match that is spread over several devices keeps a part of the rounds on each: rounds go to the
parts in turn, and a sample is put together from all of them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epcx.games import NUM_ACTIONS, Game, World
from epcx.learners.learner import PART


class Step(NamedTuple):
    """What a step of a batch of worlds adds to the worlds before it."""

    actions: Float[Array, "..."]  # [N, 5, batch]
    reward: Float[Array, "..."]  # [N, batch], shaping included
    done: Bool[Array, "..."]  # [N, batch]


class Transition(NamedTuple):
    """A batch of what happened: `before`, `step` and `after`, with the batch as last axis."""

    before: World
    step: Step
    after: World


class Replay(eqx.Module):
    """The last rounds. `time` counts the steps that were ever stored."""

    worlds: World  # [rounds, horizon + 1, worlds, ...]
    steps: Step  # [rounds, horizon, worlds, ...]
    time: Int[Array, "..."]
    rounds: int = eqx.field(static=True)  # in all parts together
    parts: int = eqx.field(static=True, default=1)

    @staticmethod
    def empty(game: Game, worlds: int, capacity: int, parts: int = 1) -> "Replay":
        """Room for `capacity` transitions, rounded up to rounds, of which one is being written.

        With parts, it is one part of that.
        """
        rounds = 1 + -(-capacity // (worlds * game.horizon))
        rows = -(-rounds // parts)
        n = game.num_agents

        spare = int(parts > 1)  # a last row, for what the other parts keep

        def room(steps: int, shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.zeros((rows + spare, steps, worlds, *shape), dtype)

        world = jax.eval_shape(game.reset, jax.random.key(0))
        return Replay(
            worlds=jax.tree.map(lambda x: room(game.horizon + 1, x.shape, x.dtype), world),
            steps=Step(
                actions=room(game.horizon, (n, NUM_ACTIONS), jnp.float32),
                reward=room(game.horizon, (n,), jnp.float32),
                done=room(game.horizon, (n,), bool),
            ),
            time=jnp.zeros((), jnp.int32),
            rounds=rounds,
            parts=parts,
        )

    @property
    def horizon(self) -> int:
        return self.steps.reward.shape[1]

    def locate(self, time: Array) -> tuple[Array, Array, Bool[Array, "..."]]:
        """Row and step at which `time` is stored, and whether that is in this part."""
        row, owner = jnp.divmod(time // self.horizon % self.rounds, self.parts)
        here = owner == (jax.lax.axis_index(PART) if self.parts > 1 else 0)
        return row, time % self.horizon, here

    def add(self, before: World, step: Step, after: World) -> "Replay":
        """The replay with one more step of all worlds, which are the last axis."""
        now, at, here = self.locate(self.time)
        now = jnp.where(here, now, self.steps.reward.shape[0] - 1)

        def store(place: Array, rows: Any, row: Any) -> Any:
            def put(all: Array, x: Array) -> Array:
                x = jnp.moveaxis(x, -1, 0)[None, None]
                return jax.lax.dynamic_update_slice(all, x, (now, place, *[0] * (x.ndim - 2)))

            return jax.tree.map(put, rows, row)

        worlds = store(at + 1, store(at, self.worlds, before), after)
        steps = store(at, self.steps, step)
        return Replay(worlds, steps, self.time + 1, self.rounds, self.parts)

    def sample(self, key: Array, batch: int) -> Transition:
        """Transitions drawn uniformly, with repetition, from those that are stored."""
        which, who = jax.random.split(key)
        # The round being written has overwritten the oldest one.
        oldest = jnp.maximum(self.time // self.horizon - (self.rounds - 1), 0) * self.horizon
        time = jax.random.randint(which, (batch,), oldest, jnp.maximum(self.time, 1))
        world = jax.random.randint(who, (batch,), 0, self.steps.reward.shape[2])
        row, at, here = self.locate(time)

        def take(place: Array, rows: Any) -> Any:
            return jax.tree.map(lambda x: jnp.moveaxis(x[row, place, world], 0, -1), rows)

        drawn = Transition(take(at, self.worlds), take(at, self.steps), take(at + 1, self.worlds))
        if self.parts == 1:
            return drawn
        mine = jax.tree.map(lambda x: jnp.where(here, x, 0), drawn)
        whole = jax.lax.psum(mine, PART)
        return jax.tree.map(lambda x, like: x.astype(like.dtype), whole, drawn)


def replay_bytes(game: Game, worlds: int, capacity: int, parts: int = 1) -> int:
    """The memory that `Replay.empty` would take."""
    empty = jax.eval_shape(lambda: Replay.empty(game, worlds, capacity, parts))
    return tree_bytes(empty)


def tree_bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
