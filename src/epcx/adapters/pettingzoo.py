"""A game as a PettingZoo parallel environment: `parallel_env("grassland", "3-2")`.

Agents that are done leave `agents` in that step; the time limit truncates the others. The step is
compiled once per game, and one transfer per step brings the results to numpy.
"""

import operator
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from epcx.adapters import FRAMES_PER_SECOND, RENDER_MODES, agent_events, choose
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.games import Game, Outcome, Population, World

if TYPE_CHECKING:
    from epcx.adapters.rendering import Renderer

try:
    from gymnasium import logger
    from gymnasium.spaces import Box, Discrete, Space
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError(
        'epcx.adapters.pettingzoo needs PettingZoo: install it with pip install "epcx[adapters]"'
    ) from error

SLACK = 1e-6  # by which rounding may carry a continuous action out of its box


def parallel_env(
    game: str | type[Game] | Game,
    population: str | int | Population | None = None,
    *,
    actions: Literal["discrete", "continuous"] = "discrete",
    shaping: bool = True,
    horizon: int | None = None,
    render_mode: Literal["human", "rgb_array"] | None = None,
    **options: Any,
) -> "ParallelGame":
    """A ready Game, or the one that `games.make(game, population, **options)` gives.

    Actions are numbers (in particle games none, +x, -x, +y, -y), or (`continuous`) a weight from 0
    to 1 for each.
    Rewards include the shaping unless `shaping` is off; `horizon` is the time limit in steps.
    `render_mode` is for `render`: "rgb_array" returns images, "human" shows them in a notebook.
    """
    chosen, steps = choose(game, population, actions, horizon, options)
    return ParallelGame(chosen, actions == "continuous", shaping, steps, render_mode)


class ParallelGame(ParallelEnv[str, np.ndarray, Any]):
    """Observations are `Game.observe_flat`; `state` is the whole world as one vector.

    Every info holds reward (without shaping), shaping, and the events of the agent.
    """

    def __init__(
        self,
        game: Game,
        continuous: bool,
        shaping: bool,
        horizon: int,
        render_mode: str | None = None,
    ) -> None:
        self.game, self.continuous, self.shaping, self.horizon = game, continuous, shaping, horizon
        self.metadata = {
            "name": game.name,
            "render_modes": list(RENDER_MODES) if game.has_scene else [],
            "render_fps": FRAMES_PER_SECOND,
            "is_parallelizable": True,
        }
        self.render_mode = render_mode
        self._renderer = None if render_mode is None else make_renderer(game, render_mode)
        self.possible_agents = list(game.agent_names)
        self.agents: list[str] = []
        self.world: World | None = None
        self._slots = {name: i for i, name in enumerate(game.agent_names)}
        # A space of its own for each agent: each has its own random numbers.
        self.observation_spaces = {
            name: Box(-np.inf, np.inf, (game.flat_width,)) for name in self.possible_agents
        }
        self.action_spaces = {
            name: Box(0.0, 1.0, (count,)) if continuous else Discrete(count)
            for name, count in zip(
                self.possible_agents, game.action_mask.sum(1).tolist(), strict=True
            )
        }
        self._events = agent_events(game)
        # Shapes only: a computation here would start JAX, which does not survive a fork.
        size = sum(x.size for x in jax.tree.leaves(game.world_shapes))
        self.state_space = Box(-np.inf, np.inf, (size,))
        self._next: PRNGKeyArray | None = None  # of the next episode, if no seed is given
        self._episode: PRNGKeyArray | None = None
        self._steps = 0

    def observation_space(self, agent: str) -> Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        return self.action_spaces[agent]

    def reset(
        self, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """A new episode. A seed fixes it and those that follow; `options` are not used."""
        if seed is None and self._next is None:
            seed = secrets.randbelow(MAX_SEED + 1)
        if seed is not None:
            self._next = jax.random.key(whole_number("seed", seed, 0, MAX_SEED))
        self._next, self._episode, self.world, views = start(self.game, self._next)
        self.agents, self._steps = list(self.possible_agents), 0
        if self._renderer is not None:
            self._renderer.begin(self.world)
        observations = dict(zip(self.agents, np.array(views), strict=True))
        return observations, {name: {} for name in self.agents}

    def step(
        self, actions: Any
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """One step of everybody in `agents`, each of whom needs an action; of others it is ignored.

        When the episode is over, no actions have no results: wrappers step once more.
        """
        if self.world is not None and not self.agents and actions == {}:
            return {}, {}, {}, {}, {}
        weights = self._weights(actions)
        rendered = self._renderer is not None
        self.world, outcome, *results = play(
            self.game, self._events, rendered, self._episode, self._steps, self.world, weights
        )
        self._steps += 1
        views, numbers = map(np.array, jax.device_get(results))  # copies that may be written to
        done, reward, shaping, *counts = numbers.tolist()
        observations, rewards, terminations, truncations, infos = {}, {}, {}, {}, {}
        for name in self.agents:
            i = self._slots[name]
            observations[name] = views[i]
            rewards[name] = reward[i] + self.shaping * shaping[i]
            terminations[name] = bool(done[i])
            truncations[name] = not done[i] and self._steps >= self.horizon
            infos[name] = {"reward": reward[i], "shaping": shaping[i]} | {
                key: int(count[i]) if count[i].is_integer() else count[i]
                for key, count in zip(self._events, counts, strict=True)
            }
        self.agents = [
            name for name in self.agents if not (terminations[name] or truncations[name])
        ]
        if self._renderer is not None:
            self._renderer.add(self.world, outcome)
        return observations, rewards, terminations, truncations, infos

    def render(self) -> np.ndarray | None:
        """The world as an image [height, width, 3], or (`human`) shown in the notebook."""
        if self._renderer is None:
            logger.warn(
                f"{self.game.name} has no render mode: make it with render_mode="
                f"{' or '.join(map(repr, RENDER_MODES))}"
            )
            return None
        return self._renderer.render()

    def close(self) -> None:
        """The next picture in a notebook appears below its own cell."""
        if self._renderer is not None:
            self._renderer.close()

    def state(self) -> np.ndarray:
        """All arrays of the world, one after the other: positions, velocities, alive, food ..."""
        if self.world is None:
            raise InputError("there is no world yet: call reset first")
        leaves = jax.device_get(jax.tree.leaves(self.world))
        return np.concatenate([leaf.ravel() for leaf in leaves], dtype=np.float32)

    def _weights(self, actions: Any) -> Float[np.ndarray, "agents actions"]:
        """The actions as the game takes them; those who left take their first."""
        if not isinstance(actions, Mapping):
            raise InputError(f"actions must map agents to actions, not be {type(actions).__name__}")
        if not self.agents:
            raise InputError("the episode is over or has not begun: call reset")
        for name in actions.keys() - self._slots.keys():  # TorchRL acts for those who left, too
            raise InputError(
                f"agent {name!r} is not in {self.game.name}: only {', '.join(self.agents)} may act"
            )
        weights = np.zeros((len(self._slots), self.game.num_actions))
        weights[:, 0] = 1.0
        for name in self.agents:
            if name not in actions:
                raise InputError(f"agent {name!r} has no action: everybody in `agents` needs one")
            slot, read = self._slots[name], read_weights if self.continuous else read_choice
            available = int(self.game.action_mask[slot].sum())
            weights[slot, :available] = read(name, actions[name], available)
        outside = ~((weights >= -SLACK) & (weights <= 1 + SLACK)).all(1)  # so is NaN
        if outside.any():
            name = self.possible_agents[outside.argmax()]
            raise InputError(
                f"action {np.asarray(actions[name])} of {name!r} is not between 0 and 1 everywhere"
            )
        return weights.astype(np.float32)


def make_renderer(game: Game, mode: str) -> "Renderer":
    from epcx.adapters.rendering import Renderer  # what draws takes time to import

    return Renderer(game, mode)


def read_choice(name: str, action: Any, available: int) -> Float[np.ndarray, "actions"]:
    """The weights of a discrete action."""
    try:
        index = operator.index(action)
    except TypeError:
        index = -1
    if not 0 <= index < available:
        raise InputError(
            f"action {action!r} of {name!r} is not a whole number from 0 to {available - 1}"
        )
    return np.eye(available)[index]


def read_weights(name: str, action: Any, available: int) -> Shaped[np.ndarray, "actions"]:
    """The weights of a continuous action."""
    try:
        weights = np.asarray(action)
    except ValueError:
        raise InputError(f"action of {name!r} has rows of different lengths") from None
    if weights.shape != (available,) or weights.dtype.kind not in "fiu":
        raise InputError(
            f"action of {name!r} has shape {weights.shape} and type {weights.dtype}: it takes "
            f"{available} numbers"
        )
    return weights


@partial(jax.jit, static_argnums=0)
def start(game: Game, key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, World, Array]:
    """The key after this episode, the key of this episode, its world and all observations."""
    following, episode, world_key = jax.random.split(key, 3)
    world = game.reset(world_key)
    return following, episode, world, game.observe_flat(world)


@partial(jax.jit, static_argnums=(0, 1, 2))
def play(
    game: Game,
    events: tuple[str, ...],
    rendered: bool,
    episode: PRNGKeyArray,
    steps: Int[Array, ""] | int,
    world: World,
    actions: Float[Array, "agents actions"],
) -> tuple[World, Outcome | None, Float[Array, "agents width"], Float[Array, "numbers agents"]]:
    """The next world, the outcome if it is drawn, all observations, and in one array (arrays are
    slow to fetch) the numbers: done, reward, shaping and the events.
    """
    world, outcome = game.step(jax.random.fold_in(episode, steps), world, actions)
    numbers = [
        outcome.done,
        outcome.reward,
        outcome.shaping,
        *(getattr(outcome.events, name) for name in events),
    ]
    return (
        world,
        outcome if rendered else None,
        game.observe_flat(world),
        jnp.stack([x.astype(jnp.float32) for x in numbers]),
    )
