"""Mix-and-match and selection on tiny arrays, against results worked out by hand."""

import itertools

import numpy as np
import pytest

from epcx.evolution.mix_and_match import join, mix_and_match, number_of_mixtures, parents_needed
from epcx.evolution.selection import fitness, fittest, pairings


def rng(seed=0):
    return np.random.default_rng(seed)


def test_mix_and_match_pairs_all_sets_of_one_role():
    pairs = [((0, 0),), ((0, 1),), ((0, 2),), ((1, 1),), ((1, 2),), ((2, 2),)]
    assert mix_and_match(rng(), 3, [2], None) == pairs
    assert number_of_mixtures(3, [2]) == 6


def test_mix_and_match_combines_the_pairs_of_two_roles():
    """K = 2: three pairs in each role, nine matches, as in the paper."""
    pairs = [(0, 0), (0, 1), (1, 1)]
    assert mix_and_match(rng(), 2, [2, 2], None) == list(itertools.product(pairs, pairs))
    assert number_of_mixtures(2, [2, 2]) == 9


def test_mix_and_match_clones_a_single_set():
    """Vanilla-PC."""
    assert mix_and_match(rng(), 1, [2, 2], None) == [((0, 0), (0, 0))]


def test_mix_and_match_joins_three_parents_when_the_population_triples():
    assert parents_needed(2, 6) == 3
    assert mix_and_match(rng(), 2, [3], None) == [
        ((0, 0, 0),),
        ((0, 0, 1),),
        ((0, 1, 1),),
        ((1, 1, 1),),
    ]


def test_sampled_mixtures_are_distinct_and_determined_by_the_seed():
    everything = mix_and_match(rng(), 3, [2, 2], None)
    some = mix_and_match(rng(1), 3, [2, 2], 10)
    assert len(set(some)) == 10
    assert set(some) <= set(everything)
    assert some == mix_and_match(rng(1), 3, [2, 2], 10)
    assert some != mix_and_match(rng(2), 3, [2, 2], 10)
    assert mix_and_match(rng(), 3, [2, 2], 1000) == everything


def test_join_concatenates_the_agents_of_the_parents():
    a, b = {"w": np.array([[1.0], [2.0]])}, {"w": np.array([[3.0], [4.0]])}
    np.testing.assert_array_equal(join([a, b], 4)["w"], [[1], [2], [3], [4]])
    np.testing.assert_array_equal(join([a, a], 4)["w"], [[1], [2], [1], [2]])
    np.testing.assert_array_equal(join([a, b], 3)["w"], [[1], [2], [3]])  # fewer seats


def test_pairings_are_all_combinations_by_default():
    played = pairings(rng(), 3, 2, None)
    assert sorted(map(tuple, played.tolist())) == list(itertools.product(range(3), repeat=2))
    assert pairings(rng(), 4, 1, None).tolist() == [[0], [1], [2], [3]]
    assert len(set(map(tuple, pairings(rng(), 2, 3, None).tolist()))) == 8


def test_sampled_pairings_are_distinct_and_balanced():
    """Every set of every role plays equally often, and no pairing twice."""
    played = pairings(rng(), 5, 3, 4)
    assert len(played) == 20
    assert len(set(map(tuple, played.tolist()))) == 20
    for role in range(3):
        assert np.bincount(played[:, role], minlength=5).tolist() == [4] * 5


def test_fitness_is_the_mean_over_the_pairings_played():
    played = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    scores = np.array([[1.0, 10.0], [3.0, 20.0], [5.0, 30.0], [9.0, 50.0]])
    expected = [[2.0, 7.0, np.nan], [20.0, 35.0, np.nan]]
    np.testing.assert_array_equal(fitness(played, scores, 3), expected)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 3.0, 2.0], [1, 2]),
        ([1.0, 1.0, 1.0], [0, 1]),  # ties: by number
        ([np.nan, 3.0, -1.0], [1, 2]),
        ([np.nan, np.nan, -1.0], [2]),  # without a fitness: never promoted
        ([np.inf, 3.0, -np.inf], [1]),
        ([-5.0, -2.0, -9.0], [1, 0]),
    ],
)
def test_fittest_are_the_highest_finite_scores_best_first(scores, expected):
    assert fittest(np.array(scores), 2) == expected
