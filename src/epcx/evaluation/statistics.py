"""Statistics over independent trainings, as Agarwal et al. (2021) recommend them.

Scores are [trials, tasks], perhaps with more axes in front: a task is a population and a role.
Intervals are percentiles of a stratified bootstrap: trials are drawn again within every task.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Scores = Float[np.ndarray, "... trials tasks"]
Numbers = Float[np.ndarray, "..."]
LEVEL = 0.95
RESAMPLES = 2_000


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


def interval(
    statistic: Callable[..., Numbers],
    *samples: Float[np.ndarray, "_ tasks"],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Between which values the statistic of the samples lies, with 95% confidence."""
    rng = np.random.default_rng(seed)
    drawn = statistic(*(resample(rng, scores, resamples) for scores in samples))
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def resample(
    rng: np.random.Generator, scores: Float[np.ndarray, "trials tasks"], resamples: int
) -> Float[np.ndarray, "resamples trials tasks"]:
    """As many trials as there are, drawn with replacement within every task."""
    drawn = rng.integers(len(scores), size=(resamples, *scores.shape))
    return np.take_along_axis(scores[None], drawn, 1)


def performance_profile(
    scores: Scores, thresholds: Float[np.ndarray, "points"]
) -> Float[np.ndarray, "points"]:
    """For each threshold the share of trainings, over all tasks, that score above it."""
    return np.asarray((scores.reshape(-1, 1) > thresholds).mean(0))
