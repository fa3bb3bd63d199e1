"""Results of the games of a comparison, tabulated and normalised."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from epcx.evaluation import statistics

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
    def interval(self) -> tuple[float, float] | None:
        """Over trials; none if there is only one."""
        if len(self.values) < 2:
            return None
        return statistics.interval(statistics.mean, self.values[:, None])

    def scaled(self, low: float, high: float) -> "Cell":
        """With `low` at 0 and `high` at 1; all 0 if they are the same."""
        span = high - low
        if not span:
            return Cell(0 * self.values, 0 * self.errors)
        return Cell((self.values - low) / span, self.errors / span)


Place = tuple[str, str]  # population and role: a task
Table = dict[Place, dict[str, Cell]]  # by method


def tabulate(
    results: Iterable[Result], purpose: str, statistic: str = "reward", merged: str | None = None
) -> Table:
    """The results of one purpose, with all roles averaged to `merged`, if they are the same.

    In cross-play and curves several results share a place: take those of one opponent or moment.
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
    """Scores from 0 to 1 in every task: the worst and the best mean of these methods."""
    chosen = set(methods)
    normalised: Table = {}
    for task, cells in table.items():
        means = [cell.mean for method, cell in cells.items() if method in chosen]
        if means:
            normalised[task] = {
                method: cell.scaled(min(means), max(means))
                for method, cell in cells.items()
                if method in chosen
            }
    return normalised


def scores_of(table: Table) -> dict[str, statistics.Scores]:
    """For each method [trials, tasks], in the tasks that all have, as many trials as all have."""
    methods = list(dict.fromkeys(method for cells in table.values() for method in cells))
    shared = [cells for cells in table.values() if all(method in cells for method in methods)]
    if not shared:
        return {}
    trials = min(len(cell.values) for cells in shared for cell in cells.values())
    return {
        method: np.stack([cells[method].values[:trials] for cells in shared], 1)
        for method in methods
    }
