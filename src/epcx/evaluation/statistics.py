"""Statistics over independent trainings, as Agarwal et al. (2021) recommend them.

Scores are [trials, tasks]: a task is a population and a role. Intervals are percentiles of a
stratified bootstrap: trials are drawn again within every task.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import stats

Scores = Float[np.ndarray, "trials tasks"]
LEVEL = 0.95
RESAMPLES = 2_000


def mean(scores: np.ndarray) -> float:
    return float(scores.mean())


def interquartile_mean(scores: np.ndarray) -> float:
    """The mean of the middle half of all scores: robust to outliers, unlike the mean, and less
    wasteful than the median."""
    return float(stats.trim_mean(scores.reshape(-1), 0.25))


def interval(
    scores: Scores,
    statistic: Callable[[np.ndarray], float] = mean,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Between which values the statistic lies with 95% confidence; needs two trials at least."""
    chance = np.random.default_rng(seed)
    drawn = [statistic(resample(chance, scores)) for _ in range(resamples)]
    return percentiles(drawn)


def resample(chance: np.random.Generator, scores: Scores) -> Scores:
    trials, tasks = scores.shape
    return scores[chance.integers(trials, size=scores.shape), np.arange(tasks)]


def percentiles(values: list[float]) -> tuple[float, float]:
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def probability_of_improvement(scores: Scores, others: Float[np.ndarray, "others tasks"]) -> float:
    """How likely a training by the first method beats one by the second, on a random task.

    Ties count half (the Mann-Whitney statistic, averaged over tasks).
    """
    better = scores[:, None] > others[None]
    equal = scores[:, None] == others[None]
    return float((better + 0.5 * equal).mean())


def improvement_interval(
    scores: Scores,
    others: Float[np.ndarray, "others tasks"],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    chance = np.random.default_rng(seed)
    drawn = [
        probability_of_improvement(resample(chance, scores), resample(chance, others))
        for _ in range(resamples)
    ]
    return percentiles(drawn)


def performance_profile(
    scores: Scores, thresholds: Float[np.ndarray, "points"]
) -> Float[np.ndarray, "points"]:
    """For each threshold the share of trainings, over all tasks, that score above it."""
    return (scores.reshape(-1, 1) > thresholds).mean(0)
