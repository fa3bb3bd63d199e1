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


LAPTOP = Hyperparameters(batch=128, replay=100_000, steps_per_update=2, warm_up=2_500)
TINY = Hyperparameters(batch=16, replay=400, warm_up=100, worlds=4, steps_per_update=5)

# What differs from game to game; a game that is not here gets the defaults of `schedule`.
# Appendix B does not say how long Predator-prey was trained: as Grassland, which is its kin.
SETS = {"food-collection": 3}
EPISODES = {"grassland": (100_000, 50_000), "predator-prey": (100_000, 50_000)}
FEWER_HUNTERS = ("2-1", "4-2", "8-4")
QUICK_POPULATIONS = {"grassland": FEWER_HUNTERS, "predator-prey": FEWER_HUNTERS}


def schedule(game: type[games.Game], preset: Preset) -> Schedule:
    """The curriculum of a preset."""

    def of_each(*counts: int) -> tuple[str, ...]:
        return tuple("-".join([str(count)] * len(game.roles)) for count in counts)

    if preset == "paper":
        return Schedule(
            game.stages, SETS.get(game.name, 2), *EPISODES.get(game.name, (50_000, 20_000))
        )
    if preset == "quick":
        populations = QUICK_POPULATIONS.get(game.name, of_each(2, 4, 8))
        return Schedule(populations, 2, 3_600, 500, 3, 8, hyper=LAPTOP)
    return Schedule(of_each(1, 2, 4), 2, 40, 30, 3, None, 20, 2, TINY)


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
    chosen = schedule(type(games.make(game)), preset)
    wanted = Training(
        game=game,
        method=method,
        population=population or chosen.populations,
        episodes=chosen.episodes,
        stage_episodes=chosen.stage_episodes,
        sets=chosen.sets if method == "epc" else 1,
        matches=chosen.matches,
        initial_matches=chosen.initial_matches if method == "epc" else None,
        fitness_episodes=chosen.fitness_episodes,
        fitness_rounds=chosen.fitness_rounds,
        hyper=chosen.hyper,
    )
    if wanted.grows:
        return wanted
    evolving = make(game, "epc", preset)
    return replace(
        wanted,
        population=population or chosen.populations[:1],
        episodes=accumulated(evolving, population or chosen.populations[:1], budget),
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
