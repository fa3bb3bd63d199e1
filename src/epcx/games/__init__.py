"""The worlds. `make("grassland", "3-2")` gives a game; its methods are pure functions."""

import dataclasses
from typing import Any

from epcx.errors import InputError, choice
from epcx.games import game
from epcx.games.adversarial_battle import AdversarialBattle
from epcx.games.food_collection import FoodCollection
from epcx.games.frames import Frame
from epcx.games.game import (
    Entities,
    Game,
    Observation,
    Outcome,
    Population,
    Role,
    Scene,
    World,
    options_of,
)
from epcx.games.grassland import Grassland
from epcx.games.neighbours import keep_nearest
from epcx.games.particle import Density, ParticleGame, ParticleRole, ParticleWorld
from epcx.games.predator_prey import PredatorPrey
from epcx.registry import Registry

REGISTRY = Registry("game", Game, "epcx.games", game.check)
find, names, register = REGISTRY.find, REGISTRY.names, REGISTRY.register

for _game in (Grassland, AdversarialBattle, FoodCollection, PredatorPrey):
    register(_game)

__all__ = [
    "AdversarialBattle",
    "Density",
    "Entities",
    "FoodCollection",
    "Frame",
    "Game",
    "Grassland",
    "Observation",
    "Outcome",
    "ParticleGame",
    "ParticleRole",
    "ParticleWorld",
    "Population",
    "PredatorPrey",
    "Role",
    "Scene",
    "World",
    "find",
    "keep_nearest",
    "make",
    "names",
    "options_of",
    "register",
]


def make(
    name: str | type[Game],
    population: str | int | Population | None = None,
    density: Density = "paper",
    **options: Any,
) -> Game:
    """A game at a population, by default the first of its stages.

    `name` is a known name (`epcx games`), "package.module:Class", or a class. With the density
    "constant" the world grows with the population, beyond the last of the stages. Options are the
    game's own, such as `food` and `world_size` in particle games.
    """
    cls = find(name)
    choice("density", density, Density)
    allowed = [field.name for field in dataclasses.fields(cls) if field.name != "population"]
    if density != "paper":
        if "density" not in allowed:
            raise InputError(
                f"density {density} does not go with {cls.name}, whose worlds do not grow: use "
                "paper"
            )
        options["density"] = density
    for option in options:
        if option not in allowed:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise InputError(f"{cls.name} has no option {option!r}: {takes}")
    return cls(Population.parse(cls.stages[0] if population is None else population), **options)
