"""Where an agent stands among the others: what a critic must know beside what it sees."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from epcx.games import Game


class Seat(eqx.Module):
    """Masks over the agents of a match."""

    me: Bool[Array, "..."] | np.ndarray  # [N]
    teammates: Bool[Array, "..."] | np.ndarray  # [N], without the agent itself
    opponents: Bool[Array, "..."] | np.ndarray  # [N]

    def mine(self, values: Array) -> Array:
        """The agent's own part of [..., N, batch]; a masked sum, which maps to no gather."""
        me = jnp.asarray(self.me)[:, None]
        return (values & me).any(-2) if values.dtype == bool else (values * me).sum(-2)

    def pick(self, values: Array) -> Array:
        """The same by a gather: faster, unless gradients go through it."""
        return jnp.take(values, jnp.argmax(jnp.asarray(self.me)), axis=-2)


def seats(game: Game) -> Seat:
    """The seats of all agents, stacked: every mask is [N, N]."""
    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    me = np.eye(game.num_agents, dtype=bool)
    same = role[:, None] == role[None, :]
    return Seat(me, same & ~me, ~same)
