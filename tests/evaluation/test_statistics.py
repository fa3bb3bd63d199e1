"""Statistics against scipy, slow loops from the formulas, and simulated trainings."""

import numpy as np
import pytest
from benchmarks import intervals
from scipy import optimize, stats

from epcx.evaluation import statistics

LOWEST_COVERAGE = 0.89  # of the least covered method, in 400 simulations


def test_interquartile_mean_ignores_both_ends():
    scores = np.array([[-100.0, 2.0], [3.0, 4.0], [5.0, 1000.0], [0.0, 7.0]])
    assert statistics.interquartile_mean(scores) == (2 + 3 + 4 + 5) / 4
    assert statistics.mean(scores) == scores.sum() / 8
    for shape in ((1, 1), (3, 1), (5, 2), (4, 7)):
        some = np.random.default_rng(2).normal(size=shape)
        expected = stats.trim_mean(some.reshape(-1), 0.25)
        assert statistics.interquartile_mean(some) == pytest.approx(expected)


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 5, (6, 2)).astype(float), rng.integers(0, 5, (4, 2)).astype(float)
    expected = [stats.mannwhitneyu(a[:, i], b[:, i]).statistic / 24 for i in range(2)]
    assert statistics.probability_of_improvement(a, b) == pytest.approx(np.mean(expected))
    assert statistics.probability_of_improvement(a, a - 10) == 1


def test_performance_profile_is_the_share_above_each_threshold():
    scores = np.array([[0.1, 0.5], [0.5, 0.9]])
    shares = statistics.performance_profile(scores, np.array([0.0, 0.3, 0.5, 0.95]))
    np.testing.assert_allclose(shares, [1, 0.75, 0.25, 0])


def slowly_normalised(samples):
    """Method by method, trial by trial and task by task."""
    result = [np.zeros_like(scores) for scores in samples]
    for task in range(samples[0].shape[1]):
        means = [sum(scores[:, task]) / len(scores) for scores in samples]
        for mine, scores in zip(result, samples, strict=True):
            for trial in range(len(scores)):
                if max(means) > min(means):
                    distance = scores[trial, task] - min(means)
                    mine[trial, task] = distance / (max(means) - min(means))
    return result


def test_normalised_scores_are_between_the_lowest_and_the_highest_method_mean():
    rng = np.random.default_rng(3)
    samples = [rng.normal(size=(trials, 4)) for trials in (5, 3, 2)]
    for scores in samples:
        scores[:, 3] = 7.0  # a task in which all are the same
    for mine, theirs in zip(statistics.normalise(samples), slowly_normalised(samples), strict=True):
        np.testing.assert_allclose(mine, theirs)


@pytest.mark.parametrize("trials", [2, 5, 20])
def test_mean_interval_is_that_of_scipy(trials):
    values = np.random.default_rng(trials).normal(3, 2, (4, trials))
    low, high = statistics.mean_interval(values)
    for row, ends in zip(values, zip(low, high, strict=True), strict=True):
        expected = stats.t.interval(0.95, trials - 1, row.mean(), stats.sem(row))
        np.testing.assert_allclose(ends, expected)


@pytest.mark.parametrize(("ours", "theirs"), [(5, 5), (5, 20), (10, 6)])
def test_improvement_interval_solves_newcombes_equation(ours, theirs):
    half = (ours + theirs) / 2 - 1

    def excess(theta, estimate):
        share = 1 + half * (1 - theta) / (2 - theta) + half * theta / (1 + theta)
        variance = theta * (1 - theta) * share / (ours * theirs)
        return (theta - estimate) ** 2 - stats.norm.ppf(0.975) ** 2 * variance

    estimates = np.array([0.2, 0.5, 0.9])
    low, high = statistics.improvement_interval(estimates, ours, theirs)
    for estimate, ends in zip(estimates, zip(low, high, strict=True), strict=True):
        expected = [optimize.brentq(excess, end, estimate, (estimate,)) for end in (1e-9, 1 - 1e-9)]
        np.testing.assert_allclose(ends, expected, atol=1e-6)
    np.testing.assert_allclose(
        low, 1 - statistics.improvement_interval(1 - estimates, ours, theirs)[1]
    )


def test_five_trainings_that_are_all_better_do_not_prove_certainty():
    low, high = statistics.improvement_interval(np.array([0.0, 1.0]), 5, 5)
    assert high[1] == pytest.approx(1)
    assert low[0] == pytest.approx(0)
    assert 0.6 < low[1] < 0.7
    assert high[0] == pytest.approx(1 - low[1])


@pytest.mark.parametrize("trials", [5, 10, 20])
def test_expanded_tail_is_that_of_hesterberg(trials):
    quantile = stats.t.ppf(0.025, trials - 1) * np.sqrt(trials / (trials - 1))
    assert statistics.expanded_tail(trials) == pytest.approx(stats.norm.cdf(quantile))
    assert statistics.expanded_tail(trials) < 0.025


def test_trials_are_resampled_whole_with_all_tasks_and_methods():
    number = np.tile(np.arange(6.0)[:, None], (1, 3))
    ours, theirs = statistics.resample(np.random.default_rng(0), [number, 10 * number], 50)
    assert ours.shape == (50, 6, 3)
    np.testing.assert_array_equal(10 * ours, theirs)
    assert (ours == ours[..., :1]).all()
    assert len(np.unique(ours[..., 0], axis=0)) > 40


def test_methods_with_different_numbers_of_trials_are_resampled_by_themselves():
    rng = np.random.default_rng(0)
    samples = [np.arange(trials, dtype=float)[:, None] for trials in (5, 8)]
    ours, theirs = statistics.resample(rng, samples, 1000)
    assert (ours.shape, theirs.shape) == ((1000, 5, 1), (1000, 8, 1))
    correlation = np.corrcoef(ours.mean((1, 2)), theirs.mean((1, 2)))[0, 1]
    assert abs(correlation) < 0.1


@pytest.mark.parametrize("aggregate", [statistics.mean, statistics.interquartile_mean])
def test_aggregate_intervals_normalise_every_resample(aggregate):
    """Against a loop over resamples, and over the two ways to make an interval of them."""
    rng = np.random.default_rng(5)
    samples = [rng.normal(level, 0.4, (6, 3)) for level in (0.0, 0.3, 1.0)]
    drawn = np.random.default_rng(9).integers(6, size=(400, 6))
    values = []
    for trials in drawn:
        normalised = slowly_normalised([scores[trials] for scores in samples])
        values.append([aggregate(scores) for scores in normalised])
    found = statistics.aggregate_intervals(aggregate, samples, seed=9, resamples=400)
    tail = stats.norm.cdf(stats.t.ppf(0.025, 5) * np.sqrt(6 / 5))
    for method, (low, high) in enumerate(found):
        column = np.array(values)[:, method]
        estimate = aggregate(slowly_normalised(samples)[method])
        margin = stats.t.ppf(0.975, 5) * np.sqrt(6 / 5) * column.std()
        ends = np.quantile(column, [tail, 1 - tail])
        assert low == pytest.approx(min(ends[0], estimate - margin))
        assert high == pytest.approx(max(ends[1], estimate + margin))
    bounded = statistics.aggregate_intervals(
        statistics.mean, samples, resamples=400, bounds=(0.0, 1.0)
    )
    assert all(0 <= low <= high <= 1 for low, high in bounded)


@pytest.mark.parametrize("trials", [5, 20])
def test_mean_intervals_cover_the_truth(trials):
    covered = intervals.mean_coverage(trials, "normal", 5_000, statistics.mean_interval)
    assert 0.935 < covered < 0.965
    assert intervals.mean_coverage(trials, "skewed", 5_000, statistics.mean_interval) > 0.89


def test_bootstraps_of_few_trainings_would_not_cover_the_truth():
    """Why no interval is shown below five, and why trials are not drawn within tasks."""
    assert intervals.mean_coverage(2, "normal", 3_000, intervals.plain_bootstrap) < 0.6
    assert intervals.mean_coverage(3, "normal", 3_000, intervals.plain_bootstrap) < 0.8
    assert intervals.stratified_coverage(3, 0.5, 300) < 0.6


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("trials", [5, 10])
def test_improvement_intervals_cover_the_truth_and_are_conservative(trials, correlation):
    covered = intervals.improvement_coverage(trials, correlation, "normal", 2_000)
    assert min(covered) > 0.94
    if correlation == 0.9:
        assert max(covered) < 0.99


@pytest.mark.parametrize("experiment", [intervals.FIRST, intervals.SECOND])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_intervals_of_normalised_scores_cover_the_truth(experiment, correlation):
    covered = intervals.aggregate_coverage(experiment, 5, correlation, "normal", 400, 500)
    assert covered["mean"].min() > LOWEST_COVERAGE
    assert covered["IQM"].min() > LOWEST_COVERAGE
    assert covered["mean"][1:-1].max() < 0.999  # the lowest and the highest are 0 and 1
    for part in ("mean, percentiles", "mean, t"):
        assert (covered[part] <= covered["mean"]).all()
