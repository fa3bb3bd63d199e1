"""The settings of a training: everything that decides its outcome."""

from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Annotated, Any

from epcx import games, learners, methods
from epcx.errors import MAX_SEED, InputError, choice, whole_number
from epcx.evolution.curriculum import Curriculum, Stage
from epcx.evolution.mix_and_match import number_of_mixtures, parents_needed
from epcx.execution.devices import format_bytes
from epcx.execution.executor import Executor
from epcx.execution.match_trainer import MatchTrainer
from epcx.games import Density, Game, Population
from epcx.learners import Learner, ShardedLearner
from epcx.learners.learner import state_bytes
from epcx.options import Flatten, Positional
from epcx.runs.run import CONFIG, RunFolder
from epcx.typed_json import from_json

MAX_MATCHES = 10_000
MAX_SETS = 100
MAX_SNAPSHOTS = 1000
MAX_EPISODES = 10**9
MAX_ROUNDS = 10**9


@dataclass(frozen=True)
class TrainConfig:
    """A game, a method, a learner, and how long and how wide it trains."""

    game: Annotated[str, Positional("GAME")]
    """A game (see `epcx games`), or module:Class for one of your own."""

    method: str = "epc"
    """epc (the curriculum with evolution), vanilla-pc (without evolution), scratch (one population,
    no curriculum), or a baseline of the paper (see docs/training.md)."""

    budget: methods.Budget = "lineage"
    """From scratch, beside EPC: lineage (a match gets as many episodes as EPC has accumulated along
    one lineage, and every match is a training of its own) or total (as many such matches as EPC's
    episodes in all its matches amount to; they compete, and the fittest is the result)."""

    learner: str = methods.DEFAULT_LEARNER
    """The MARL algorithm: one of epcx, or module:Class for one of your own."""

    population: tuple[str, ...] = ()
    """How many agents each role has, such as 3-2: one for each stage of a curriculum."""

    density: Density = "paper"
    """paper (worlds of one size) or constant: the area of the world and the number of food grow
    with the population, where it has more agents than any of the paper."""

    init_from: str | None = None
    """Start from the agents of a run, RUN or RUN@STAGE, at the same population or a smaller one."""

    episodes: int = 50_000
    """Episodes per match: of the first stage of a curriculum, or of all."""

    stage_episodes: int = 20_000
    """Episodes per match in each later stage of a curriculum."""

    sets: int = 2
    """K: parallel agent sets of each role that go from one stage to the next."""

    matches: int | None = None
    """C: mixtures that are trained in each later stage, by default all; from scratch, the number of
    matches, by default one."""

    initial_matches: int | None = None
    """Matches in the first stage of a curriculum; by default as many as sets."""

    fitness_episodes: int = 2_000
    """Episodes of each pairing that is played for the fitness."""

    fitness_rounds: int | None = None
    """Pairings of each agent set with those of the other roles; by default all."""

    shaped_fitness: bool = False
    """Count the shaping in the fitness, as the authors do."""

    snapshots: int = 0
    """Keep all policies this many times, and once at the start, in the second stage of a curriculum
    or in training from scratch: for curves against fixed opponents."""

    seed: int = 0
    """Fixes everything: the same seed gives the same weights."""

    learner_config: Annotated[Any, Flatten] = None

    def __post_init__(self) -> None:
        method = methods.find(self.method)
        cls = learners.find(self.learner)
        object.__setattr__(self, "learner", learners.full_name(cls))
        methods.check_learner(self.method, self.learner)
        if self.learner_config is None:
            object.__setattr__(self, "learner_config", cls.Config(**method.options))
        choice("budget", self.budget, methods.Budget)
        choice("density", self.density, Density)
        for name, low, high in (
            ("episodes", 1, MAX_EPISODES),
            ("stage_episodes", 1, MAX_EPISODES),
            ("sets", 1, MAX_SETS),
            ("matches", 1, MAX_MATCHES),
            ("initial_matches", 1, MAX_MATCHES),
            ("fitness_rounds", 1, MAX_ROUNDS),
            ("fitness_episodes", 1, MAX_EPISODES),
            ("snapshots", 0, MAX_SNAPSHOTS),
            ("seed", 0, MAX_SEED),
        ):
            value = getattr(self, name)
            if value is not None:
                whole_number(name.replace("_", "-"), value, low, high)

    @property
    def grows(self) -> bool:
        return methods.find(self.method).grows

    @property
    def selects(self) -> bool:
        """Whether the matches of a run compete; otherwise each is a training of its own."""
        return self.grows or self.budget == "total"

    @cached_property
    def games(self) -> list[Game]:
        """The game at each stage."""
        cls = games.find(self.game)
        chosen = self.population or (cls.stages if self.grows else cls.stages[:1])
        return [games.make(cls, population, self.density) for population in chosen]

    def at(self, population: str | None = None, density: Density | None = None) -> Game:
        """The game at a population and density, by default those of the last stage."""
        return games.make(self.game, population or self.populations[-1], density or self.density)

    @property
    def populations(self) -> tuple[str, ...]:
        return tuple(str(game.population) for game in self.games)

    def make_learner(self, game: Game) -> Learner:
        return learners.make(self.learner, game, self.learner_config)

    def check(self) -> None:
        """Whether the settings go together."""
        method = methods.find(self.method)
        if method.grows and not method.evolves and self.sets != 1:
            raise InputError(f"sets {self.sets} do not go with {self.method}, which has 1: use epc")
        if method.grows and self.budget != "lineage":
            raise InputError(
                f"budget {self.budget} does not go with {self.method}: it is for methods from "
                "scratch"
            )
        for name, value in method.options.items():
            found = getattr(self.learner_config, name)
            if found != value:
                raise InputError(
                    f"{name} {found} does not go with method {self.method}, which has {value}"
                )
        if not self.grows and len(self.population) > 1:
            shown = " ".join(self.population)
            raise InputError(
                f"population {shown}: {self.method} trains at one population, from scratch"
            )
        for name, number in (("matches", self.matches), ("initial-matches", self.initial_matches)):
            if self.selects and number is not None and number < self.sets:
                raise InputError(
                    f"{name} {number} are fewer than the {self.sets} sets to select from them"
                )
        for before, after in zip(self.games, self.games[1:], strict=False):
            check_growth(before.population, after.population)
        first = self.make_learner(self.games[0])
        if len(self.games) > 1 and not first.any_population:
            raise InputError(
                f"method {self.method} grows the population, but {first.architecture} networks are "
                "made for one population"
            )

    @cached_property
    def curriculum(self) -> Curriculum:
        """The stages; training from scratch is a single one, without selection."""
        self.check()
        stages = tuple(
            Stage(number, game, self._max_matches(number), self.episodes_at(number))
            for number, game in enumerate(self.games)
        )
        for stage in stages:
            self.make_learner(stage.game).updates(stage.episodes)
        return Curriculum(
            stages,
            self.sets if self.selects else None,
            self.seed,
            self.fitness_rounds,
            stream=f"{self.method} {self.learner} {self.budget}",
        )

    def _max_matches(self, stage: int) -> int | None:
        """The most matches of a stage; None: all mixtures."""
        if not self.grows:
            return self.matches or 1
        return self.matches if stage else self.initial_matches or self.sets

    @property
    def stage_matches(self) -> list[int]:
        """How many matches each stage trains, if none diverges."""
        counts = []
        for stage, game in enumerate(self.games):
            limit = self._max_matches(stage)
            if stage:
                sizes = zip(
                    self.games[stage - 1].population.counts, game.population.counts, strict=True
                )
                total = number_of_mixtures(self.sets, [parents_needed(*two) for two in sizes])
                limit = total if limit is None else min(limit, total)
            assert limit is not None
            counts.append(limit)
        return counts

    def episodes_at(self, stage: int) -> int:
        return self.stage_episodes if stage else self.episodes

    def accumulated(self, population: str) -> tuple[int, int]:
        """Episodes up to the first stage with at least as many agents: along a lineage, in total.

        In total those of all matches whose agents compete: matches that are trainings of their own
        count one by one.
        """
        size = Population.parse(population).total
        smaller = sum(game.population.total < size for game in self.games)
        matches = self.stage_matches if self.selects else [1] * len(self.games)
        stages = range(min(smaller + 1, len(self.games)))
        lineage = sum(self.episodes_at(stage) for stage in stages)
        return lineage, sum(self.episodes_at(stage) * matches[stage] for stage in stages)

    @cached_property
    def plan(self) -> list["PlannedStage"]:
        """What each stage will take, if no match diverges."""
        rows = []
        for stage, matches in zip(self.curriculum.stages, self.stage_matches, strict=True):
            learner = self.make_learner(stage.game)
            rows.append(
                PlannedStage(
                    population=str(stage.game.population),
                    matches=matches,
                    episodes=learner.episodes(learner.updates(stage.episodes)),
                    updates=learner.updates(stage.episodes),
                    state_bytes=matches * state_bytes(learner),
                    fitness_games=self._fitness_games(matches, len(stage.game.roles)),
                )
            )
        return rows

    def _fitness_games(self, matches: int, roles: int) -> int:
        if not self.selects:
            return 0
        rounds = matches ** (roles - 1)
        return matches * min(rounds, self.fitness_rounds or rounds)

    def check_memory(self, executor: Executor) -> None:
        """Refuses what would not fit in a later stage, before the first begins."""
        for stage, planned in zip(self.curriculum.stages, self.plan, strict=True):
            learner = self.make_learner(stage.game)
            advice = partial(self._memory_advice, stage)
            executor.check_memory(learner, planned.matches, advice)

    def _memory_advice(self, stage: Stage, trainer: MatchTrainer) -> str:
        """The options that would make the state of all matches fit."""
        share = 0.8 * trainer.free_bytes / trainer.bytes_per_device
        fewer = int(trainer.matches * share)
        name = "initial-matches" if self.grows and not stage.number else "matches"
        options = [f"--{name} {fewer} or fewer"] if fewer else []
        learner = self.make_learner(stage.game)
        if isinstance(learner, ShardedLearner):
            advice = learner.memory_advice(int(share * learner.state_bytes()))
            options = [advice, *options] if advice else options
        return f"at {stage} use " + (", or ".join(options) or "fewer agents")

    # As JSON

    def to_json(self) -> dict[str, Any]:
        """With the populations spelt out."""
        return {**asdict(self), "population": list(self.populations)}

    @classmethod
    def of(cls, run: RunFolder) -> "TrainConfig":
        """The settings that a run was trained with."""
        complaint = f"{run.path / CONFIG} is damaged, or of another version: unknown settings"
        learner = learners.find(from_json(run.setting("learner"), str, complaint, "learner"))
        config = run.setting("learner_config")
        learner_config = from_json(config, learner.Config, complaint, "learner_config")
        if not run.setting("population"):
            raise InputError(f"{complaint}: population is empty")
        return from_json({**run.settings, "learner_config": learner_config}, cls, complaint)


@dataclass(frozen=True)
class PlannedStage:
    """What a stage will take."""

    population: str
    matches: int
    episodes: int  # per match
    updates: int  # per match
    state_bytes: int  # of all matches
    fitness_games: int


def check_growth(old: Population, new: Population) -> None:
    grown = [a >= b for a, b in zip(new.counts, old.counts, strict=True)]
    if not all(grown) or new == old:
        raise InputError(f"population {new} after {old} does not grow")


def plan_json(rows: list[PlannedStage]) -> dict[str, Any]:
    """The plan as JSON, with its totals."""
    return {
        "stages": [asdict(row) for row in rows],
        "episodes_along_a_lineage": sum(row.episodes for row in rows),
        "episodes_in_total": sum(row.episodes * row.matches for row in rows),
        "updates_in_total": sum(row.updates * row.matches for row in rows),
        "max_memory": format_bytes(max(row.state_bytes for row in rows)),
    }
