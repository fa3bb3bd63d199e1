"""An agent, and the architectures that it may have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from epcx.games import Game, World
from epcx.networks import attention, mlp, relational
from epcx.networks.neighbourhood import add_neighbourhoods


class Agent(eqx.Module):
    """A policy and a critic, or two, and their target networks. A set is a stack of agents."""

    policy: PyTree
    critic: PyTree
    target_policy: PyTree
    target_critic: PyTree


@dataclass(frozen=True)
class Architecture:
    """What the networks observe, and how they are made.

    `observe` gives observations as the game has them, [N, ..., batch]; `to_features_first` turns
    them into what networks read, [features, ..., N, batch]. Where weights fit any population, it
    and the two functions of bytes take `neighbours`, too.
    """

    name: str
    observe: Callable[..., PyTree]  # of a game and worlds
    to_features_first: Callable[[PyTree], PyTree]
    policy: Callable[[Array, Game], eqx.Module]
    critic: Callable[[Array, Game], eqx.Module]
    hidden_bytes: Callable[..., int]  # of a critic's hidden units per sample: its work in a game
    activation_bytes: Callable[..., int]  # of its widest layer that reaches memory here
    any_population: bool  # weights fit every population
    equivariant: bool = False  # they see and act in a frame of the agent's own
    neighbours: int | None = None  # of each kind that agents see and critics attend to; None: all

    def with_neighbours(self, k: int | None) -> "Architecture":
        """The same for neighbourhoods of the `k` nearest; for networks of any population."""
        if k is None:
            return self
        return replace(
            self,
            neighbours=k,
            observe=partial(self.observe, neighbours=k),
            hidden_bytes=partial(self.hidden_bytes, neighbours=k),
            activation_bytes=partial(self.activation_bytes, neighbours=k),
        )

    def views(self, game: Game, worlds: World) -> PyTree:
        """A batch of observations, as networks read them."""
        views = self.to_features_first(self.observe(game, worlds))
        if self.neighbours is None:
            return views
        return add_neighbourhoods(views, game, worlds, self.neighbours)

    def agents(self, key: Key[Array, ""], game: Game, twins: bool = False) -> Agent:
        """Fresh agents for all seats of a game, stacked on a leading axis.

        `twins` have two critics, stacked on another one.
        """

        def agent(key: Key[Array, ""]) -> Agent:
            first, second = jax.random.split(key)
            policy, critic = self.policy(first, game), self.critic(second, game)
            if twins:
                critic = jax.vmap(self.critic, (0, None))(jax.random.split(second), game)
            return Agent(policy, critic, policy, critic)

        return jax.vmap(agent)(jax.random.split(key, game.num_agents))


ATTENTION = Architecture(
    "attention",
    attention.observe,
    attention.to_features_first,
    attention.AttentionPolicy,
    attention.AttentionCritic,
    attention.hidden_bytes,
    attention.activation_bytes,
    any_population=True,
)
RELATIONAL = replace(
    ATTENTION,
    name="relational",
    policy=relational.RelationalPolicy,
    critic=relational.RelationalCritic,
    hidden_bytes=relational.hidden_bytes,
    activation_bytes=relational.hidden_bytes,
)
EQUIVARIANT = replace(
    RELATIONAL,
    name="equivariant",
    policy=partial(relational.RelationalPolicy, equivariant=True),
    critic=partial(relational.RelationalCritic, equivariant=True),
    equivariant=True,
)
MLP = Architecture(
    "mlp",
    mlp.observe,
    mlp.to_features_first,
    mlp.MLPPolicy,
    mlp.ConcatenationCritic,
    mlp.input_bytes,
    mlp.input_bytes,
    any_population=False,
)
ARCHITECTURES = {
    networks.name: networks
    for networks in (
        ATTENTION,
        replace(
            ATTENTION,
            name="attention-separate",
            critic=partial(attention.AttentionCritic, separate=True),
        ),
        RELATIONAL,
        EQUIVARIANT,
        MLP,
        replace(MLP, name="mean-field", critic=mlp.MeanFieldCritic),
        replace(MLP, name="mean-field-local", critic=partial(mlp.MeanFieldCritic, local=True)),
    )
}
