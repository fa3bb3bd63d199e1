"""An agent, and the architectures that it may have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from epcx.agents import attention, flat
from epcx.games import Game, World


class Agent(eqx.Module):
    """One policy and one critic, and their slowly following targets. An agent set is a stack."""

    policy: Any
    critic: Any
    target_policy: Any
    target_critic: Any


@dataclass(frozen=True)
class Architecture:
    """What the networks see, and how they are made. Views are [features, ..., N, batch]."""

    name: str
    observe: Callable[[Game, World], Any]
    policy: Callable[[Array, Game], Any]
    critic: Callable[[Array, Game], Any]
    widest: Callable[[Game], int]  # bytes of a critic's widest layer, per sample

    def agents(self, key: Array, game: Game) -> Agent:
        """Fresh agents for all seats of a game, stacked on a leading axis."""

        def one(key: Array) -> Agent:
            first, second = jax.random.split(key)
            policy, critic = self.policy(first, game), self.critic(second, game)
            return Agent(policy, critic, policy, critic)

        return jax.vmap(one)(jax.random.split(key, game.num_agents))


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "attention",
            attention.observe,
            attention.AttentionPolicy,
            attention.AttentionCritic,
            attention.widest,
        ),
        Architecture("mlp", flat.observe, flat.FlatPolicy, flat.ConcatenationCritic, flat.widest),
        Architecture(
            "mean-field", flat.observe, flat.FlatPolicy, flat.MeanFieldCritic, flat.widest
        ),
    )
}
