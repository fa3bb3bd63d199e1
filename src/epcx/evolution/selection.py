"""Selection: fitness from pairings with the other roles' sets, and the fittest."""

from itertools import product

import numpy as np
from jaxtyping import Float, Int


def pairings(
    rng: np.random.Generator, matches: int, roles: int, rounds: int | None
) -> Int[np.ndarray, "pairings roles"]:
    """Which match's set of each role plays in each pairing, in rounds where every set plays once.

    In a round the sets of each further role are shifted against those of the first; all shifts
    together are all pairings. `rounds` takes a sample of them, without repetition.
    """
    all_shifts = list(product([0], *[range(matches)] * (roles - 1)))  # the first role stands still
    shifts = np.array(all_shifts)
    if rounds is not None and rounds < len(shifts):
        shifts = shifts[np.sort(rng.choice(len(shifts), rounds, replace=False))]
    paired = (np.arange(matches)[None, :, None] + shifts[:, None, :]) % matches
    return paired.reshape(-1, roles)


def fitness(
    played: Int[np.ndarray, "pairings roles"],
    scores: Float[np.ndarray, "pairings roles"],
    matches: int,
) -> Float[np.ndarray, "roles matches"]:
    """The mean score of each set over its pairings; NaN if it has none."""
    result = np.full((played.shape[1], matches), np.nan)
    for role, who in enumerate(played.T):
        for match in np.unique(who):
            result[role, match] = scores[who == match, role].mean()
    return result


def fittest(scores: Float[np.ndarray, "matches"], most: int) -> list[int]:
    """The matches with the highest scores, best first; ties by number, and never one without."""
    finite = [int(match) for match in np.flatnonzero(np.isfinite(scores))]
    return sorted(finite, key=lambda match: -scores[match])[:most]
