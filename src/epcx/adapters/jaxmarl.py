"""A game as a JaxMARL environment: `JaxMARLGame("grassland", "3-2")`, for JaxMARL's wrappers."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from epcx.adapters import agent_events, choose
from epcx.games import Game, Population

QUIET = io.StringIO()

try:
    # JaxMARL prints while it is imported, after setting the streams to sys.__stdout__ and
    # sys.__stderr__, which takes them away from notebooks and tests: they get them back here.
    with (
        redirect_stdout(QUIET),
        redirect_stderr(sys.stderr),
        patch.object(sys, "__stdout__", QUIET),
    ):
        from flax import struct
        from jaxmarl.environments.multi_agent_env import MultiAgentEnv, State
        from jaxmarl.environments.spaces import Box, Discrete
except ImportError as error:
    raise ImportError(
        'epcx.adapters.jaxmarl needs JaxMARL: install it with pip install "epcx[adapters]"'
    ) from error


@struct.dataclass
class GameState(State):
    """JaxMARL's `done` [agents] and `step` [], and the world. Trees of other leaves occur too."""

    done: Any
    step: Any
    world: Any


class JaxMARLGame(MultiAgentEnv):
    """A ready Game, or the one that `games.make(game, population, **options)` gives.

    Actions are numbers (in particle games none, +x, -x, +y, -y), or (`continuous`) a weight from 0
    to 1 for each.
    Rewards include the shaping unless `shaping` is off; `horizon` is the time limit in steps.
    Everybody is done at the time limit, as everywhere in JaxMARL; infos [agents] tell them apart.
    """

    def __init__(
        self,
        game: str | type[Game] | Game,
        population: str | int | Population | None = None,
        *,
        actions: Literal["discrete", "continuous"] = "discrete",
        shaping: bool = True,
        horizon: int | None = None,
        **options: Any,
    ) -> None:
        self.game, self.horizon = choose(game, population, actions, horizon, options)
        super().__init__(self.game.num_agents)
        self.continuous, self.shaping = actions == "continuous", shaping
        self.agents = list(self.game.agent_names)
        self.observation_spaces = {
            name: Box(-jnp.inf, jnp.inf, (self.game.flat_width,)) for name in self.agents
        }
        self.action_spaces = {
            name: Box(0.0, 1.0, (count,)) if self.continuous else Discrete(int(count))
            for name, count in zip(self.agents, self.game.action_mask.sum(1).tolist(), strict=True)
        }
        self._events = agent_events(self.game)

    @property
    def name(self) -> str:
        return self.game.name

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """The agents of each role."""
        return {role: self.agents[members] for role, members in self.game.members.items()}

    @partial(jax.jit, static_argnums=0)
    def reset(self, key: PRNGKeyArray) -> tuple[dict[str, Array], GameState]:
        world = self.game.reset(key)
        state = GameState(done=~self.game.alive(world), step=jnp.zeros((), jnp.int32), world=world)
        return self.get_obs(state), state

    def step_env(  # type: ignore[override]
        self, key: PRNGKeyArray, state: GameState, actions: dict[str, Array]
    ) -> tuple[dict[str, Array], GameState, dict[str, Array], dict[str, Array], dict[str, Array]]:
        """One step without the reset that `step` adds when `dones["__all__"]`."""
        chosen = jnp.stack([jnp.asarray(actions[name]) for name in self.agents])
        if not self.continuous:
            if chosen.ndim == 2 and chosen.shape[1] == 1:  # as JaxMARL's baselines hand them
                chosen = chosen[:, 0]
            counts = self.game.action_mask.sum(1)
            known = (chosen >= 0) & (chosen < counts) & (chosen == jnp.floor(chosen))
            one_hot = jax.nn.one_hot(chosen, self.game.num_actions)
            chosen = jnp.where(known[:, None], one_hot, jnp.nan)  # not an action: ignored
        world, outcome = self.game.step(key, state.world, chosen)
        step = state.step + 1
        out_of_time = step >= self.horizon
        done = outcome.done | out_of_time
        reward = outcome.reward + outcome.shaping if self.shaping else outcome.reward
        infos = {
            "reward": outcome.reward,
            "shaping": outcome.shaping,
            **{name: getattr(outcome.events, name) for name in self._events},
            "truncated": out_of_time & ~outcome.done,
        }
        state = GameState(done=done, step=step, world=world)
        dones = self._by_agent(done) | {"__all__": done.all()}
        return self.get_obs(state), state, self._by_agent(reward), dones, infos

    def get_obs(self, state: GameState) -> dict[str, Array]:  # type: ignore[override]
        """`Game.observe_flat`, by agent."""
        return self._by_agent(self.game.observe_flat(state.world))

    @partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: GameState) -> dict[str, Array]:
        """All of the role's, always: the rules ignore what the dead do."""
        return self._by_agent(jnp.asarray(self.game.action_mask))

    def _by_agent(self, values: Array) -> dict[str, Array]:
        """An array [agents, ...] as JaxMARL's dictionary."""
        return dict(zip(self.agents, values, strict=True))
