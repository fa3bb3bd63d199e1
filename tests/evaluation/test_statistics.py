"""Statistics against known values, and against scipy where it has them."""

import numpy as np
import pytest
from scipy import stats

from epcx.evaluation import statistics


def test_interquartile_mean_ignores_both_ends():
    scores = np.array([[-100.0, 2.0], [3.0, 4.0], [5.0, 1000.0], [0.0, 7.0]])
    assert statistics.interquartile_mean(scores) == (2 + 3 + 4 + 5) / 4
    assert statistics.mean(scores) == scores.sum() / 8
    for shape in ((1, 1), (3, 1), (5, 2), (4, 7)):
        some = np.random.default_rng(2).normal(size=shape)
        expected = stats.trim_mean(some.reshape(-1), 0.25)
        assert statistics.interquartile_mean(some) == pytest.approx(expected)


def test_interval_of_two_trials_ends_at_them():
    """Their means are drawn with shares 1/4, 1/2 and 1/4."""
    assert statistics.interval(statistics.mean, np.array([[0.0], [1.0]])) == (0.0, 1.0)


def test_interval_agrees_with_scipy():
    scores = np.random.default_rng(0).normal(size=(12, 1))
    theirs = stats.bootstrap(
        (scores[:, 0],), np.mean, method="percentile", n_resamples=20_000, rng=1
    ).confidence_interval
    ours = statistics.interval(statistics.mean, scores, resamples=20_000)
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_bootstrap_draws_trials_within_their_task():
    """Differences between tasks do not widen the interval if trials within them are equal."""
    scores = np.tile([0.0, 10.0, 1000.0], (4, 1))
    assert statistics.interval(statistics.mean, scores) == (scores.mean(), scores.mean())


def test_interval_covers_the_true_mean_with_its_confidence():
    rng = np.random.default_rng(3)
    hits = 0
    for number in range(200):
        sample = rng.normal(size=(20, 1))
        low, high = statistics.interval(statistics.mean, sample, seed=number, resamples=300)
        hits += low <= 0 <= high
    assert 0.86 < hits / 200 < 0.99  # percentile intervals are a little too narrow


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 5, (6, 2)).astype(float), rng.integers(0, 5, (4, 2)).astype(float)
    expected = [stats.mannwhitneyu(a[:, i], b[:, i]).statistic / 24 for i in range(2)]
    assert statistics.probability_of_improvement(a, b) == pytest.approx(np.mean(expected))
    low, high = statistics.interval(statistics.probability_of_improvement, a, b)
    assert low < np.mean(expected) < high
    assert statistics.probability_of_improvement(a, a - 10) == 1


def test_performance_profile_is_the_share_above_each_threshold():
    scores = np.array([[0.1, 0.5], [0.5, 0.9]])
    shares = statistics.performance_profile(scores, np.array([0.0, 0.3, 0.5, 0.95]))
    np.testing.assert_allclose(shares, [1, 0.75, 0.25, 0])
