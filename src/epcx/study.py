"""A comparison of runs: which games it takes, who plays them, and what came of each.

Every game is an entry with labels: what it is for, who is measured and against whom. Tables and
figures are nothing but such entries, sorted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from epcx import games, presets
from epcx.errors import InputError
from epcx.evaluation.players import SCRIPTS, Contestant, Side
from epcx.evaluation.results import (
    CROSSPLAY,
    CURVE,
    GENERALISATION,
    REFERENCE,
    SCORE,
    Label,
    Result,
)
from epcx.evaluation.scorebook import Scorebook
from epcx.evaluation.scripted import PLAYERS
from epcx.evaluation.tournament import Tournament
from epcx.games import Game, Population
from epcx.runs.files import json_digest
from epcx.runs.run import Run
from epcx.trained import Entrant, Snapshot
from epcx.training import METHODS, Training

YARDSTICK = "epc"  # whom the paper lets everybody play against
FIXED = "scripted"
ORDER = ("maddpg", "mean-field", "att-maddpg", "vanilla-pc", "epc")  # as in the paper's tables
CURVE_EPISODES = 1_000


@dataclass(frozen=True)
class Entry(Label):
    """A game to be played: who plays each role."""

    sides: dict[str, Contestant]

    def result(self, statistics: dict[str, dict[str, float]]) -> Result:
        labels = {label.name: getattr(self, label.name) for label in fields(Label)}
        return Result(**labels, statistics=statistics)


class Study:
    """Runs of one game, sorted by population and method.

    Every training from scratch is a trial of its own, also those that share a run; of a curriculum
    the best sets are. Trial i of a method plays against trial i of the others, so that trials are
    independent repetitions of the experiment; where others have fewer, theirs are used again.
    """

    def __init__(self, runs: Sequence[Run]):
        if not runs:
            raise InputError("no run is named: name at least one run folder")
        places = [run.path.resolve() for run in runs]
        for place, run in zip(places, runs, strict=True):
            if places.count(place) > 1:
                raise InputError(f"{run.path} is named twice: name every run once")
        trainings = [finished(run) for run in runs]
        self.name = game_of(trainings)
        self.runs = list(runs)
        self.trainings = trainings
        self.variants = [variant(training, trainings) for training in trainings]
        found: dict[str, dict[str, list[Entrant]]] = {}
        for i in sorted(range(len(runs)), key=lambda i: trainings[i].seed):
            for stage in runs[i].stages():
                for match in range(trials_in(runs[i], trainings[i], stage)):
                    trials = found.setdefault(stage, {}).setdefault(self.variants[i], [])
                    name = f"{self.variants[i]} {len(trials)}"
                    trials.append(Entrant(name, runs[i], stage, match))
        by_size = sorted(found, key=lambda name: Population.parse(name).total)
        self.trials = {
            stage: {m: found[stage][m] for m in in_order(found[stage])} for stage in by_size
        }

    @property
    def populations(self) -> list[str]:
        return list(self.trials)

    @property
    def methods(self) -> list[str]:
        return in_order({method for methods in self.trials.values() for method in methods})

    @property
    def game(self) -> type[Game]:
        return games.GAMES[self.name]

    @property
    def merged(self) -> str | None:
        """The name of all teams together, where they are the same and are averaged."""
        counts = [Population.parse(population).counts for population in self.trials]
        if not self.game.symmetric or any(len(set(some)) > 1 for some in counts):
            return None
        return " and ".join(role.name for role in self.game.roles)

    def at(self, population: str) -> Game:
        return games.make(self.name, population)

    def number_of_trials(self, population: str) -> int:
        return max(len(trials) for trials in self.trials[population].values())

    def yardstick(self, population: str) -> str:
        """EPC where it was trained, the first variant of it; else the scripted players."""
        known = (method for method in self.trials[population] if base(method) == YARDSTICK)
        return next(known, FIXED)

    def signature(self) -> dict[str, str]:
        """What the runs were made with, in short."""
        made = [run.made_with for run in self.runs]
        seeds = {
            seed
            for run, training in zip(self.runs, self.trainings, strict=True)
            for seed in range(training.seed, training.seed + trials_in(run, training))
        }
        return {
            "commit": one_or_some(about.get("commit") or about.get("epcx") for about in made),
            "config": json_digest([run.settings for run in self.runs])[:10],
            "seeds": one_or_some(sorted(seeds)),
            "device": one_or_some(about.get("device") for about in made),
        }

    # Who plays whom

    def entries(self) -> list[Entry]:
        return [
            *(entry for population in self.trials for entry in self.scores(population)),
            *self.crossplay(),
            *self.generalisation(),
            *self.curves(),
        ]

    def scores(self, population: str) -> Iterator[Entry]:
        """Everybody against the yardstick, and against the scripted players."""
        everybody = self.everybody(population)
        yardsticks = {SCORE: self.yardstick(population), REFERENCE: FIXED}
        alone = len(self.game.roles) == 1
        for purpose, against in yardsticks.items():
            if purpose == REFERENCE and (alone or against == yardsticks[SCORE]):
                continue
            yield from self.meetings(purpose, population, everybody, {against: everybody[against]})

    def crossplay(self) -> Iterator[Entry]:
        """Everybody against everybody, at the largest population."""
        if len(self.game.roles) > 1:
            everybody = self.everybody(self.populations[-1])
            yield from self.meetings(CROSSPLAY, self.populations[-1], everybody, everybody)

    def generalisation(self) -> Iterator[Entry]:
        """Agents of the largest population, cloned to twice as many, if their networks can."""
        last = self.populations[-1]
        doubled = "-".join(str(2 * count) for count in Population.parse(last).counts)
        able = {
            method: trials
            for method, trials in self.everybody(last).items()
            if METHODS.get(base(method), "att-maddpg") == "att-maddpg"
        }
        against = self.yardstick(last)
        if not able.keys() & self.trials[last].keys():
            return
        yield from self.meetings(GENERALISATION, doubled, able, {against: able[against]})

    def curves(self) -> Iterator[Entry]:
        """What was learnt on the way through the second stage, against the final yardstick."""
        for population in self.populations[1:2]:
            everybody = self.everybody(population)
            against = self.yardstick(population)
            for method, trials in self.trials[population].items():
                for number, trial in enumerate(trials):
                    moments = trial.run.snapshots(population)
                    final = against, take(everybody[against], number)
                    for role in self.at(population).members if moments else ():
                        match = trial.origin(role)
                        for moment in moments:
                            kept = Snapshot(trial.name, trial.run, population, match, moment)
                            yield self.meeting(
                                CURVE, population, role, (method, kept), final, number, moment
                            )

    def everybody(self, population: str) -> dict[str, list[Contestant]]:
        """The trials of every method, and scripts, which are the same in all trials."""
        scripts: dict[str, list[Contestant]] = {script.name: [script] for script in SCRIPTS}
        return {**{m: list(trials) for m, trials in self.trials[population].items()}, **scripts}

    def meetings(
        self,
        purpose: str,
        population: str,
        rows: dict[str, list[Contestant]],
        columns: dict[str, list[Contestant]],
    ) -> Iterator[Entry]:
        """Every row in each role against every column in the others, trial by trial."""
        roles = list(self.game.roles)
        alone = len(roles) == 1
        for role in roles:
            for method, mine in rows.items():
                for against, theirs in columns.items():
                    # Scripts are the same in all trials; a method has as many as it has.
                    scripted = method in PLAYERS and not alone
                    for trial in range(len(theirs) if scripted else len(mine)):
                        yield self.meeting(
                            purpose,
                            population,
                            role.name,
                            (method, take(mine, trial)),
                            (against, take(theirs, trial)),
                            trial,
                        )

    def meeting(
        self,
        purpose: str,
        population: str,
        role: str,
        mine: tuple[str, Contestant],
        theirs: tuple[str, Contestant],
        trial: int,
        trained: int | None = None,
    ) -> Entry:
        others = [other.name for other in self.game.roles if other.name != role]
        sides = {role: mine[1]} | dict.fromkeys(others, theirs[1])
        against = theirs[0] if others else None
        return Entry(purpose, population, role, mine[0], trial, against, trained, sides)

    # What came of it

    def play(
        self,
        episodes: int,
        book: Scorebook | None = None,
        watch: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Result]:
        """Plays all entries; `watch` is told how many are done, of how many."""
        entries = self.entries()
        book = book or Scorebook()
        tournaments: dict[str, Tournament] = {}
        known: dict[tuple[Contestant, str, str], Side] = {}
        results = []
        for number, entry in enumerate(entries):
            watch(number, len(entries))
            length = min(episodes, CURVE_EPISODES) if entry.purpose == CURVE else episodes
            game = self.at(entry.population)
            if entry.population not in tournaments:
                tournaments[entry.population] = Tournament(game, book=book)
            for role, who in entry.sides.items():
                if (who, entry.population, role) not in known:
                    known[who, entry.population, role] = who.side(game, role)
            sides = {r: known[who, entry.population, r] for r, who in entry.sides.items()}
            summary = tournaments[entry.population].play(sides, length)
            results.append(entry.result(summary[entry.role]))
        watch(len(entries), len(entries))
        return results


def game_of(trainings: Sequence[Training]) -> str:
    names = list(dict.fromkeys(training.game for training in trainings))
    if len(names) > 1:
        raise InputError(f"the runs are of different games: {', '.join(names)}")
    return names[0]


def finished(run: Run) -> Training:
    training = Training.of(run)
    if run.result.get("ended") != "finished":
        raise InputError(f"{run.path} is not finished: epcx resume {run.path} goes on")
    if not run.stages():
        raise InputError(f"{run.path} is damaged: it has no agents")
    return training


def trials_in(run: Run, training: Training, stage: str | None = None) -> int:
    """Independent trainings in a run: one for a curriculum, else as many as matches were kept."""
    return 1 if training.grows else run.ranks(stage or run.stages()[-1])


def one_or_some(values: Iterable[Any]) -> str:
    """Each once."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def take(trials: Sequence[Contestant], number: int) -> Contestant:
    return trials[number % len(trials)]


def variant(training: Training, everybody: Sequence[Training]) -> str:
    """Its method, and in brackets the settings in which trainings by that method differ.

    Those of the presets with the paper's schedule have names instead.
    """
    rivals = [
        settings(other)
        for other in everybody
        if other.method == training.method
        and (other.grows or other.population == training.population)
    ]
    mine = settings(training)
    different = [name for name in mine if any(other[name] != mine[name] for other in rivals)]
    names: dict[presets.Preset, str] = {"paper": "", "best": " (best)"}
    for preset, name in names.items():
        made = presets.make(training.game, training.method, preset, training.population)
        if all(mine[setting] == settings(made)[setting] for setting in different):
            return training.method + name
    told = ", ".join(f"{name} {mine[name]}" for name in different)
    return f"{training.method} ({told})" if told else training.method


def settings(training: Training) -> dict[str, str]:
    """All that makes a method what it is, by option; not what makes a training one of many."""
    config = training.config()
    wanted = {**config, **config["hyper"], "population": " ".join(config["population"])}
    of_one = {"seed", "snapshots", "hyper", *(() if training.grows else ("matches",))}
    return {name: str(value) for name, value in wanted.items() if name not in of_one}


def base(method: str) -> str:
    """The method of a variant."""
    return method.partition(" ")[0]


def in_order(methods: Iterable[str]) -> list[str]:
    """As in the paper's tables, others last."""
    order = {method: place for place, method in enumerate(ORDER)}
    return sorted(methods, key=lambda method: (order.get(base(method), len(ORDER)), method))
