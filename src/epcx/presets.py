"""Settings that go together: the paper's, better ones, a laptop's, and a test's.

Populations, episodes and sets are here; what a learner needs is in its own `presets`.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

from epcx import games, learners, methods
from epcx.config import TrainConfig
from epcx.errors import InputError
from epcx.games import Game, Population

Preset = Literal["paper", "best", "quick", "smoke"]
Budget = Literal["lineage", "total"]

# What differs from game to game; a game that is not here gets the defaults below.
# Appendix B does not say how long Predator-prey was trained: as Grassland, which is like it.
SETS = {"food-collection": 3}
EPISODES = {"grassland": (100_000, 50_000), "predator-prey": (100_000, 50_000)}
QUICK_POPULATIONS = {
    "grassland": ("2-1", "4-2", "8-4"),
    "predator-prey": ("2-1", "4-2", "8-4"),
    "adversarial-battle": ("2-2", "4-4", "8-8"),
    "food-collection": ("2", "4", "8"),
}


def schedule(game: type[Game], preset: Preset) -> dict[str, Any]:
    """Populations, episodes and numbers of matches of EPC in one game."""
    if preset in ("paper", "best"):
        episodes, stage_episodes = EPISODES.get(game.name, (50_000, 20_000))
        return {
            "population": game.stages,
            "episodes": episodes,
            "stage_episodes": stage_episodes,
            "sets": SETS.get(game.name, 2),
        }
    if preset == "quick":
        return {
            "population": QUICK_POPULATIONS.get(game.name, game.stages),
            "episodes": 3_600,
            "stage_episodes": 500,
            "matches": 3,
            "initial_matches": 8,
        }
    return {
        "population": tuple("-".join([count] * len(game.roles)) for count in ("1", "2", "4")),
        "episodes": 40,
        "stage_episodes": 30,
        "matches": 3,
        "fitness_episodes": 20,
        "fitness_rounds": 2,
    }


def make_config(
    game: str | type[Game],
    method: str = "epc",
    preset: Preset = "paper",
    population: tuple[str, ...] = (),
    budget: Budget = "lineage",
    stages: tuple[str, ...] = (),
    learner: str | None = None,
) -> TrainConfig:
    """The settings of a preset, for one game and method.

    Methods without a curriculum train at one population, and get as many episodes as EPC has
    accumulated there: along one lineage, or in all its matches together. `stages` are those of
    EPC, by default the preset's.
    """
    if preset not in get_args(Preset):
        raise InputError(f"unknown preset {preset!r}: there are {', '.join(get_args(Preset))}")
    cls = games.find(game)
    kind = methods.find(method)
    algorithm = learners.find(learner or kind.learner or methods.DEFAULT_LEARNER)
    defaults = algorithm.presets.get(preset, algorithm.Config())
    evolving = TrainConfig(
        games.make(cls).reference,
        learner=learners.full_name(algorithm),
        learner_config=defaults,
        **schedule(cls, preset),
    )
    evolving = replace(evolving, population=stages or evolving.population)
    if kind.evolves:
        return replace(evolving, method=method, population=population or evolving.population)
    methods.check_learner(method, evolving.learner)
    wanted = replace(
        evolving,
        method=method,
        sets=1,
        initial_matches=None,
        learner_config=replace(defaults, **kind.options),
    )
    if kind.grows:
        return replace(wanted, population=population or evolving.population)
    only = population or evolving.population[:1]
    episodes = accumulated(evolving, only[0], budget)
    return replace(wanted, population=only, episodes=episodes, matches=None)


def accumulated(evolving: TrainConfig, population: str, budget: Budget) -> int:
    """Episodes of EPC up to the first stage with at least as many agents as `population`."""
    size = Population.parse(population).total
    smaller = sum(game.population.total < size for game in evolving.games)
    counts = evolving.stage_matches if budget == "total" else [1] * len(evolving.games)
    return sum(
        evolving.episodes_at(stage) * matches for stage, matches in enumerate(counts[: smaller + 1])
    )
