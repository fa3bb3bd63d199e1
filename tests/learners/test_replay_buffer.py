"""The replay buffer: samples are transitions that were stored."""

from dataclasses import replace
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from epcx import games
from epcx.learners.learner import SHARD
from epcx.learners.replay_buffer import ReplayBuffer, Step, buffer_bytes

ENVS = 3
GAME = games.make("food-collection", 2)
HORIZON = GAME.horizon


def numbered(time, in_episode):
    """Worlds and a step that hold their time, their time in the episode and their index."""
    world = jax.vmap(GAME.reset, out_axes=-1)(jax.random.split(jax.random.key(0), ENVS))
    index = jnp.broadcast_to(jnp.arange(ENVS), (2, 2, ENVS)) * 1.0
    world = replace(
        world,
        position=index,
        velocity=jnp.full((2, 2, ENVS), 1.0 * time),
        time=jnp.full(ENVS, in_episode, jnp.int32),
    )
    step = Step(
        actions=jnp.full((2, 5, ENVS), 1.0 * time),
        reward=index[0] + 1000.0 * time,
        done=jnp.full((2, ENVS), time % 2 == 0),
    )
    return world, step


def fill(steps, capacity, shards=1):
    """Stores `steps` steps; the world after the last step of an episode has time 25."""

    def step(buffer, time):
        before, step = numbered(time, time % HORIZON)
        after, _ = numbered(time + 1, time % HORIZON + 1)
        return buffer.add(before, step, after), None

    buffer = ReplayBuffer.empty(GAME, ENVS, capacity, shards)
    return jax.lax.scan(step, buffer, jnp.arange(steps))[0]


def check(drawn, steps, rounds):
    """What was drawn are the transitions in the buffer, all of them, and nothing else."""
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
    stored = {(t, w) for t in range(oldest, steps) for w in range(ENVS)}
    assert set(zip(time.astype(int), who.astype(int), strict=True)) == stored


@pytest.mark.parametrize("steps", [1, 24, 25, 26, 60, 75, 110, 163])
def test_replay_buffer_wraps_without_joining_episodes(steps):
    """It holds two rounds, of which every transition can be sampled, and no other.

    110 and 163 steps wrap around, in the middle of an episode.
    """
    capacity = 2 * HORIZON * ENVS
    drawn = jax.jit(lambda: fill(steps, capacity).sample(jax.random.key(1), 4000))()
    check(drawn, steps, rounds=3)


@pytest.mark.parametrize("steps", [30, 110, 163])
def test_sharded_replay_buffer_samples_the_same_on_every_device(steps):
    """Three rounds on two devices: two each, one of them spare room."""
    mesh = jax.make_mesh((2,), (SHARD,), devices=jax.devices()[:2])

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=PartitionSpec(SHARD), check_vma=False)
    def draw():
        buffer = fill(steps, 2 * HORIZON * ENVS, shards=2)
        return jax.tree.map(lambda x: x[None], buffer.sample(jax.random.key(1), 4000))

    both = jax.device_get(draw())
    for device in range(2):
        check(jax.tree.map(itemgetter(device), both), steps, rounds=3)


def test_buffer_bytes_are_those_of_a_buffer_of_the_capacity():
    buffer = ReplayBuffer.empty(GAME, ENVS, 1000)
    assert (buffer.rounds - 1) * HORIZON * ENVS >= 1000
    stored = sum(x.nbytes for x in jax.tree.leaves(buffer))
    assert buffer_bytes(GAME, ENVS, 1000) == stored
    assert buffer_bytes(GAME, ENVS, 1_000_000, shards=4) < 0.26 * buffer_bytes(
        GAME, ENVS, 1_000_000
    )
