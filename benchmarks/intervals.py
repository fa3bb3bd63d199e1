"""How often 95% intervals contain the true value: those of a report, and those that it avoids.

    python -m benchmarks.intervals --json

Trainings are simulated in two experiments. The intervals of normalised scores were chosen among
five constructions by their coverage in the first; the second was not looked at before, and shows
whether the choice holds elsewhere. Scores are normal, or log-normal with a skewness of 1.75
("skewed") or 3.7 ("very skewed"), with some correlation between the tasks of one run. Coverage of
normalised scores is that of all methods together, and of the least covered one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from epcx import options
from epcx.evaluation import statistics
from epcx.runs.provenance import describe

SIGMAS = {"normal": 0.0, "skewed": 0.5, "very skewed": 0.8}  # of the logarithm of scores
TASKS = 8
TRUTH_TRIALS = 100_000
RESAMPLES = 1_000
Row = dict[str, str | int | float]
AGGREGATES = {"mean": statistics.mean, "IQM": statistics.interquartile_mean}


@dataclass(frozen=True)
class Experiment:
    """True means of methods, the same in all tasks, and the deviation of a training from them."""

    name: str
    levels: tuple[float, ...]
    spread: float
    tasks: int


FIRST = Experiment("first", (0.0, 0.2, 0.5, 1.0), 0.3, TASKS)
SECOND = Experiment("second", (0.0, 0.1, 0.6, 0.8, 1.0), 0.2, 4)


def deviations(
    rng: np.random.Generator, size: tuple[int, ...], correlation: float, shape: str
) -> Float[np.ndarray, "..."]:
    """Standardised deviations from the true means, [..., trials, tasks]."""
    shared = rng.normal(size=(*size[:-1], 1))
    own = rng.normal(size=size)
    values = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    sigma = SIGMAS[shape]
    if not sigma:
        return np.asarray(values)
    variance = np.exp(sigma**2)
    return np.asarray((np.exp(sigma * values) - variance**0.5) / np.sqrt(variance**2 - variance))


def simulate(
    rng: np.random.Generator, experiment: Experiment, trials: int, correlation: float, shape: str
) -> list[Float[np.ndarray, "trials tasks"]]:
    """Raw scores of every method."""
    levels = np.array(experiment.levels)[:, None, None]
    drawn = deviations(rng, (len(levels), trials, experiment.tasks), correlation, shape)
    return list(experiment.spread * drawn + levels)


def mean_coverage(
    trials: int, shape: str, simulations: int, interval: Callable[..., tuple]
) -> float:
    """Of an interval of the mean over trainings, in one task."""
    rng = np.random.default_rng(trials)
    low, high = interval(deviations(rng, (simulations, trials, 1), 0.0, shape)[..., 0])
    return float(((low <= 0) & (high >= 0)).mean())


def plain_bootstrap(
    values: Float[np.ndarray, "simulations trials"], resamples: int = 500
) -> tuple[np.ndarray, np.ndarray]:
    """Percentiles of a bootstrap, without any correction."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(values.shape[1], size=(resamples, values.shape[1]))
    low, high = np.percentile(values[:, drawn].mean(-1), [2.5, 97.5], axis=1)
    return low, high


def stratified_coverage(trials: int, correlation: float, simulations: int) -> float:
    """Of the mean over tasks, if trials are drawn within each task as if it had its own."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(simulations):
        scores = deviations(rng, (trials, TASKS), correlation, "normal")
        drawn = rng.integers(trials, size=(500, trials, TASKS))
        means = np.take_along_axis(scores[None], drawn, 1).mean((1, 2))
        low, high = np.percentile(means, [2.5, 97.5])
        hits += low <= 0 <= high
    return hits / simulations


def improvement_coverage(
    trials: int, correlation: float, shape: str, simulations: int
) -> list[float]:
    """Of the probability of improvement, by the true difference: 0, 1 and 2 standard deviations."""
    rng = np.random.default_rng(trials)
    size = (simulations, trials, TASKS)
    ours = deviations(rng, size, correlation, shape)
    theirs = deviations(rng, size, correlation, shape)
    many = deviations(rng, (2, TRUTH_TRIALS, 1), 0.0, shape)[..., 0]
    covered = []
    for difference in (0.0, 1.0, 2.0):
        found = statistics.probability_of_improvement(ours + difference, theirs)
        low, high = statistics.improvement_interval(found, trials, trials)
        truth = (many[0] + difference > many[1]).mean()
        if shape == "normal":
            truth = NormalDist().cdf(difference / 2**0.5)
        covered.append(float(((low <= truth) & (truth <= high)).mean()))
    return covered


def aggregate_coverage(
    experiment: Experiment,
    trials: int,
    correlation: float,
    shape: str,
    simulations: int,
    resamples: int = RESAMPLES,
) -> dict[str, Float[np.ndarray, "methods"]]:
    """For each aggregate and way to make an interval, how often each method is covered.

    "mean" and "IQM" are those of a report; "mean, percentiles" and "mean, t" its two parts.
    """
    rng = np.random.default_rng(trials)
    truths = true_aggregates(experiment, correlation, shape)
    hits: dict[str, np.ndarray] = {}
    for number in range(simulations):
        samples = simulate(rng, experiment, trials, correlation, shape)
        for name, found in all_intervals(samples, number, resamples).items():
            truth = truths[name.partition(",")[0]]
            inside = [low <= x <= high for (low, high), x in zip(found, truth, strict=True)]
            hits[name] = hits.get(name, 0) + np.array(inside, float)
    return {name: count / simulations for name, count in hits.items()}


def all_intervals(
    samples: list[Float[np.ndarray, "trials tasks"]], seed: int, resamples: int
) -> dict[str, list[statistics.Interval]]:
    found = {
        name: statistics.aggregate_intervals(aggregate, samples, seed, resamples)
        for name, aggregate in AGGREGATES.items()
    }
    rng, trials = np.random.default_rng(seed), len(samples[0])
    drawn = statistics.normalise(statistics.resample(rng, samples, resamples))
    values = [statistics.mean(scores) for scores in drawn]
    found["mean, percentiles"] = [statistics.expanded_percentiles(x, trials) for x in values]
    found["mean, t"] = [
        statistics.bootstrap_student(float(statistics.mean(mine)), x, trials)
        for mine, x in zip(statistics.normalise(samples), values, strict=True)
    ]
    return found


def true_aggregates(
    experiment: Experiment, correlation: float, shape: str
) -> dict[str, list[float]]:
    """Means are known; the rest is that of very many trainings, at the true 0 and 1."""
    rng = np.random.default_rng(99)
    samples = simulate(rng, experiment, TRUTH_TRIALS, correlation, shape)
    middles = [float(statistics.interquartile_mean(scores)) for scores in samples]
    return {"mean": list(experiment.levels), "IQM": middles}


@dataclass(frozen=True)
class Benchmark:
    """Simulate the coverage of intervals."""

    trials: tuple[int, ...] = (5, 10, 20)
    """Trainings of each method."""

    correlation: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Between the tasks of one run."""

    simulations: int = 1_000
    """Experiments of each kind; those that need no bootstrap have twenty times as many."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        rows = []
        for row in [*self.avoided(), *self.reported()]:
            rows.append(row)
            if not self.json:
                print(row, flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "coverage": rows}, indent=2))

    def avoided(self) -> list[Row]:
        """Intervals that a report does not print, to show why."""
        rows: list[Row] = []
        for trials in (2, 3, *self.trials):
            covered = mean_coverage(trials, "normal", 20 * self.simulations, plain_bootstrap)
            rows.append(row_of("mean, percentile bootstrap", trials, "normal", covered))
        covered = stratified_coverage(3, 0.5, self.simulations)
        name = "mean over tasks, percentile bootstrap within tasks"
        return [*rows, row_of(name, 3, "normal", covered, 0.5)]

    def reported(self) -> list[Row]:
        rows: list[Row] = []
        for shape in SIGMAS:
            for trials in self.trials:
                covered = mean_coverage(
                    trials, shape, 20 * self.simulations, statistics.mean_interval
                )
                rows.append(row_of("mean, Student's t", trials, shape, covered))
                one = replace(FIRST, tasks=1)
                single = aggregate_coverage(one, trials, 0.0, shape, self.simulations)["mean"]
                name = "normalised score in one task, bootstrap"
                rows.append(row_of(name, trials, shape, single))
                for correlation in self.correlation:
                    rows += self.over_tasks(trials, correlation, shape)
        return rows

    def over_tasks(self, trials: int, correlation: float, shape: str) -> list[Row]:
        many = improvement_coverage(trials, correlation, shape, 5 * self.simulations)
        name = "probability of improvement, Newcombe's method 5"
        rows = [row_of(name, trials, shape, many, correlation)]
        for experiment in (FIRST, SECOND):
            found = aggregate_coverage(experiment, trials, correlation, shape, self.simulations)
            for name, covered in found.items():
                row = row_of(f"normalised {name}", trials, shape, covered, correlation)
                rows.append({**row, "experiment": experiment.name})
        return rows


def row_of(
    name: str,
    trials: int,
    shape: str,
    covered: float | Sequence[float] | np.ndarray,
    correlation: float | None = None,
) -> Row:
    row: Row = {"interval": name, "trainings": trials, "scores": shape}
    if correlation is not None:
        row["correlation"] = correlation
    row["coverage"] = round(float(np.mean(covered)), 3)
    if np.size(covered) > 1:
        row["lowest"] = round(float(np.min(covered)), 3)
    return row


if __name__ == "__main__":
    options.run(Benchmark)
