"""A comparison of runs: which games it takes, who plays them, and the results.

Every game is an entry with labels: its purpose, who is measured and against whom. Tables and
figures are such entries, sorted.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from epcx import games, presets
from epcx.config import TrainConfig
from epcx.errors import InputError, one_line
from epcx.evaluation.players import FIXED_PLAYERS, Player, PlayerSource, fixed_players
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.results import (
    CROSSPLAY,
    CURVE,
    GENERALISATION,
    REFERENCE,
    SCORE,
    Label,
    Result,
)
from epcx.evaluation.tournament import Tournament
from epcx.evaluation.variants import base, in_order, summarise_trainings, training_name, variant
from epcx.games import Density, Game, Population
from epcx.runs.files import json_digest
from epcx.runs.run import RunFolder
from epcx.teams import RunPlayers, SnapshotPlayers

MAIN_METHOD = "epc"  # against which the paper lets all methods play
# The most episodes of each game: curves have many, and doubled populations take the longest.
MAX_GAME_EPISODES = {CURVE: 1_000, GENERALISATION: 2_000}


@dataclass(frozen=True)
class Entry(Label):
    """A game to be played: who plays each role."""

    players: dict[str, PlayerSource]

    def result(self, statistics: dict[str, dict[str, float]]) -> Result:
        labels = {label.name: getattr(self, label.name) for label in fields(Label)}
        return Result(**labels, statistics=statistics)


class Study:
    """Runs of one game, sorted by population and method.

    Every training from scratch is a trial of its own, also those that share a run; where matches
    compete, the best sets are. Trial i of a method plays against trial i of the others, so that
    trials are independent repetitions of the experiment; where others have fewer, theirs are used
    again. Methods are compared with those of the same settings (`groups`).
    """

    def __init__(self, runs: Sequence[RunFolder]):
        if not runs:
            raise InputError("no run is named: name at least one run folder")
        places = [run.path.resolve() for run in runs]
        for place, run in zip(places, runs, strict=True):
            if places.count(place) > 1:
                raise InputError(f"{run.path} is named twice: name every run once")
        configs = [finished(run) for run in runs]
        self.name, self.density = game_of(configs), density_of(configs)
        self.runs = list(runs)
        self.configs = configs
        self.variants = [variant(config, configs) for config in configs]
        # What a method is called among those of its settings.
        self.short_names = {
            name: variant(config, configs, with_settings=False)
            for name, config in zip(self.variants, configs, strict=True)
        }
        self.training_names: dict[PlayerSource, str] = {}
        self._configs: dict[tuple[str, str], TrainConfig] = {}
        found: dict[str, dict[str, list[RunPlayers]]] = {}
        for i in sorted(range(len(runs)), key=lambda i: configs[i].seed):
            for stage in runs[i].stages():
                number = trials_in(runs[i], configs[i], stage)
                self._configs[self.variants[i], stage] = configs[i]
                for match in range(number):
                    trials = found.setdefault(stage, {}).setdefault(self.variants[i], [])
                    name = f"{self.variants[i]} {len(trials)}"
                    trial = RunPlayers(name, runs[i], stage, match)
                    trials.append(trial)
                    self.training_names[trial] = training_name(configs[i], trial, number)
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
    def groups(self) -> dict[str, list[str]]:
        """The methods by the settings that they share: comparisons are within a group."""
        found: dict[str, list[str]] = {}
        by_variant = dict(zip(self.variants, self.configs, strict=True))
        for method in self.methods:
            found.setdefault(presets.name_settings(by_variant[method]), []).append(method)
        return found

    def episodes(self, method: str, population: str) -> tuple[int, int] | None:
        """What a training of a method has taken up to a population: along a lineage, in total.

        At populations that nobody was trained at, those of the largest one. None: no training.
        """
        stage = population if population in self.trials else self.populations[-1]
        config = self._configs.get((method, stage))
        return None if config is None else config.accumulated(stage)

    @property
    def game(self) -> type[Game]:
        return games.find(self.name)

    @property
    def merged(self) -> str | None:
        """The name of all teams together, where they are the same and are averaged."""
        counts = [Population.parse(population).counts for population in self.trials]
        if not self.game.symmetric or any(len(set(some)) > 1 for some in counts):
            return None
        return " and ".join(role.name for role in self.game.roles)

    def at(self, population: str) -> Game:
        return games.make(self.name, population, self.density)

    def number_of_trials(self, population: str) -> int:
        return max(len(trials) for trials in self.trials[population].values())

    @property
    def fixed(self) -> str:
        """The fixed players to compare with: scripted ones, if the game has them."""
        return fixed_players(self.game)[0].name

    def reference(self, population: str) -> str:
        """The opponent of all methods: EPC where it was trained, else the fixed players."""
        known = (method for method in self.trials[population] if base(method) == MAIN_METHOD)
        return next(known, self.fixed)

    def signature(self) -> dict[str, str]:
        """The provenance of the runs, in short."""
        made = [run.provenance for run in self.runs]
        return {
            "commit": one_or_some(about.get("commit") or about.get("epcx") for about in made),
            "config": json_digest([run.settings for run in self.runs])[:10],
            "trainings": summarise_trainings(self.training_names.values()),
            "device": one_or_some(about.get("device") for about in made),
        }

    # Which games are played

    def entries(self) -> list[Entry]:
        return [
            *(entry for population in self.trials for entry in self.scores(population)),
            *self.crossplay(),
            *self.generalisation(),
            *self.curves(),
        ]

    def scores(self, population: str) -> Iterator[Entry]:
        """All methods against the reference, and against the fixed players."""
        players = self.all_players(population)
        references = {SCORE: self.reference(population), REFERENCE: self.fixed}
        alone = len(self.game.roles) == 1
        for purpose, against in references.items():
            if purpose == REFERENCE and (alone or against == references[SCORE]):
                continue
            yield from self.pairings(purpose, population, players, {against: players[against]})

    def crossplay(self) -> Iterator[Entry]:
        """All players against all, at the largest population."""
        if len(self.game.roles) > 1:
            players = self.all_players(self.populations[-1])
            yield from self.pairings(CROSSPLAY, self.populations[-1], players, players)

    def generalisation(self) -> Iterator[Entry]:
        """Agents of the largest population, cloned to twice as many, if their networks can.

        As for the fitness, a role is measured against the other roles of all trained methods.
        """
        last = self.populations[-1]
        doubled = "-".join(str(2 * count) for count in Population.parse(last).counts)
        able = {
            method: trials
            for method, trials in self.all_players(last).items()
            if method in FIXED_PLAYERS or self._clones(trials[0], last)
        }
        opponents = {method: able[method] for method in self.trials[last] if method in able}
        if len(self.game.roles) == 1:
            opponents = dict(list(opponents.items())[:1])  # nobody meets them
        yield from self.pairings(GENERALISATION, doubled, able, opponents)

    def _clones(self, trial: PlayerSource, population: str) -> bool:
        """Whether the agents of a method can play at other populations."""
        assert isinstance(trial, RunPlayers)
        return trial.learner(self.at(population)).any_population

    def curves(self) -> Iterator[Entry]:
        """Policies on their way through the second stage, against the final reference."""
        for population in self.populations[1:2]:
            players = self.all_players(population)
            against = self.reference(population)
            for method, trials in self.trials[population].items():
                for number, trial in enumerate(trials):
                    moments = trial.run.snapshots(population)
                    final = against, take(players[against], number)
                    for role in self.at(population).members if moments else ():
                        match = trial.origin(role)
                        for moment in moments:
                            kept = SnapshotPlayers(trial.name, trial.run, population, match, moment)
                            yield self.pairing(
                                CURVE,
                                population,
                                role,
                                (method, kept),
                                final,
                                number,
                                self.training_names[trial],
                                moment,
                            )

    def all_players(self, population: str) -> dict[str, list[PlayerSource]]:
        """The trials of every method, and fixed players, which are the same in all trials."""
        fixed: dict[str, list[PlayerSource]] = {p.name: [p] for p in fixed_players(self.game)}
        return {**{m: list(trials) for m, trials in self.trials[population].items()}, **fixed}

    def pairings(
        self,
        purpose: str,
        population: str,
        rows: dict[str, list[PlayerSource]],
        columns: dict[str, list[PlayerSource]],
    ) -> Iterator[Entry]:
        """Every row in each role against every column in the others, trial by trial."""
        roles = list(self.game.roles)
        alone = len(roles) == 1
        most = max(map(len, columns.values()), default=0)
        for role in roles:
            for method, mine in rows.items():
                for against, theirs in columns.items():
                    # Fixed players are the same in all trials; a method has as many as it has.
                    fixed = method in FIXED_PLAYERS and not alone
                    meetings = most if purpose == GENERALISATION else len(theirs)
                    for trial in range(meetings if fixed else len(mine)):
                        yield self.pairing(
                            purpose,
                            population,
                            role.name,
                            (method, take(mine, trial)),
                            (against, take(theirs, trial)),
                            trial,
                            self.training_names.get(take(mine, trial)),
                        )

    def pairing(
        self,
        purpose: str,
        population: str,
        role: str,
        mine: tuple[str, PlayerSource],
        theirs: tuple[str, PlayerSource],
        trial: int,
        training: str | None,
        trained: int | None = None,
    ) -> Entry:
        others = [other.name for other in self.game.roles if other.name != role]
        players = {role: mine[1]} | dict.fromkeys(others, theirs[1])
        against = theirs[0] if others else None
        return Entry(purpose, population, role, mine[0], trial, training, against, trained, players)

    # Results

    def check(self) -> None:
        """Reads all that games and reports need, so that what is damaged is found before."""
        for run in self.runs:
            run.metrics()
        for trials in (some for methods in self.trials.values() for some in methods.values()):
            for trial, role in itertools.product(trials, self.game.roles):
                trial.origin(role.name)
        _ = self.players

    @cached_property
    def players(self) -> dict[tuple[PlayerSource, str, str], Player]:
        """Who plays which role at which population."""
        wanted = dict.fromkeys(
            (who, entry.population, role)
            for entry in self.entries()
            for role, who in entry.players.items()
        )
        return {
            (who, population, role): who.player(self.at(population), role)
            for who, population, role in wanted
        }

    def play(
        self,
        episodes: int,
        cache: ResultCache | None = None,
        on_played: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Result]:
        """Plays all entries; `on_played` gets the number of games done, and of all."""
        entries, known = self.entries(), self.players
        cache = cache or ResultCache()
        tournaments: dict[str, Tournament] = {}
        results = []
        for number, entry in enumerate(entries):
            on_played(number, len(entries))
            length = game_episodes(entry.purpose, episodes)
            game = self.at(entry.population)
            if entry.population not in tournaments:
                tournaments[entry.population] = Tournament(game, cache=cache)
            players = {r: known[who, entry.population, r] for r, who in entry.players.items()}
            summary = tournaments[entry.population].play(players, length)
            results.append(entry.result(summary[entry.role]))
        on_played(len(entries), len(entries))
        return results


def game_episodes(purpose: str, episodes: int) -> int:
    """The episodes of each game of a purpose, in a study of so many."""
    return min(episodes, MAX_GAME_EPISODES.get(purpose, episodes))


def game_of(configs: Sequence[TrainConfig]) -> str:
    names = list(dict.fromkeys(config.game for config in configs))
    if len(names) > 1:
        raise InputError(f"the runs are of different games: {', '.join(names)}")
    return names[0]


def density_of(configs: Sequence[TrainConfig]) -> Density:
    found = list(dict.fromkeys(config.density for config in configs))
    if len(found) > 1:
        raise InputError(f"the runs are of different densities: {', '.join(found)}")
    return found[0]


def finished(run: RunFolder) -> TrainConfig:
    config = TrainConfig.of(run)
    if run.result.get("ended") != "finished":
        raise InputError(f"{run.path} is not finished: epcx resume {run.path} goes on")
    if not run.stages():
        raise InputError(f"{run.path} is damaged: it has no agents")
    return config


def trials_in(run: RunFolder, config: TrainConfig, stage: str | None = None) -> int:
    """Independent trainings in a run: one if matches compete, else as many as were kept."""
    return 1 if config.selects else run.ranks(stage or run.stages()[-1])


def one_or_some(values: Iterable[Any]) -> str:
    """Each once."""
    return ", ".join(dict.fromkeys(map(one_line, values)))


def take(trials: Sequence[PlayerSource], number: int) -> PlayerSource:
    return trials[number % len(trials)]
