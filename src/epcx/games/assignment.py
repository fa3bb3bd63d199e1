"""Optimal assignment of points in the plane, inside of compiled programs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Search(NamedTuple):
    """Agents up to `agent` have a place; the cheapest way to make room for it is searched.

    A way leads from place to place: whoever is there goes to the next one. The search has closed
    the places whose distance is final; afterwards it walks back from a free place (`searching` is
    False) and moves the agents.
    """

    agent: Int[Array, ""]
    searching: Bool[Array, ""]
    place: Int[Array, ""]  # where search or walk is; as many as there are places: at the start
    reached: Float[Array, ""]  # its distance
    owner: Int[Array, "places"]  # as many as there are agents: nobody
    price: Float[Array, "places"]  # of reduced distances, which are not negative
    distance: Float[Array, "places"]  # reduced, from the start
    before: Int[Array, "places"]  # on the way from the start
    closed: Bool[Array, "places"]


def assign(
    agents: Float[Array, "agents 2"], places: Float[Array, "places 2"]
) -> Int[Array, "places"]:
    """The agent of each place (as many as there are agents: nobody) by the least total distance.

    There must be as many places as agents, or more. Shortest augmenting paths, after Jonker and
    Volgenant (1987). All phases share one loop, so that worlds in parallel hardly wait for each
    other, and no table of distances is kept.
    """
    n, m = len(agents), len(places)
    numbers = jnp.arange(m)

    def length(agent: Array, place: Array) -> Array:
        dx, dy = (place[..., axis] - agent[axis] for axis in (0, 1))
        return jnp.sqrt(dx * dx + dy * dy)

    def step(s: Search) -> Search:
        # Search: which places are nearer by way of this one? Close the nearest.
        at_start = s.place == m
        mover = agents[jnp.where(at_start, s.agent, s.owner[s.place])]
        here = length(mover, places[s.place]) - s.price[s.place]
        so_far = jnp.where(at_start, 0.0, s.reached - here)
        by_way = length(mover, places) - s.price + so_far
        better = (by_way < s.distance) & ~s.closed & s.searching
        distance = jnp.where(better, by_way, s.distance)
        before = jnp.where(better, s.place, s.before)
        left = jnp.where(s.closed, jnp.inf, distance)
        reached = left.min()
        nearest = jnp.where(left == reached, numbers, m - 1).min()  # argmin is several times slower
        found = s.searching & (s.owner[nearest] == n)
        closed = s.closed | ((numbers == nearest) & s.searching)
        price = jnp.where(closed & found, s.price + distance - reached, s.price)
        # Walk: whoever was at the place before comes here.
        back = s.before[s.place]
        ends = ~s.searching & (back == m)
        comes = jnp.where(ends, s.agent, s.owner[back])
        owner = jnp.where((numbers == s.place) & ~s.searching, comes, s.owner)
        return Search(
            agent=s.agent + ends,
            searching=jnp.where(s.searching, ~found, ends),
            place=jnp.where(s.searching, nearest, back),
            reached=jnp.where(s.searching, reached, s.reached),
            owner=owner,
            price=price,
            distance=jnp.where(ends, jnp.inf, distance),
            before=before,
            closed=closed & ~ends,
        )

    start = Search(
        agent=jnp.array(0),
        searching=jnp.array(True),
        place=jnp.array(m),
        reached=jnp.array(0.0),
        owner=jnp.full(m, n),
        price=jnp.zeros(m),
        distance=jnp.full(m, jnp.inf),
        before=jnp.full(m, m),
        closed=jnp.zeros(m, bool),
    )
    return jax.lax.while_loop(lambda s: s.agent < n, step, start).owner
