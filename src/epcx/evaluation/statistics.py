"""Statistics over independent trainings, and intervals that hold with few of them.

Scores are [trials, tasks], perhaps with more axes in front: a task is a population and a role, and
a trial is one replication of the whole experiment, in all tasks and by all methods. The scores of a
trial are correlated, since a run plays in many tasks, and trial i of every method meets trial i of
EPC; so trials are resampled whole. `benchmarks/intervals.py` measures how often the intervals
contain the true value.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

Scores = Float[np.ndarray, "... trials tasks"]
Numbers = Float[np.ndarray, "..."]
Interval = tuple[float, float]

LEVEL = 0.95
MIN_TRAININGS = 5  # with fewer no interval is shown, but the trainings themselves
RESAMPLES = 20_000
BISECTIONS = 60


def mean(scores: Scores) -> Numbers:
    return np.asarray(scores.mean((-2, -1)))


def interquartile_mean(scores: Scores) -> Numbers:
    """The mean of the middle half of all scores: it minds outliers less than the mean does."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    quarter = flat.shape[-1] // 4
    return np.asarray(flat[..., quarter : flat.shape[-1] - quarter].mean(-1))


def probability_of_improvement(
    scores: Scores, others: Float[np.ndarray, "... others tasks"]
) -> Numbers:
    """How likely a training by the first method beats one by the second, on a random task.

    Ties count half (the Mann-Whitney statistic, averaged over tasks).
    """
    ours, theirs = scores[..., :, None, :], others[..., None, :, :]
    return np.asarray(((ours > theirs) + 0.5 * (ours == theirs)).mean((-3, -2, -1)))


def normalise(samples: Sequence[Float[np.ndarray, "... _ tasks"]]) -> list[Scores]:
    """The scores of each method, which may have more trials than others, from 0 to 1.

    In every task 0 is the lowest mean of a method, and 1 the highest; all are 0 if these are the
    same.
    """
    means = np.stack([scores.mean(-2) for scores in samples])
    low, high = means.min(0)[..., None, :], means.max(0)[..., None, :]
    span = np.where(high > low, high - low, 1.0)
    return [np.where(high > low, scores - low, 0.0) / span for scores in samples]


def performance_profile(
    scores: Scores, thresholds: Float[np.ndarray, "points"]
) -> Float[np.ndarray, "points"]:
    """For each threshold the share of trainings, over all tasks, that score above it."""
    return np.asarray((scores.reshape(-1, 1) > thresholds).mean(0))


# Intervals


def mean_interval(values: Float[np.ndarray, "... trials"]) -> tuple[Numbers, Numbers]:
    """Student's t interval of the mean over trainings."""
    trials = values.shape[-1]
    margin = student(trials) * values.std(-1, ddof=1) / np.sqrt(trials)
    middle = values.mean(-1)
    return np.asarray(middle - margin), np.asarray(middle + margin)


def improvement_interval(improvement: Numbers, trials: int, others: int) -> tuple[Numbers, Numbers]:
    """Newcombe's score interval (2006, method 5) of a Mann-Whitney statistic.

    A bootstrap of trainings that are all better than all others has no spread, and would give
    [1, 1]. This one takes its variance from the numbers of trainings, as if there were one task:
    that holds if the tasks of a run are fully correlated, and is conservative otherwise.
    """
    estimate = np.asarray(improvement, float)
    wide = special.ndtri(0.5 + LEVEL / 2)
    pairs = (trials + others) / 2 - 1

    def inside(theta: Numbers) -> Bool[np.ndarray, "..."]:
        """Whether the estimate is not too far from this true value."""
        share = 1 + pairs * (1 - theta) / (2 - theta) + pairs * theta / (1 + theta)
        variance = theta * (1 - theta) * share / (trials * others)
        return np.asarray((theta - estimate) ** 2 <= wide**2 * variance)

    def end(outer: float) -> Numbers:
        """The border between the estimate, next to which all is inside, and 0 or 1."""
        out, into = np.full_like(estimate, outer), estimate
        for _ in range(BISECTIONS):
            middle = np.asarray((out + into) / 2)
            within = inside(middle)
            out, into = np.where(within, out, middle), np.where(within, middle, into)
        return np.asarray((out + into) / 2)

    return end(0.0), end(1.0)


def aggregate_intervals(
    aggregate: Callable[[Scores], Numbers],
    samples: Sequence[Float[np.ndarray, "_ tasks"]],
    seed: int = 0,
    resamples: int = RESAMPLES,
    bounds: Interval = (-np.inf, np.inf),
) -> list[Interval]:
    """For each method an interval of `aggregate` of its normalised scores; `samples` are raw.

    A bootstrap over trials that normalises every resample anew, since the lowest and the highest
    mean are as uncertain as the others. Two intervals are made of it, and the outer ends count:
    Hesterberg's expanded percentiles (2015), which cannot leave the range of the resamples and so
    miss methods near 0 or 1 that have five trainings; and the estimate with Student's t times the
    standard error of the bootstrap, which minds no skewness. `bounds` are those of the aggregate: a
    mean of normalised scores lies between 0 and 1.
    """
    rng = np.random.default_rng(seed)
    trials = min(len(scores) for scores in samples)
    drawn = normalise(resample(rng, samples, resamples))
    intervals = []
    for mine, scores in zip(normalise(samples), drawn, strict=True):
        values = aggregate(scores)
        both = (
            expanded_percentiles(values, trials),
            bootstrap_student(float(aggregate(mine)), values, trials),
        )
        low, high = min(ends[0] for ends in both), max(ends[1] for ends in both)
        intervals.append((max(bounds[0], low), min(bounds[1], high)))
    return intervals


def expanded_percentiles(values: Float[np.ndarray, "resamples"], trials: int) -> Interval:
    tail = expanded_tail(trials)
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap_student(
    estimate: float, values: Float[np.ndarray, "resamples"], trials: int
) -> Interval:
    """The standard error of a bootstrap is that of n, not n - 1, and too small by the root."""
    margin = student(trials) * np.sqrt(trials / (trials - 1)) * float(values.std())
    return estimate - margin, estimate + margin


def resample(
    rng: np.random.Generator, samples: Sequence[Float[np.ndarray, "_ tasks"]], resamples: int
) -> list[Float[np.ndarray, "resamples _ tasks"]]:
    """Trials of all methods, drawn with replacement, whole: the same ones of every method.

    Where methods have different numbers of trials, each is drawn by itself. Then nothing is known
    of their correlation, which makes intervals wider where it is positive.
    """
    counts = {len(scores) for scores in samples}
    if len(counts) > 1:
        return [
            scores[rng.integers(len(scores), size=(resamples, len(scores)))] for scores in samples
        ]
    (trials,) = counts
    drawn = rng.integers(trials, size=(resamples, trials))
    return [scores[drawn] for scores in samples]


def student(trials: int) -> float:
    return float(special.stdtrit(trials - 1, 0.5 + LEVEL / 2))


def expanded_tail(trials: int) -> float:
    """The percentile at which Hesterberg (2015) ends an interval of the bootstrap.

    The plain one, 2.5%, is too narrow with few trials: it has no t distribution, and its variance
    is that of n, not n - 1.
    """
    return float(special.ndtr(-np.sqrt(trials / (trials - 1)) * student(trials)))
