"""Settings that go together: the paper's, a laptop's, and a test's."""

from dataclasses import dataclass, field, replace
from typing import Literal

from epcx import games
from epcx.learners import Hyperparameters
from epcx.training import Training, plan

Preset = Literal["paper", "quick", "smoke"]
Budget = Literal["lineage", "total"]


@dataclass(frozen=True)
class Schedule:
    """A curriculum of one game."""

    populations: tuple[str, ...]
    sets: int
    episodes: int
    stage_episodes: int
    matches: int | None = None
    initial_matches: int | None = None
    fitness_episodes: int = 2_000
    fitness_rounds: int | None = None
    hyper: Hyperparameters = field(default_factory=Hyperparameters)


# Appendix B. It does not say how long Predator-prey was trained: as Grassland, which is its kin.
PAPER = {
    "grassland": Schedule(("3-2", "6-4", "12-8", "24-16"), 2, 100_000, 50_000),
    "adversarial-battle": Schedule(("4-4", "8-8", "16-16"), 2, 50_000, 20_000),
    "food-collection": Schedule(("3", "6", "12", "24"), 3, 50_000, 20_000),
    "predator-prey": Schedule(("3-2", "6-4", "12-8"), 2, 100_000, 50_000),
}

# Smaller batches, twice as often: what a laptop learns most from in a minute.
LAPTOP = Hyperparameters(batch=128, replay=100_000, steps_per_update=2, warm_up=2_500)
QUICK = {
    "grassland": Schedule(("2-1", "4-2", "8-4"), 2, 3_600, 500, 3, 8, hyper=LAPTOP),
    "adversarial-battle": Schedule(("2-2", "4-4", "8-8"), 2, 3_600, 500, 3, 8, hyper=LAPTOP),
    "food-collection": Schedule(("2", "4", "8"), 2, 3_600, 500, 3, 8, hyper=LAPTOP),
    "predator-prey": Schedule(("2-1", "4-2", "8-4"), 2, 3_600, 500, 3, 8, hyper=LAPTOP),
}

TINY = Hyperparameters(batch=16, replay=400, warm_up=100, worlds=4, steps_per_update=5)
SMOKE = {
    name: Schedule(populations, 2, 40, 30, 3, None, 20, 2, TINY)
    for name, populations in {
        "grassland": ("1-1", "2-2", "4-4"),
        "adversarial-battle": ("1-1", "2-2", "4-4"),
        "food-collection": ("1", "2", "4"),
        "predator-prey": ("1-1", "2-2", "4-4"),
    }.items()
}

PRESETS = {"paper": PAPER, "quick": QUICK, "smoke": SMOKE}


def make(
    game: str,
    method: str = "epc",
    preset: Preset = "paper",
    population: tuple[str, ...] = (),
    budget: Budget = "lineage",
) -> Training:
    """The settings of a preset, for one game and method.

    Methods without a curriculum train at one population, and get as many episodes as EPC has
    accumulated there: along one lineage, or in all its matches together.
    """
    games.make(game)  # refuses names that it does not know
    schedule = PRESETS[preset][game]
    wanted = Training(
        game=game,
        method=method,
        population=population or schedule.populations,
        episodes=schedule.episodes,
        stage_episodes=schedule.stage_episodes,
        sets=schedule.sets if method == "epc" else 1,
        matches=schedule.matches,
        initial_matches=schedule.initial_matches if method == "epc" else None,
        fitness_episodes=schedule.fitness_episodes,
        fitness_rounds=schedule.fitness_rounds,
        hyper=schedule.hyper,
    )
    if wanted.grows:
        return wanted
    evolving = make(game, "epc", preset)
    return replace(
        wanted,
        population=population or schedule.populations[:1],
        episodes=accumulated(evolving, population or schedule.populations[:1], budget),
        matches=None,
        initial_matches=None,
    )


def accumulated(evolving: Training, population: tuple[str, ...], budget: Budget) -> int:
    """Episodes that EPC has taken at the end of the first stage with so many agents, or more."""
    size = games.Population.parse(population[0]).total
    rows = plan(evolving)
    smaller = sum(games.Population.parse(row.population).total < size for row in rows)
    return sum(
        evolving.episodes_at(number) * (row.matches if budget == "total" else 1)
        for number, row in enumerate(rows[: smaller + 1])
    )
