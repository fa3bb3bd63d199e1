"""A game and a learner as others may write them: outside the package, unaware of devices.

Agents walk on a line. Weights move at random, so that what becomes of them shows which random
numbers were used.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from epcx.games import Game, Observation, Outcome, Role
from epcx.learners import Learner


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Line:
    place: jax.Array


class Events(NamedTuple):
    moved: jax.Array
    furthest: jax.Array


@dataclass(frozen=True)
class Walk(Game):
    name = "walk"
    roles = (Role("walker", 3),)
    stages = ("2",)
    horizon = 4
    statistics = {"moved": "steps taken"}
    final_statistics = {"furthest": "distance of the furthest walker"}

    def reset(self, key):
        return Line(jax.random.normal(key, (self.num_agents,)))

    def step(self, key, world, actions):
        step = actions @ jnp.array([0.0, -1.0, 1.0])
        place = world.place + step + 0.1 * jax.random.normal(key, step.shape)
        events = Events(step != 0, jnp.abs(place).max())
        done = jnp.zeros(self.num_agents, bool)
        return Line(place), Outcome(-jnp.abs(place), jnp.zeros_like(place), done, events)

    def observe(self, world):
        return Observation(world.place[:, None], {})


@dataclass(frozen=True)
class Options:
    step: float = 0.1


class Walker(eqx.Module):
    logits: jax.Array


class State(eqx.Module):
    agents: Walker
    key: jax.Array


@dataclass(frozen=True)
class RandomSearch(Learner):
    game: Game
    config: Options

    name = "random-search"
    Config = Options

    def init(self, key):
        return Walker(jax.random.normal(key, (self.game.num_agents, self.game.num_actions)))

    def start(self, key, agents):
        return State(agents, key)

    def advance(self, state, updates):
        def update(_, state):
            key, noise = jax.random.split(state.key)
            step = self.config.step * jax.random.normal(noise, state.agents.logits.shape)
            return State(Walker(state.agents.logits + step), key)

        zeros = jnp.zeros(self.game.num_agents)
        return jax.lax.fori_loop(0, updates, update, state), {"reward": zeros, "shaping": zeros}

    def act(self, key, policies, observation, role=None):
        agents, _, batch = observation.own.shape
        noise = jax.random.gumbel(key, (agents, self.game.num_actions, batch))
        choice = (policies.logits[:, :, None] + noise).argmax(1)
        return jax.nn.one_hot(choice, self.game.num_actions, axis=1)

    def updates(self, episodes):
        return episodes

    def episodes(self, updates):
        return updates
