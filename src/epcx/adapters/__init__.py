"""The games behind other people's interfaces: PettingZoo and JaxMARL."""

from typing import Any

from epcx import games
from epcx.errors import InputError, whole_number
from epcx.games import Game, Population

ACTION_KINDS = ("discrete", "continuous")


def choose(
    game: str | Game,
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
    return game, game.horizon if horizon is None else whole_number("horizon", horizon, 1)
