"""The games behind other people's interfaces: PettingZoo and JaxMARL."""

from typing import Any

import jax
import jax.numpy as jnp

from epcx import games
from epcx.errors import InputError, whole_number
from epcx.games import Game, Population

ACTION_KINDS = ("discrete", "continuous")
RENDER_MODES = ("human", "rgb_array")
FRAMES_PER_SECOND = 10  # a frame is a step


def choose(
    game: str | type[Game] | Game,
    population: str | int | Population | None,
    actions: str,
    horizon: int | None,
    options: dict[str, Any],
) -> tuple[Game, int]:
    """The game that an adapter was asked for, and the length of its episodes."""
    if actions not in ACTION_KINDS:
        raise InputError(f"actions {actions!r} is unknown: choose {' or '.join(ACTION_KINDS)}")
    if not isinstance(game, Game):
        game = games.make(game, population, **options)
    elif population is not None or options:
        raise InputError(f"{game.name} is a ready game: it takes no population and no options")
    if actions == "continuous" and not game.soft_actions:
        raise InputError(f"actions of {game.name} cannot be continuous: choose discrete")
    return game, game.horizon if horizon is None else whole_number("horizon", horizon, 1)


def agent_events(game: Game) -> tuple[str, ...]:
    """The events of a game that are a number for each agent."""

    def events() -> Any:
        key = jax.random.key(0)
        actions = jnp.zeros((game.num_agents, game.num_actions))
        return game.step(key, game.reset(key), actions)[1].events

    found = jax.eval_shape(events)
    names = getattr(found, "_fields", getattr(found, "__dict__", ()))
    shapes = {name: getattr(getattr(found, name), "shape", None) for name in names}
    return tuple(name for name, shape in shapes.items() if shape == (game.num_agents,))
