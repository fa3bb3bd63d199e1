"""Results of the games of a comparison, tabulated and normalised."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from epcx.evaluation import statistics
from epcx.evaluation.statistics import MIN_TRAININGS, Interval

SCORE = "score"  # against the reference
REFERENCE = "reference"  # against scripted players
CROSSPLAY = "crossplay"
GENERALISATION = "generalisation"  # at twice the largest population
CURVE = "curve"  # on the way through the second stage


@dataclass(frozen=True)
class Label:
    """The purpose of a game: `method` is measured in `role`, `against` plays all others."""

    purpose: str
    population: str
    role: str
    method: str
    trial: int
    training: str | None  # such as "seed 0 match 1"; none of fixed players
    against: str | None  # none: there are no opponents
    trained: int | None  # episodes along the lineage, on a curve


@dataclass(frozen=True)
class Result(Label):
    """A game and its result: by statistic, mean and standard error."""

    statistics: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Cell:
    """One statistic of one method: a number per trial, and the error of measuring it."""

    values: Float[np.ndarray, "trials"]
    errors: Float[np.ndarray, "trials"]  # standard errors over the episodes

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """Of the mean, over the episodes alone."""
        return float(np.sqrt((self.errors**2).sum()) / len(self.errors))

    @cached_property
    def student_interval(self) -> Interval | None:
        """Of the mean over trainings; none if there is only one."""
        if len(self.values) < 2:
            return None
        low, high = statistics.mean_interval(self.values)
        return float(low), float(high)

    @property
    def interval(self) -> Interval | None:
        """Over trainings; none if they are too few, and are shown themselves."""
        return self.student_interval if len(self.values) >= MIN_TRAININGS else None


@dataclass(frozen=True)
class NormalisedCell(Cell):
    """Normalised scores, whose interval allows for the uncertainty of where 0 and 1 are."""

    bootstrap_interval: Interval | None

    @property
    def interval(self) -> Interval | None:
        return self.bootstrap_interval


Place = tuple[str, str]  # population and role: a task
Table = dict[Place, dict[str, Cell]]  # by method


def tabulate(
    results: Iterable[Result], purpose: str, statistic: str = "reward", merged: str | None = None
) -> Table:
    """The results of one purpose, with all roles averaged to `merged`, if they are the same.

    Games of one training against several opponents are averaged. In cross-play and curves take
    those of one opponent or moment.
    """
    found: dict[Place, dict[str, dict[int, list[dict[str, float]]]]] = {}
    for result in results:
        if result.purpose == purpose and statistic in result.statistics:
            task = result.population, merged or result.role
            trials = found.setdefault(task, {}).setdefault(result.method, {})
            trials.setdefault(result.trial, []).append(result.statistics[statistic])

    def cell(trials: dict[int, list[dict[str, float]]]) -> Cell:
        rows = [trials[number] for number in sorted(trials)]
        means = [np.mean([x["mean"] for x in row]) for row in rows]
        errors = [np.sqrt(np.sum([x["error"] ** 2 for x in row])) / len(row) for row in rows]
        return Cell(np.array(means), np.array(errors))

    return {
        task: {method: cell(trials) for method, trials in methods.items()}
        for task, methods in found.items()
    }


def normalise(table: Table, methods: Iterable[str]) -> Table:
    """Scores from 0 to 1 in every task: the lowest and the highest mean of these methods."""
    chosen = set(methods)
    normalised: Table = {}
    for task, cells in table.items():
        compared = {method: cell for method, cell in cells.items() if method in chosen}
        if compared:
            normalised[task] = normalise_cells(compared)
    return normalised


def normalise_cells(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Intervals need enough trainings of all methods, since 0 and 1 depend on all."""
    means = [cell.mean for cell in cells.values()]
    low, span = min(means), max(means) - min(means)
    span = span or np.inf  # all are 0 if there is no difference
    intervals: list[Interval | None] = [None] * len(cells)
    if min(len(cell.values) for cell in cells.values()) >= MIN_TRAININGS:
        raw = [cell.values[:, None] for cell in cells.values()]
        intervals = list(statistics.aggregate_intervals(statistics.mean, raw, bounds=(0.0, 1.0)))
    return {
        method: NormalisedCell((cell.values - low) / span, cell.errors / span, interval)
        for (method, cell), interval in zip(cells.items(), intervals, strict=True)
    }


def scores_of(table: Table, methods: Iterable[str]) -> dict[str, statistics.Scores]:
    """For each method [trials, tasks], in the tasks that all have; the trials that are in all."""
    wanted = list(methods)
    shared = [cells for cells in table.values() if all(method in cells for method in wanted)]
    if not shared:
        return {}
    found = {}
    for method in wanted:
        trials = min(len(cells[method].values) for cells in shared)
        found[method] = np.stack([cells[method].values[:trials] for cells in shared], 1)
    return found
