"""The worlds. `make("grassland", "3-2")` gives a game; its methods are pure functions."""

import dataclasses
from typing import Any

from epcx.errors import InputError
from epcx.games.adversarial_battle import AdversarialBattle
from epcx.games.food_collection import FoodCollection
from epcx.games.game import NUM_ACTIONS, Game
from epcx.games.grassland import Grassland
from epcx.games.predator_prey import PredatorPrey
from epcx.games.world import (
    Entities,
    EntityType,
    Events,
    Observation,
    Outcome,
    Population,
    Role,
    Verdict,
    World,
)

GAMES: dict[str, type[Game]] = {
    game.name: game for game in (Grassland, AdversarialBattle, FoodCollection, PredatorPrey)
}

__all__ = [
    "GAMES",
    "NUM_ACTIONS",
    "AdversarialBattle",
    "Entities",
    "EntityType",
    "Events",
    "FoodCollection",
    "Game",
    "Grassland",
    "Observation",
    "Outcome",
    "Population",
    "PredatorPrey",
    "Role",
    "Verdict",
    "World",
    "make",
]


def make(name: str, population: str | int | Population | None = None, **options: Any) -> Game:
    """The game `name` at a population (by default the first of the paper).

    Options: `food` (number of pellets), `world_size` (half the side of the square), and
    `obstacles` in predator-prey.
    """
    if not isinstance(name, str) or name not in GAMES:
        raise InputError(f"unknown game {name!r}: the games are {', '.join(GAMES)}")
    game = GAMES[name]
    allowed = [field.name for field in dataclasses.fields(game) if field.name != "population"]
    for option in options:
        if option not in allowed:
            raise InputError(f"{name} has no option {option!r}: it takes {', '.join(allowed)}")
    if population is None:
        population = game.stages[0]
    return game(Population.parse(population), **options)
