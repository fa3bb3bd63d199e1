"""What a study has found, sorted for a report, and the parts that a report is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epcx.evaluation.results import Cell, Place, Result, Table, tabulate
from epcx.reports import figures, paper
from epcx.reports.figures import Chart
from epcx.reports.grids import Grid
from epcx.reports.replay import Replay
from epcx.study import YARDSTICK, Study, base


@dataclass(frozen=True)
class Pair:
    """Episodes to be watched side by side, from the same start."""

    title: str
    replays: tuple[Replay, ...]


@dataclass
class Section:
    """Sentences, charts, tables and replays under a title; `name` is its place in the page."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)


class Findings:
    """A study and its results."""

    def __init__(self, study: Study, results: Sequence[Result], episodes: int):
        self.study, self.results, self.episodes = study, list(results), episodes
        self.alone = len(study.game.roles) == 1
        self.colours = figures.palette(study.methods)

    def table(self, purpose: str, statistic: str = "reward") -> Table:
        return tabulate(self.results, purpose, statistic, self.study.merged)

    def published(self, statistic: str = "reward") -> dict[Place, dict[str, float]]:
        """The paper's numbers, where they mean the same as ours: against EPC, or alone."""
        return {
            (population, role): numbers
            for (population, role), numbers in paper.scores(self.study.name, statistic).items()
            if population in self.study.trials
            and (self.alone or base(self.study.yardstick(population)) == YARDSTICK)
        }

    @property
    def trials(self) -> int:
        """Of the method that has most."""
        return max(self.study.number_of_trials(p) for p in self.study.populations)

    def yardsticks(self) -> str:
        """Whom everybody plays against, in words."""
        found: dict[str, list[str]] = {}
        for population in self.study.populations:
            found.setdefault(self.study.yardstick(population), []).append(population)

        def told(method: str) -> str:
            if base(method) == YARDSTICK:
                return f"the agents of {figures.label(method)}"
            return f"{figures.label(method)} players"

        if len(found) == 1:
            return told(*found)
        return " and ".join(f"{told(m)} (at {', '.join(where)})" for m, where in found.items())


def roles_of(table: Mapping[Place, object]) -> list[str]:
    return list(dict.fromkeys(role for _, role in table))


def by_population(table: Table, role: str) -> dict[str, dict[str, Cell]]:
    return {population: cells for (population, who), cells in table.items() if who == role}


def slug(text: str) -> str:
    """For the name of a file."""
    return "".join(c if c.isalnum() else "-" for c in text)
