"""The place of an agent among the others: what a critic needs beside observations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from epcx.games import Game


class Seat(eqx.Module):
    """An agent's number in a match, and masks over all agents; for one, or stacked for all."""

    number: Int[Array, "*seats"]
    teammates: Bool[Array, "*seats agents"]  # without the agent itself
    opponents: Bool[Array, "*seats agents"]

    @property
    def me(self) -> Bool[Array, "*seats agents"]:
        return self.number[..., None] == jnp.arange(self.teammates.shape[-1])

    def mine(self, values: Shaped[Array, "*axes agents batch"]) -> Shaped[Array, "*axes batch"]:
        """The agent's own row."""
        return _mine(self.number, self.me, values)

    def groups(self, alive: Bool[Array, "agents batch"]) -> list[Bool[Array, "agents batch"]]:
        """Who lives among teammates, and among opponents."""
        return [group[:, None] & alive for group in (self.teammates, self.opponents)]


@jax.custom_vjp
def _mine(number: Array, me: Array, values: Array) -> Array:
    return jnp.take(values, number, axis=-2)


# The gradient of a gather is a scatter, which is slow: a masked copy is the same here.
_mine.defvjp(
    lambda number, me, values: (_mine(number, me, values), me),
    lambda me, grad: (None, None, jnp.where(me[:, None], grad[..., None, :], 0)),
)


def seats(game: Game) -> Seat:
    """The seats of all agents, stacked: every mask is [N, N]."""
    number = np.arange(game.num_agents)
    role = np.repeat(np.arange(len(game.roles)), game.population.counts)
    same = role[:, None] == role[None, :]
    others = ~np.eye(game.num_agents, dtype=bool)
    return Seat(*map(jnp.asarray, (number, same & others, ~same)))
