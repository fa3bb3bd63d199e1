"""The environments that clients drive: the four games, and mpe2 in the same way beside them."""

import numpy as np
import supersuit
from mpe2 import simple_spread_v3, simple_tag_v3

from epcx.adapters.pettingzoo import parallel_env
from tests.games.worlds import PARTICLE_GAMES


def pad(env):
    """With the same spaces for all agents, which Stable-Baselines3 requires."""
    return supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env))


ENVIRONMENTS = {
    **{name: lambda name=name: parallel_env(name) for name in PARTICLE_GAMES},
    # So narrow that some die, although they act at random.
    "grassland": lambda: parallel_env("grassland", world_size=0.4),
    "adversarial-battle": lambda: parallel_env("adversarial-battle", world_size=0.4),
    "grassland, continuous": lambda: parallel_env(
        "grassland", world_size=0.4, actions="continuous"
    ),
    "mpe2 simple_tag": lambda: pad(simple_tag_v3.parallel_env()),
    "mpe2 simple_spread, continuous": lambda: simple_spread_v3.parallel_env(
        continuous_actions=True
    ),
}
DEADLY = {"grassland", "grassland, continuous", "adversarial-battle"}


class PlainLoop:
    """Plays given actions without any client, and answers with arrays over all agents.

    Those who have left get zeros. The first episode is the second of the seed: clients reset once
    more before they begin.
    """

    def __init__(self, env, seed):
        self.env, self.agents = env, env.possible_agents
        env.reset(seed=seed)
        self.reset()

    def reset(self):
        self.observations, _ = self.env.reset()

    @property
    def observation(self):
        """[agents, width]"""
        nothing = np.zeros(self.env.observation_space(self.agents[0]).shape, np.float32)
        return self._rows(self.observations, nothing)

    @property
    def alive(self):
        """[agents]"""
        return np.array([name in self.env.agents for name in self.agents])

    def step(self, actions):
        """Rewards, terminations and truncations [agents] of actions [agents, ...]."""
        living = {name: actions[i] for i, name in enumerate(self.agents) if name in self.env.agents}
        self.observations, rewards, terminations, truncations, _ = self.env.step(living)
        return self._rows(rewards, 0), self._rows(terminations, 0), self._rows(truncations, 0)

    def _rows(self, values, missing):
        return np.array([values.get(name, missing) for name in self.agents])
