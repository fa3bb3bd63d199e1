"""What a training is asked to do: everything that decides its outcome."""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import tyro

from epcx import games, learners
from epcx.engines.devices import in_words
from epcx.engines.local import LocalEngine
from epcx.engines.work import Site
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evolution.curriculum import Curriculum, Stage
from epcx.evolution.mix_and_match import number_of_mixtures, parents_needed
from epcx.games import Game
from epcx.learners import MADDPG, Hyperparameters
from epcx.learners.replay import replay_bytes
from epcx.runs.run import Run

METHODS = {  # and the learner behind each
    "epc": "att-maddpg",
    "vanilla-pc": "att-maddpg",
    **{method: method for method in learners.METHODS},
}
GROWING = ("epc", "vanilla-pc")
MAX_MATCHES = 10_000
MAX_SETS = 100
MAX_SNAPSHOTS = 1000
MAX_EPISODES = 10**9


@dataclass(frozen=True)
class Training:
    """A game, a method, and how long and how wide it trains."""

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """A game (see `epcx games`)."""

    method: str = "epc"
    """epc (the curriculum with evolution), vanilla-pc (without), or from scratch: att-maddpg
    (attention networks), maddpg, mean-field."""

    population: tuple[str, ...] = ()
    """How many agents each role has, such as 3-2: one for each stage of a curriculum."""

    episodes: int = 50_000
    """Episodes per match, the warm-up included: of the first stage of a curriculum, or of all."""

    stage_episodes: int = 20_000
    """Episodes per match in each later stage of a curriculum."""

    sets: int = 2
    """K: parallel agent sets of each role that go from one stage to the next."""

    matches: int | None = None
    """C: mixtures that are trained in each later stage, by default all; from scratch, the matches
    that train side by side, by default one."""

    initial_matches: int | None = None
    """Matches in the first stage of a curriculum; by default as many as sets."""

    fitness_episodes: int = 2_000
    """Episodes of each game that is played for the fitness."""

    fitness_rounds: int | None = None
    """Games of each agent set against those of the other roles; by default all pairings."""

    shaped_fitness: bool = False
    """Count the shaping in the fitness, as the authors do."""

    snapshots: int = 0
    """Keep all policies this many times, and once at the start, in the second stage of a curriculum
    or in training from scratch: for curves against fixed opponents."""

    seed: int = 0
    """Fixes everything: the same seed gives the same weights."""

    hyper: Annotated[Hyperparameters, tyro.conf.arg(name="")] = field(
        default_factory=Hyperparameters
    )

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(
                f"unknown method {self.method!r}: the methods are {', '.join(METHODS)}"
            )
        whole_number("episodes", self.episodes, 1, MAX_EPISODES)
        whole_number("stage-episodes", self.stage_episodes, 1, MAX_EPISODES)
        whole_number("sets", self.sets, 1, MAX_SETS)
        if self.matches is not None:
            whole_number("matches", self.matches, 1, MAX_MATCHES)
        if self.initial_matches is not None:
            whole_number("initial-matches", self.initial_matches, 1, MAX_MATCHES)
        if self.fitness_rounds is not None:
            whole_number("fitness-rounds", self.fitness_rounds, 1)
        whole_number("fitness-episodes", self.fitness_episodes, 1, MAX_EPISODES)
        whole_number("snapshots", self.snapshots, 0, MAX_SNAPSHOTS)
        whole_number("seed", self.seed, 0, MAX_SEED)

    @property
    def grows(self) -> bool:
        return self.method in GROWING

    def check(self) -> None:
        """Whether the settings go together."""
        if self.method == "vanilla-pc" and self.sets != 1:
            raise InputError(f"sets {self.sets} do not go with vanilla-pc, which has 1: use epc")
        if not self.grows and len(self.population) > 1:
            shown = " ".join(self.population)
            raise InputError(
                f"population {shown}: {self.method} trains at one population, from scratch"
            )
        for name, number in (("matches", self.matches), ("initial-matches", self.initial_matches)):
            if self.grows and number is not None and number < self.sets:
                raise InputError(
                    f"{name} {number} are fewer than the {self.sets} sets to select from them"
                )
        for before, after in zip(self.games, self.games[1:], strict=False):
            old, new = before.population, after.population
            grown = [a >= b for a, b in zip(new.counts, old.counts, strict=True)]
            if not all(grown) or new == old:
                raise InputError(f"population {new} after {old} does not grow")

    @property
    def games(self) -> list[Game]:
        """The game at each stage."""
        first = games.make(self.game)
        chosen = self.population or (first.stages if self.grows else first.stages[:1])
        return [games.make(self.game, population) for population in chosen]

    def learner(self, game: Game) -> MADDPG:
        return learners.make(METHODS[self.method], game, self.hyper)

    def curriculum(self) -> Curriculum:
        """The stages; training from scratch is a single one, without selection."""
        self.check()
        if self.grows:
            first, later = self.initial_matches or self.sets, self.matches
        else:
            first, later = self.matches or 1, None
        stages = tuple(
            Stage(number, game, later if number else first, self.episodes_at(number))
            for number, game in enumerate(self.games)
        )
        for stage in stages:
            self.learner(stage.game).updates(stage.episodes)
        return Curriculum(stages, self.sets if self.grows else None, self.seed, self.fitness_rounds)

    def episodes_at(self, stage: int) -> int:
        return self.stage_episodes if stage else self.episodes

    def config(self) -> dict[str, Any]:
        """As JSON has it, with the populations spelt out."""
        chosen = [str(game.population) for game in self.games]
        return {**asdict(self), "population": chosen}

    @classmethod
    def of(cls, run: Run) -> "Training":
        """What a run was asked for."""
        try:
            hyper = Hyperparameters(**run.setting("hyper"))
            population = tuple(str(name) for name in run.setting("population"))
            return cls(**{**run.settings, "hyper": hyper, "population": population})
        except TypeError:
            raise InputError(
                f"{run.path} is damaged, or of another version: unknown settings"
            ) from None


@dataclass(frozen=True)
class PlannedStage:
    """What a stage will take."""

    population: str
    matches: int
    episodes: int  # per match
    updates: int  # per match
    replay_bytes: int  # of all matches
    fitness_games: int


def plan(training: Training) -> list[PlannedStage]:
    """The stages to come, if no match diverges."""
    curriculum = training.curriculum()
    rows, before = [], None
    for stage in curriculum.stages:
        matches = most = stage.matches
        if before is not None:
            counts = zip(before.population.counts, stage.game.population.counts, strict=True)
            total = number_of_mixtures(training.sets, [parents_needed(*two) for two in counts])
            matches = total if most is None else min(most, total)
        assert matches is not None
        learner = training.learner(stage.game)
        hyper = training.hyper
        rows.append(
            PlannedStage(
                population=str(stage),
                matches=matches,
                episodes=learner.episodes(learner.updates(stage.episodes)),
                updates=learner.updates(stage.episodes),
                replay_bytes=matches * replay_bytes(stage.game, hyper.worlds, hyper.replay),
                fitness_games=fitness_games(curriculum, matches, len(stage.game.roles)),
            )
        )
        before = stage.game
    return rows


def fitness_games(curriculum: Curriculum, matches: int, roles: int) -> int:
    if curriculum.sets is None:
        return 0
    rounds = matches ** (roles - 1)
    return matches * min(rounds, curriculum.rounds or rounds)


def check_memory(training: Training, site: Site) -> None:
    """Refuses what would not fit in a later stage, before the first begins."""
    for stage, planned in zip(training.curriculum().stages, plan(training), strict=True):
        learner = training.learner(stage.game)
        site.check_memory(learner, planned.matches, partial(advice, training, stage))


def advice(training: Training, stage: Stage, engine: LocalEngine) -> str:
    """The options that would make the replay fit."""
    share = 0.8 * engine.free / engine.bytes
    fewer = int(engine.matches * share)
    name = "initial-matches" if training.grows and not stage.number else "matches"
    options = [f"--{name} {fewer} or fewer"] if fewer else []
    smaller = int(training.hyper.replay * share) // 1000 * 1000
    if smaller >= training.hyper.batch:
        less = replace(training, hyper=replace(training.hyper, replay=smaller))
        needed = LocalEngine(less.learner(stage.game), engine.matches, engine.devices).bytes
        if needed <= engine.free:
            options.insert(0, f"--replay {smaller} or less")
    return f"at {stage} use " + (", or ".join(options) or "fewer worlds, or fewer agents")


def describe_plan(rows: list[PlannedStage]) -> dict[str, Any]:
    """The plan as JSON, with what it adds up to."""
    return {
        "stages": [asdict(row) for row in rows],
        "episodes_along_a_lineage": sum(row.episodes for row in rows),
        "episodes_in_total": sum(row.episodes * row.matches for row in rows),
        "updates_in_total": sum(row.updates * row.matches for row in rows),
        "most_replay": in_words(max(row.replay_bytes for row in rows)),
    }
