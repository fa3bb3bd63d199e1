"""Settings that go together: the paper's, better ones, a laptop's, and a test's."""

from dataclasses import replace
from typing import Literal

from epcx import games
from epcx.learners import Hyperparameters
from epcx.training import Training, plan

Preset = Literal["paper", "best", "quick", "smoke"]
Budget = Literal["lineage", "total"]


BETTER = Hyperparameters(learning_rate=0.003)
LAPTOP = Hyperparameters(batch=128, replay=100_000, steps_per_update=2, warm_up=2_500)
TINY = Hyperparameters(batch=16, replay=400, warm_up=100, worlds=4, steps_per_update=5)

# What differs from game to game; a game that is not here gets the defaults of `curriculum`.
# Appendix B does not say how long Predator-prey was trained: as Grassland, which is its kin.
SETS = {"food-collection": 3}
EPISODES = {"grassland": (100_000, 50_000), "predator-prey": (100_000, 50_000)}
FEWER_HUNTERS = ("2-1", "4-2", "8-4")
QUICK_POPULATIONS = {"grassland": FEWER_HUNTERS, "predator-prey": FEWER_HUNTERS}


def curriculum(name: str, preset: Preset) -> Training:
    """EPC in one game."""
    game = type(games.make(name))

    def of_each(*counts: int) -> tuple[str, ...]:
        return tuple("-".join([str(count)] * len(game.roles)) for count in counts)

    if preset in ("paper", "best"):
        episodes, stage_episodes = EPISODES.get(name, (50_000, 20_000))
        return Training(
            name,
            population=game.stages,
            episodes=episodes,
            stage_episodes=stage_episodes,
            sets=SETS.get(name, 2),
            hyper=BETTER if preset == "best" else Hyperparameters(),
        )
    if preset == "quick":
        return Training(
            name,
            population=QUICK_POPULATIONS.get(name, of_each(2, 4, 8)),
            episodes=3_600,
            stage_episodes=500,
            matches=3,
            initial_matches=8,
            hyper=LAPTOP,
        )
    return Training(
        name,
        population=of_each(1, 2, 4),
        episodes=40,
        stage_episodes=30,
        matches=3,
        fitness_episodes=20,
        fitness_rounds=2,
        hyper=TINY,
    )


def make(
    game: str,
    method: str = "epc",
    preset: Preset = "paper",
    population: tuple[str, ...] = (),
    budget: Budget = "lineage",
    stages: tuple[str, ...] = (),
) -> Training:
    """The settings of a preset, for one game and method.

    Methods without a curriculum train at one population, and get as many episodes as EPC has
    accumulated there: along one lineage, or in all its matches together. `stages` are those of
    EPC, by default the preset's.
    """
    evolving = curriculum(game, preset)
    evolving = replace(evolving, population=stages or evolving.population)
    if method == "epc":
        return replace(evolving, population=population or evolving.population)
    wanted = replace(evolving, method=method, sets=1, initial_matches=None)
    if wanted.grows:
        return replace(wanted, population=population or evolving.population)
    only = population or evolving.population[:1]
    episodes = accumulated(evolving, only, budget)
    return replace(wanted, population=only, episodes=episodes, matches=None)


def accumulated(evolving: Training, population: tuple[str, ...], budget: Budget) -> int:
    """Episodes that EPC has taken at the end of the first stage with so many agents, or more."""
    size = games.Population.parse(population[0]).total
    rows = plan(evolving)
    smaller = sum(games.Population.parse(row.population).total < size for row in rows)
    return sum(
        evolving.episodes_at(number) * (row.matches if budget == "total" else 1)
        for number, row in enumerate(rows[: smaller + 1])
    )
