"""Stable-Baselines3 learns on environments that SuperSuit has vectorised.

What PPO saw is what a plain loop sees with the same actions. `black_death_v3` keeps the dead as
agents with zeros, and steps once more after everybody has left.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from tests.clients.environments import DEADLY, ENVIRONMENTS, PlainLoop

pytestmark = pytest.mark.slow

ROLLOUTS, STEPS, WORLDS, SEED = 4, 64, 2, 3


class Collect(BaseCallback):
    """Keeps what PPO learned from."""

    def __init__(self):
        super().__init__()
        self.rollouts = []

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = ("observations", "actions", "rewards", "episode_starts")
        self.rollouts.append({name: getattr(buffer, name).copy() for name in names})

    def all(self, name):
        """[steps, worlds, agents, ...]"""
        values = np.concatenate([rollout[name] for rollout in self.rollouts])
        return values.reshape(len(values), WORLDS, -1, *values.shape[2:])


def learn(env):
    """What PPO saw, and its parameters before and after."""
    torch.manual_seed(0)
    vectors = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(env))
    vectors = supersuit.concat_vec_envs_v1(vectors, WORLDS, 1, "stable_baselines3")
    vectors.venv.reset(seed=SEED)
    model = PPO("MlpPolicy", vectors, n_steps=STEPS, batch_size=64, n_epochs=2, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    seen = Collect()
    model.learn(ROLLOUTS * STEPS * vectors.num_envs, callback=seen)
    vectors.close()
    return seen, before, list(model.policy.parameters())


def play_black_death(loop, actions):
    """Observation before, and rewards and end after each step of actions [steps, agents, ...]."""
    for row in actions:
        seen = loop.observation
        if loop.env.agents:
            rewards, *_ = loop.step(row)
            yield seen, rewards, False
        else:
            loop.reset()
            yield seen, np.zeros(len(row)), True


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_ppo_learns_from_what_a_plain_loop_sees(name):
    make = ENVIRONMENTS[name]
    seen, before, after = learn(make())
    assert all(torch.isfinite(parameter).all() for parameter in after)
    assert any((old != new).any() for old, new in zip(before, after, strict=True))

    for world in range(WORLDS):
        loop = PlainLoop(make(), SEED + world)
        observations, actions, rewards, starts = (
            seen.all(name)[:, world]
            for name in ("observations", "actions", "rewards", "episode_starts")
        )
        space = loop.env.action_space(loop.agents[0])
        if space.shape:
            actions = np.clip(actions, space.low, space.high)  # as PPO does
        else:
            actions = actions[..., 0].astype(int)
        steps = zip(*play_black_death(loop, actions), strict=True)
        expected, plain_rewards, ended = map(np.array, steps)
        np.testing.assert_allclose(observations, expected, atol=1e-5)
        np.testing.assert_allclose(rewards, plain_rewards, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(starts[1:].all(1), ended[:-1])
        np.testing.assert_array_equal(starts[1:].any(1), ended[:-1])
        dead = (observations == 0).all(-1)[:-1] & ~ended[:-1, None]
        assert dead.any() == (name in DEADLY)


PROCESSES = """
import sys, json, numpy, supersuit
from epcx.adapters.pettingzoo import parallel_env

if __name__ == "__main__":
    env = supersuit.black_death_v3(parallel_env("grassland", "3-2"))
    env = supersuit.pettingzoo_env_to_vec_env_v1(env)
    env = supersuit.concat_vec_envs_v1(env, 2, num_cpus=int(sys.argv[1]))
    env.reset(seed=3)
    played = [env.step(numpy.full(10, time % 5)) for time in range(60)]
    print(json.dumps([rewards.tolist() for _, rewards, *_ in played]))
    env.close()
"""


def test_supersuit_plays_the_same_in_several_processes():
    """It forks them, which JAX survives only before its first computation."""
    one, two = (
        subprocess.run(
            [sys.executable, "-c", PROCESSES, count], capture_output=True, text=True, timeout=300
        )
        for count in ("1", "2")
    )
    assert one.returncode == two.returncode == 0, two.stderr
    rewards = np.array(json.loads(two.stdout))
    assert rewards.any()
    np.testing.assert_array_equal(rewards, json.loads(one.stdout))
