"""Results sorted into tables, against numbers computed by hand."""

import numpy as np
from scipy import stats

from epcx.evaluation import statistics
from epcx.evaluation.results import CURVE, SCORE, Result, normalise, scores_of, tabulate


def make_result(role, method, trial, mean, population="4-4", purpose=SCORE, error=3.0):
    reward = {"reward": {"mean": mean, "error": error}}
    return Result(purpose, population, role, method, trial, f"seed {trial}", "epc", None, reward)


def test_tabulate_keeps_roles_apart_or_averages_them():
    results = [
        make_result("team1", "epc", 0, 10.0),
        make_result("team2", "epc", 0, 20.0, error=4.0),
        make_result("team1", "epc", 1, 1.0),
        make_result("team2", "epc", 1, 2.0, error=4.0),
        make_result("team1", "epc", 0, 99.0, purpose=CURVE),
    ]
    apart = tabulate(results, SCORE)
    assert apart["4-4", "team1"]["epc"].values.tolist() == [10, 1]
    merged = tabulate(results, SCORE, merged="both")
    cell = merged["4-4", "both"]["epc"]
    assert cell.values.tolist() == [15, 1.5]
    assert cell.errors.tolist() == [2.5, 2.5]  # of the mean of two: sqrt(9 + 16) / 2
    assert cell.interval is None  # two trainings are too few
    np.testing.assert_allclose(cell.error, 2.5 / np.sqrt(2))


def test_intervals_over_trainings_need_five():
    values = [3.0, 5.0, 4.0, 8.0, 6.0]
    for number in range(1, 6):
        results = [make_result("sheep", "epc", i, x) for i, x in enumerate(values[:number])]
        cell = tabulate(results, SCORE)["4-4", "sheep"]["epc"]
        assert (cell.interval is None) == (number < 5)
        assert (cell.student_interval is None) == (number < 2)
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(cell.interval, expected)


def test_games_against_several_opponents_are_averaged():
    results = [
        make_result("sheep", "epc", trial, x) for trial in (0, 1) for x in (1.0, 4.0 + trial)
    ]
    cell = tabulate(results, SCORE)["4-4", "sheep"]["epc"]
    assert cell.values.tolist() == [2.5, 3.0]


def test_normalised_scores_are_0_for_the_worst_and_1_for_the_best_method():
    rewards = {"maddpg": -20.0, "att-maddpg": -15.0, "epc": 0.0, "scripted": 100.0}
    results = [make_result("sheep", method, 0, reward) for method, reward in rewards.items()]
    cells = normalise(tabulate(results, SCORE), ["maddpg", "att-maddpg", "epc"])["4-4", "sheep"]
    assert {m: cell.mean for m, cell in cells.items()} == {
        "maddpg": 0,
        "att-maddpg": 0.25,
        "epc": 1,
    }
    assert cells["epc"].error == 3 / 20
    same = normalise(tabulate(results[:1], SCORE), ["maddpg"])
    assert same["4-4", "sheep"]["maddpg"].mean == 0


def test_intervals_of_normalised_scores_need_five_trainings_of_every_method():
    def cells(trainings):
        results = [
            make_result("sheep", method, trial, level + 0.1 * trial**2)
            for level, method in enumerate(("maddpg", "att-maddpg", "epc"))
            for trial in range(trainings if method == "maddpg" else 5)
        ]
        table = tabulate(results, SCORE)
        return table, normalise(table, ["maddpg", "att-maddpg", "epc"])["4-4", "sheep"]

    assert {cell.interval for cell in cells(4)[1].values()} == {None}
    table, normalised = cells(5)
    raw = [cell.values[:, None] for cell in table["4-4", "sheep"].values()]
    expected = statistics.aggregate_intervals(statistics.mean, raw, bounds=(0.0, 1.0))
    assert [cell.interval for cell in normalised.values()] == expected
    low, high = normalised["att-maddpg"].interval
    assert low < 0.5 < high


def test_scores_have_the_tasks_of_all_methods_and_the_trials_of_all_tasks():
    results = [
        *(make_result("sheep", "epc", trial, 5.0 + trial) for trial in range(3)),
        *(make_result("wolf", "epc", trial, 8.0 + trial) for trial in range(2)),
        *(make_result("sheep", "maddpg", trial, 1.0 + trial) for trial in range(4)),
        *(make_result("wolf", "maddpg", trial, 3.0 + trial) for trial in range(4)),
        *(make_result("sheep", "epc", trial, 7.0, population="8-8") for trial in range(3)),
    ]
    scores = scores_of(tabulate(results, SCORE), ["epc", "maddpg"])
    assert scores["epc"].tolist() == [[5, 8], [6, 9]]
    assert scores["maddpg"].tolist() == [[1, 3], [2, 4], [3, 5], [4, 6]]
    assert scores_of(tabulate(results, SCORE), ["epc", "vanilla-pc"]) == {}
