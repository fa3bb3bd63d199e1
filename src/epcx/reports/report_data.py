"""The data of a report: a study with its results, and the parts that a report consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epcx.evaluation.results import Cell, Place, Result, Table, tabulate
from epcx.evaluation.study import Study
from epcx.reports import figures, paper
from epcx.reports.figures import Chart
from epcx.reports.replay import Replay
from epcx.reports.tables import ReportTable


@dataclass(frozen=True)
class ReplayPair:
    """Episodes shown side by side, from the same initial world."""

    title: str
    replays: tuple[Replay, ...]


@dataclass
class Section:
    """Sentences, charts, tables and replays under a title; `name` is its anchor in the page."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    pairs: list[ReplayPair] = field(default_factory=list)


class ReportData:
    """A study and its results."""

    def __init__(self, study: Study, results: Sequence[Result], episodes: int):
        self.study, self.results, self.episodes = study, list(results), episodes
        self.has_opponents = len(study.game.roles) > 1
        self.colours = figures.palette(study.methods)
        # One of the configs of each method: they differ in seed and population only.
        self.configs = dict(zip(study.variants, study.configs, strict=True))

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

    @property
    def trials(self) -> int:
        """The number of trials of the method that has most."""
        return max(self.study.number_of_trials(p) for p in self.study.populations)

    def opponents(self) -> str:
        """A phrase for the players that everybody plays against."""
        found: dict[str, list[str]] = {}
        for population in self.study.populations:
            found.setdefault(self.study.reference(population), []).append(population)

        def phrase(method: str) -> str:
            name = figures.label(method)
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
