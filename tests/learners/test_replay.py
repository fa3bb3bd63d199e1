"""What comes out of the replay is what went in."""

from dataclasses import replace
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from epcx import games
from epcx.learners.learner import PART
from epcx.learners.replay import Replay, Step, replay_bytes

WORLDS = 3
GAME = games.make("food-collection", 2)
HORIZON = GAME.horizon


def marked(time, in_episode):
    """Worlds and a step that carry their time, their place in the episode and their number."""
    world = jax.vmap(GAME.reset, out_axes=-1)(jax.random.split(jax.random.key(0), WORLDS))
    mark = jnp.broadcast_to(jnp.arange(WORLDS), (2, 2, WORLDS)) * 1.0
    world = replace(
        world,
        position=mark,
        velocity=jnp.full((2, 2, WORLDS), 1.0 * time),
        time=jnp.full(WORLDS, in_episode, jnp.int32),
    )
    step = Step(
        actions=jnp.full((2, 5, WORLDS), 1.0 * time),
        reward=mark[0] + 1000.0 * time,
        done=jnp.full((2, WORLDS), time % 2 == 0),
    )
    return world, step


def fill(steps, capacity, parts=1):
    """Stores `steps` steps; the world after the last step of an episode has time 25."""

    def step(replay, time):
        before, step = marked(time, time % HORIZON)
        after, _ = marked(time + 1, time % HORIZON + 1)
        return replay.add(before, step, after), None

    replay = Replay.empty(GAME, WORLDS, capacity, parts)
    return jax.lax.scan(step, replay, jnp.arange(steps))[0]


def check(drawn, steps, rounds):
    """Everything that was drawn belongs together, and everything that is kept was drawn."""
    before, step, after = jax.device_get(drawn)
    time, who = before.velocity[0, 0], before.position[0, 0]
    np.testing.assert_array_equal(before.time, time % HORIZON)
    np.testing.assert_array_equal(step.actions[0, 0], time)
    np.testing.assert_array_equal(step.reward[1], who + 1000 * time)
    np.testing.assert_array_equal(step.done[0], time % 2 == 0)
    np.testing.assert_array_equal(after.position[0, 0], who)
    np.testing.assert_array_equal(after.velocity[0, 0], time + 1)
    np.testing.assert_array_equal(after.time, before.time + 1)  # never the next episode

    oldest = max(steps // HORIZON - (rounds - 1), 0) * HORIZON
    stored = {(t, w) for t in range(oldest, steps) for w in range(WORLDS)}
    assert set(zip(time.astype(int), who.astype(int), strict=True)) == stored


@pytest.mark.parametrize("steps", [1, 24, 25, 26, 60, 75, 110, 163])
def test_samples_are_stored_transitions_and_all_of_them(steps):
    """Capacity of two rounds: 110 and 163 steps wrap around, in the middle of an episode."""
    capacity = 2 * HORIZON * WORLDS
    drawn = jax.jit(lambda: fill(steps, capacity).sample(jax.random.key(1), 4000))()
    check(drawn, steps, rounds=3)


@pytest.mark.parametrize("steps", [30, 110, 163])
def test_a_replay_in_parts_gives_the_same_on_every_device(steps):
    """Three rounds on two devices: two each, one of them spare room."""
    mesh = jax.make_mesh((2,), (PART,), devices=jax.devices()[:2])

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=PartitionSpec(PART), check_vma=False)
    def draw():
        replay = fill(steps, 2 * HORIZON * WORLDS, parts=2)
        return jax.tree.map(lambda x: x[None], replay.sample(jax.random.key(1), 4000))

    both = jax.device_get(draw())
    for part in range(2):
        check(jax.tree.map(itemgetter(part), both), steps, rounds=3)


def test_the_capacity_and_the_bytes_are_kept():
    replay = Replay.empty(GAME, WORLDS, 1000)
    assert (replay.rounds - 1) * HORIZON * WORLDS >= 1000
    kept = sum(x.nbytes for x in jax.tree.leaves(replay))
    assert replay_bytes(GAME, WORLDS, 1000) == kept
    assert replay_bytes(GAME, WORLDS, 1_000_000, parts=4) < 0.26 * replay_bytes(
        GAME, WORLDS, 1_000_000
    )
