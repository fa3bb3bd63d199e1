"""Settings that go together: the paper's, better ones, hundreds of agents, a laptop's, a test's.

Populations, episodes and sets are here; what a learner needs is in its own `presets`.
"""

from dataclasses import asdict, replace
from typing import Any, Literal, get_args

from epcx import games, learners, methods
from epcx.config import TrainConfig
from epcx.errors import choice
from epcx.games import Game, ParticleGame, Population

Preset = Literal["paper", "best", "large", "quick", "smoke"]
DEFAULT: Preset = "paper"

# What differs from game to game; a game that is not here gets the defaults below.
# Appendix B does not say how long Predator-prey was trained: as Grassland, which is like it.
SETS = {"food-collection": 3}
EPISODES = {"grassland": (100_000, 50_000), "predator-prey": (100_000, 50_000)}
LARGE_STAGES = {  # each of twice as many agents as the one before
    "grassland": 8,
    "predator-prey": 6,
    "adversarial-battle": 7,
    "food-collection": 8,
}
LEARNERS = {"best": "mappo", "large": "mappo"}  # of methods that go with any
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
    if preset == "large":
        return {
            "population": doubled(game.stages[0], LARGE_STAGES.get(game.name, len(game.stages))),
            "episodes": EPISODES.get(game.name, (50_000, 20_000))[0],
            "stage_episodes": 10_000,
            "sets": 2,
            "matches": 3,
            "density": "constant" if issubclass(game, ParticleGame) else "paper",
        }
    if preset == "quick":
        return {
            "population": QUICK_POPULATIONS.get(game.name, game.stages),
            "episodes": 5_000,
            "stage_episodes": 1_000,
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


def doubled(first: str, stages: int) -> tuple[str, ...]:
    """A population and those that follow when all roles double again and again."""
    counts = Population.parse(first).counts
    return tuple(str(Population(tuple(n << i for n in counts))) for i in range(stages))


def make_config(
    game: str | type[Game],
    method: str = "epc",
    preset: Preset = DEFAULT,
    population: tuple[str, ...] = (),
    budget: methods.Budget = "lineage",
    stages: tuple[str, ...] = (),
    learner: str | None = None,
) -> TrainConfig:
    """The settings of a preset, for one game and method.

    Methods without a curriculum train at one population. A match of theirs has as many episodes
    as EPC has accumulated along a lineage at that population; with the budget `total` there are as
    many matches as EPC's episodes in total amount to, rounded up. `stages` are those of EPC, by
    default the preset's.
    """
    choice("preset", preset, Preset)
    cls = games.find(game)
    kind = methods.find(method)
    algorithm = learners.find(learner or default_learner(method, preset))
    defaults = algorithm.presets.get(preset, algorithm.Config())
    evolving = TrainConfig(
        games.make(cls).reference,
        learner=learners.full_name(algorithm),
        learner_config=defaults,
        **schedule(cls, preset),
    )
    evolving = replace(evolving, population=stages or evolving.population)
    if kind.evolves:
        wider = population or evolving.population
        return replace(evolving, method=method, budget=budget, population=wider)
    methods.check_learner(method, evolving.learner)
    wanted = replace(
        evolving,
        method=method,
        sets=1,
        initial_matches=None,
        learner_config=replace(defaults, **kind.options),
    )
    if kind.grows:
        return replace(wanted, budget=budget, population=population or evolving.population)
    only = population or evolving.population[:1]
    lineage, total = evolving.accumulated(only[0])
    wanted = replace(wanted, population=only, episodes=lineage, matches=None)
    if budget == "lineage":
        return wanted
    return replace(wanted, budget=budget, sets=evolving.sets, matches=-(-total // lineage))


def default_learner(method: str, preset: Preset = DEFAULT) -> str:
    """The method's own, or that of the preset."""
    return methods.find(method).learner or LEARNERS.get(preset, methods.DEFAULT_LEARNER)


def name_settings(config: TrainConfig) -> str:
    """What trainings by different methods must have in common to be compared: their learner's
    settings, by the name of a preset, or as what differs from the default ones."""
    own = methods.find(config.method).options
    algorithm = learners.find(config.learner)
    mine = {k: v for k, v in asdict(config.learner_config).items() if k not in own}

    def differences(other: Any) -> list[str]:
        values = asdict(other)
        return [f"{k.replace('_', '-')} {v}" for k, v in mine.items() if values[k] != v]

    for preset in get_args(Preset):
        if not differences(algorithm.presets.get(preset, algorithm.Config())):
            return f"preset {preset}"
    return ", ".join(differences(algorithm.Config()))
