"""Crossover: agent sets of the same role are joined, and the joined sets form matches."""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement

import jax
import numpy as np
from jaxtyping import PyTree

Mixture = tuple[tuple[int, ...], ...]  # for each role, the sets that are joined


def parents_needed(before: int, after: int) -> int:
    """How many sets of `before` agents it takes to fill `after` seats."""
    return -(-after // before)


def number_of_mixtures(sets: int, parents: Sequence[int]) -> int:
    """C_max: for two parents (K(K+1)/2)^roles."""
    return math.prod(math.comb(sets + many - 1, many) for many in parents)


def mix_and_match(
    rng: np.random.Generator, sets: int, parents: Sequence[int], matches: int | None
) -> list[Mixture]:
    """All mixtures of `sets` sets, joining `parents[i]` of them in role i; at most `matches`.

    Within a role every set is joined with every set, itself included; across roles every joined
    set meets every other. A sample has no repetitions.
    """
    within = [list(combinations_with_replacement(range(sets), many)) for many in parents]
    shape = [len(joined) for joined in within]
    total = math.prod(shape)
    chosen = np.arange(total)
    if matches is not None and matches < total:
        chosen = np.sort(rng.choice(total, matches, replace=False))
    places = np.stack(np.unravel_index(chosen, shape), 1)
    return [tuple(within[i][at] for i, at in enumerate(place)) for place in places.tolist()]


def join(sets: Sequence[PyTree], seats: int) -> PyTree:
    """One agent set of several: their agents in order, as many as there are seats."""
    return jax.tree.map(lambda *x: np.concatenate(x)[:seats], *sets)
