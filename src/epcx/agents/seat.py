"""Where an agent stands among the others: what a critic must know beside what it sees."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from epcx.games import Game


class Seat(eqx.Module):
    """Masks over the agents of a match."""

    me: Bool[Array, "..."]  # [N]
    teammates: Bool[Array, "..."]  # [N], without the agent itself
    opponents: Bool[Array, "..."]  # [N]

    def mine(self, values: Array) -> Array:
        """The agent's own part of [..., N, batch]."""
        return _mine(self.me, values)


@jax.custom_vjp
def _mine(me: Array, values: Array) -> Array:
    return jnp.take(values, jnp.argmax(me), axis=-2)


# The gradient of a gather is a scatter, which is slow: a masked copy is the same here.
_mine.defvjp(
    lambda me, values: (_mine(me, values), me),
    lambda me, slope: (None, jnp.where(me[:, None], slope[..., None, :], 0)),
)


def seats(game: Game) -> Seat:
    """The seats of all agents, stacked: every mask is [N, N]."""
    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    me = np.eye(game.num_agents, dtype=bool)
    same = role[:, None] == role[None, :]
    return Seat(*map(jnp.asarray, (me, same & ~me, ~same)))
