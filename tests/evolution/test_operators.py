"""Mix-and-match and selection on tiny arrays, against results worked out by hand."""

import itertools

import numpy as np
import pytest

from epcx.evolution.mix_and_match import join, mix_and_match, number_of_mixtures, parents_needed
from epcx.evolution.selection import fitness, fittest, pairings


def chance(seed=0):
    return np.random.default_rng(seed)


def test_one_role_pairs_every_set_with_every_set():
    pairs = [((0, 0),), ((0, 1),), ((0, 2),), ((1, 1),), ((1, 2),), ((2, 2),)]
    assert mix_and_match(chance(), 3, [2], None) == pairs
    assert number_of_mixtures(3, [2]) == 6


def test_two_roles_combine_all_pairs():
    """K = 2: three pairs in each role, nine matches, as in the paper."""
    pairs = [(0, 0), (0, 1), (1, 1)]
    assert mix_and_match(chance(), 2, [2, 2], None) == list(itertools.product(pairs, pairs))
    assert number_of_mixtures(2, [2, 2]) == 9


def test_a_single_set_is_cloned():
    """Vanilla-PC."""
    assert mix_and_match(chance(), 1, [2, 2], None) == [((0, 0), (0, 0))]


def test_three_parents_where_the_population_triples():
    assert parents_needed(2, 6) == 3
    assert mix_and_match(chance(), 2, [3], None) == [
        ((0, 0, 0),),
        ((0, 0, 1),),
        ((0, 1, 1),),
        ((1, 1, 1),),
    ]


def test_a_sample_has_no_repetitions_and_follows_the_seed():
    everything = mix_and_match(chance(), 3, [2, 2], None)
    some = mix_and_match(chance(1), 3, [2, 2], 10)
    assert len(set(some)) == 10
    assert set(some) <= set(everything)
    assert some == mix_and_match(chance(1), 3, [2, 2], 10)
    assert some != mix_and_match(chance(2), 3, [2, 2], 10)
    assert mix_and_match(chance(), 3, [2, 2], 1000) == everything


def test_joined_sets_hold_their_parents_unchanged():
    a, b = {"w": np.array([[1.0], [2.0]])}, {"w": np.array([[3.0], [4.0]])}
    np.testing.assert_array_equal(join([a, b], 4)["w"], [[1], [2], [3], [4]])
    np.testing.assert_array_equal(join([a, a], 4)["w"], [[1], [2], [1], [2]])
    np.testing.assert_array_equal(join([a, b], 3)["w"], [[1], [2], [3]])  # by half


def test_all_pairings():
    games = pairings(chance(), 3, 2, None)
    assert sorted(map(tuple, games.tolist())) == list(itertools.product(range(3), repeat=2))
    assert pairings(chance(), 4, 1, None).tolist() == [[0], [1], [2], [3]]
    assert len(set(map(tuple, pairings(chance(), 2, 3, None).tolist()))) == 8


def test_a_sample_of_pairings_is_fair():
    """Every set of every role plays as often, and no game twice."""
    games = pairings(chance(), 5, 3, 4)
    assert len(games) == 20
    assert len(set(map(tuple, games.tolist()))) == 20
    for role in range(3):
        assert np.bincount(games[:, role], minlength=5).tolist() == [4] * 5


def test_fitness_is_the_mean_over_the_games_played():
    played = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    scores = np.array([[1.0, 10.0], [3.0, 20.0], [5.0, 30.0], [9.0, 50.0]])
    expected = [[2.0, 7.0, np.nan], [20.0, 35.0, np.nan]]
    np.testing.assert_array_equal(fitness(played, scores, 3), expected)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 3.0, 2.0], [1, 2]),
        ([1.0, 1.0, 1.0], [0, 1]),  # ties: in order
        ([np.nan, 3.0, -1.0], [1, 2]),
        ([np.nan, np.nan, -1.0], [2]),  # what has no fitness is never promoted
        ([np.inf, 3.0, -np.inf], [1]),
        ([-5.0, -2.0, -9.0], [1, 0]),
    ],
)
def test_the_fittest(scores, expected):
    assert fittest(np.array(scores), 2) == expected
