"""A learner outside the package, which has nothing in common with MADDPG: evolution strategies.

Each agent has a linear policy of its own. An update plays antithetic pairs of perturbed teams and
moves every agent along its estimated gradient: no critic, no buffer, no optimiser.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp

from epcx.errors import InputError
from epcx.games import Game
from epcx.learners import Learner


@dataclass(frozen=True)
class ESConfig:
    """Options of evolution strategies."""

    step_size: float = 1.0
    """How far weights move along the estimated gradient."""

    sigma: float = 0.5
    """Standard deviation of the perturbations."""

    pairs: int = 32
    """Antithetic pairs of perturbed teams per update."""


class ESState(eqx.Module):
    agents: jax.Array
    key: jax.Array


@dataclass(frozen=True)
class EvolutionStrategies(Learner):
    game: Game
    config: ESConfig

    name = "es"
    Config = ESConfig
    presets = {"smoke": ESConfig(pairs=2)}

    def init(self, key):
        shapes = self.game.observation_shapes
        parts = [shapes.own, *(entities.features for entities in shapes.entities.values())]
        width = sum(x.shape[-1] for x in parts)
        return 0.1 * jax.random.normal(key, (self.game.num_agents, self.game.num_actions, width))

    def start(self, key, agents):
        return ESState(jnp.asarray(agents), key)

    def advance(self, state, updates):
        def update(_, carry):
            state, sums = carry
            key, draw, play = jax.random.split(state.key, 3)
            half = jax.random.normal(draw, (*state.agents.shape, self.config.pairs))
            noise = jnp.concatenate([half, -half], -1)
            gained = self.episode(play, state.agents[..., None] + self.config.sigma * noise)
            total = gained["reward"] + gained["shaping"]
            score = (total - total.mean(1, keepdims=True)) / (total.std(1, keepdims=True) + 1e-6)
            gradient = (score[:, None, None] * noise).mean(-1)
            state = ESState(state.agents + self.config.step_size * gradient, key)
            return state, {name: sums[name] + x.mean(1) for name, x in gained.items()}

        sums = dict.fromkeys(("reward", "shaping"), jnp.zeros(self.game.num_agents))
        state, sums = jax.lax.fori_loop(0, updates, update, (state, sums))
        return state, {name: x / updates for name, x in sums.items()}

    def episode(self, key, weights):
        """Reward and shaping [agents, teams] of an episode of each team, in a world of its own."""
        teams = weights.shape[-1]

        def step(worlds, key):
            keys = jax.random.split(key, 1 + teams)
            actions = self.sample(keys[0], weights, self.observe(worlds))
            worlds, outcome = self.game.step_batch(keys[1:], worlds, actions)
            return worlds, {"reward": outcome.reward, "shaping": outcome.shaping}

        keys = jax.random.split(key, 1 + self.game.horizon)
        worlds = self.game.reset_batch(jax.random.split(keys[0], teams))
        gained = jax.lax.scan(step, worlds, keys[1:])[1]
        return {name: x.sum(0) for name, x in gained.items()}

    def sample(self, key, weights, seen, greedy=False):
        pooled = [
            (features * mask[:, :, None]).sum(1) / jnp.maximum(mask.sum(1), 1)[:, None]
            for features, mask in (seen.entities[name] for name in sorted(seen.entities))
        ]
        inputs = jnp.concatenate([seen.own, *pooled], 1)
        logits = jnp.einsum("nafb,nfb->nab", weights, inputs)
        scores = logits if greedy else logits + jax.random.gumbel(key, logits.shape)
        return jax.nn.one_hot(scores.argmax(1), logits.shape[1], axis=1)

    def act(self, key, policies, observation, role=None, greedy=False):
        return self.sample(key, policies[..., None], observation, greedy)

    def updates(self, episodes):
        if episodes < 2 * self.config.pairs:
            raise InputError(f"episodes {episodes} are fewer than {2 * self.config.pairs}")
        return episodes // (2 * self.config.pairs)

    def episodes(self, updates):
        return updates * 2 * self.config.pairs
