"""The data of a report: a study with its results, and the parts that a report consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epcx.evaluation.results import Cell, Place, Result, Table, tabulate
from epcx.evaluation.study import Study
from epcx.reports import paper
from epcx.reports.chart import Chart, label, palette
from epcx.reports.replay import Replay
from epcx.reports.tables import ReportTable


@dataclass(frozen=True)
class ReplayPair:
    """Episodes shown side by side, from the same initial world; `frames` shows pictures, too."""

    title: str
    replays: tuple[Replay, ...]
    frames: bool = False


@dataclass(frozen=True)
class Picture:
    """A PNG picture and its caption; `name` is that of its file."""

    name: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class SettingsGroup:
    """Methods that share their settings, which alone are compared.

    If all methods of a report share them, `suffix`, for file names, and `heading` are empty.
    """

    settings: str
    methods: list[str]
    suffix: str
    heading: str


@dataclass
class Section:
    """Sentences, pictures, charts, tables and replays under a title; `name` is its anchor."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    pairs: list[ReplayPair] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


class ReportData:
    """A study and its results."""

    def __init__(self, study: Study, results: Sequence[Result], episodes: int):
        self.study, self.results, self.episodes = study, list(results), episodes
        self.has_opponents = len(study.game.roles) > 1
        self.looks = palette(study.methods)
        # One of the configs of each method: they differ in seed and population only.
        self.configs = dict(zip(study.variants, study.configs, strict=True))
        self.settings = {m: name for name, methods in study.groups.items() for m in methods}

    @property
    def groups(self) -> list[SettingsGroup]:
        found = self.study.groups
        if len(found) == 1:
            ((settings, methods),) = found.items()
            return [SettingsGroup(settings, methods, "", "")]
        return [
            SettingsGroup(settings, methods, f"-{slug(settings)}", f" ({settings})")
            for settings, methods in found.items()
        ]

    def table(self, purpose: str, statistic: str = "reward") -> Table:
        return tabulate(self.results, purpose, statistic, self.study.merged)

    def published(self, role: str, statistic: str = "reward") -> dict[str, dict[str, float]]:
        """The paper's numbers, by population and method, where they are comparable to these.

        They are if there are no opponents, or the same ones.
        """
        return {
            population: numbers
            for (population, other), numbers in paper.scores(self.study.name, statistic).items()
            if other == role
            and population in self.study.trials
            and (not self.has_opponents or self.same_opponents_as_paper(population))
        }

    def same_opponents_as_paper(self, population: str) -> bool:
        config = self.configs.get(self.study.reference(population))
        return config is not None and config.method == paper.OPPONENT

    def training_names(self, population: str, method: str) -> list[str]:
        """Such as "seed 0 match 1", in the order of a cell's values; none of fixed players.

        Clones at other populations come from the largest one.
        """
        study = self.study
        trials = study.trials.get(population, study.trials[study.populations[-1]])
        return [study.training_names[trial] for trial in trials.get(method, [])]

    @property
    def trials(self) -> int:
        """The number of trials of the method that has most."""
        return max(self.study.number_of_trials(p) for p in self.study.populations)

    @property
    def fewest_trials(self) -> int:
        """The number of trials of the method that has fewest."""
        return min(len(some) for m in self.study.trials.values() for some in m.values())

    def opponents(self) -> str:
        """A phrase for the players that everybody plays against."""
        found: dict[str, list[str]] = {}
        for population in self.study.populations:
            found.setdefault(self.study.reference(population), []).append(population)

        def phrase(method: str) -> str:
            name = label(method)
            return f"the agents of {name}" if method in self.configs else f"{name} players"

        if len(found) == 1:
            return phrase(*found)
        return " and ".join(f"{phrase(m)} (at {', '.join(where)})" for m, where in found.items())


def roles_of(table: Mapping[Place, object]) -> list[str]:
    return list(dict.fromkeys(role for _, role in table))


def by_population(table: Table, role: str) -> dict[str, dict[str, Cell]]:
    return {population: cells for (population, other), cells in table.items() if other == role}


def slug(text: str) -> str:
    """The text as part of a file name."""
    return "".join(c if c.isalnum() else "-" for c in text)
