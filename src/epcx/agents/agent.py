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
    """What the networks see, and how they are made.

    `see` gives observations as the game has them, [N, ..., batch]; `arrange` turns them into what
    networks read, [features, ..., N, batch].
    """

    name: str
    see: Callable[[Game, World], Any]
    arrange: Callable[[Any], Any]
    policy: Callable[[Array, Game], Any]
    effort: Callable[[Game], int]  # bytes of a critic's widest layer, per sample
    widest: Callable[[Game], int]  # the same, of what reaches memory on this machine
    critic: Callable[[Array, Game], Any]

    @property
    def kind(self) -> str:
        """That of the policy: architectures that differ in their critics only play alike."""
        return getattr(self.policy, "__name__", self.name)

    def observe(self, game: Game, worlds: World) -> Any:
        return self.arrange(self.see(game, worlds))

    def agents(self, key: Array, game: Game) -> Agent:
        """Fresh agents for all seats of a game, stacked on a leading axis."""

        def one(key: Array) -> Agent:
            first, second = jax.random.split(key)
            policy, critic = self.policy(first, game), self.critic(second, game)
            return Agent(policy, critic, policy, critic)

        return jax.vmap(one)(jax.random.split(key, game.num_agents))


ATTENTION = (
    attention.see,
    attention.arrange,
    attention.AttentionPolicy,
    attention.effort,
    attention.widest,
)
FLAT = (flat.see, flat.arrange, flat.FlatPolicy, flat.widest, flat.widest)
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("attention", *ATTENTION, attention.AttentionCritic),
        Architecture("mlp", *FLAT, flat.ConcatenationCritic),
        Architecture("mean-field", *FLAT, flat.MeanFieldCritic),
    )
}
