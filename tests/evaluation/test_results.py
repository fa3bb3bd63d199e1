"""Results sorted into tables, against numbers computed by hand."""

import numpy as np

from epcx.evaluation.results import CURVE, SCORE, Result, normalise, scores_of, tabulate


def make_result(role, method, trial, mean, population="4-4", purpose=SCORE, error=3.0):
    reward = {"reward": {"mean": mean, "error": error}}
    return Result(purpose, population, role, method, trial, "epc", None, reward)


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
    assert cell.interval == (1.5, 15)
    np.testing.assert_allclose(cell.error, 2.5 / np.sqrt(2))


def test_cell_of_one_trial_has_no_interval():
    assert (
        tabulate([make_result("sheep", "epc", 0, 1.0)], SCORE)["4-4", "sheep"]["epc"].interval
        is None
    )


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


def test_scores_have_the_tasks_and_trials_of_all_methods():
    results = [
        *(make_result("sheep", "epc", trial, 5.0 + trial) for trial in range(3)),
        *(make_result("sheep", "maddpg", trial, 1.0 + trial) for trial in range(2)),
        *(make_result("sheep", "epc", trial, 7.0, population="8-8") for trial in range(3)),
    ]
    scores = scores_of(tabulate(results, SCORE))
    assert scores["epc"].tolist() == [[5], [6]]
    assert scores["maddpg"].tolist() == [[1], [2]]
