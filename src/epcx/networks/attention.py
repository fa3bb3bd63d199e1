"""The population-invariant policy and critic (section 4.1 and figure 1 of the paper).

No weight depends on how many entities or agents there are. Everything is written for the network
of one agent; features come first, a batch last.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from epcx.games import Entities, Game, Observation, World
from epcx.networks import kernels
from epcx.networks.layers import (
    EMBEDDING,
    HIDDEN,
    MLP,
    Linear,
    attention_weights,
    flatten_rows,
    normalise,
)
from epcx.networks.neighbourhood import attended, num_seen, num_slots, row_index
from epcx.networks.seat import Seat


def observe(game: Game, worlds: World, neighbours: int | None = None) -> Observation:
    """What every agent sees: everything, or the nearest of each entity type."""
    if neighbours is None:
        return game.observe_batch(worlds)
    return game.observe_nearest_batch(worlds, neighbours)


def to_features_first(observation: Observation) -> Observation:
    """A batch of observations as networks read them.

    own [features, N, batch]; per entity type features [features, slots, N, batch] and
    mask [slots, N, batch].
    """
    entities = {
        name: Entities(features.transpose(2, 1, 0, 3).astype(jnp.float32), mask.swapaxes(0, 1))
        for name, (features, mask) in observation.entities.items()
    }
    return Observation(observation.own.swapaxes(0, 1).astype(jnp.float32), entities)


def hidden_bytes(game: Game, neighbours: int | None = None) -> int:
    """A measure of a critic's work per sample: bytes of its hidden units.

    With Pallas, of what it encodes. For a single row, which C++ never gets: checkpoints have as
    many shards as this suggests, so that on CPUs it must depend on the game alone.
    """
    return _widest_layer(game, neighbours, rows=1)


def activation_bytes(game: Game, neighbours: int | None = None) -> int:
    """Bytes of a critic's widest layer that reaches memory on this machine, per sample."""
    return _widest_layer(game, neighbours, rows=2**20)  # a batch is large enough for all kernels


def _widest_layer(game: Game, neighbours: int | None, rows: int) -> int:
    shapes = game.observation_shapes
    agents = game.num_agents if neighbours is None else num_slots(game, neighbours)
    types = shapes.entities.values()
    features = [shapes.own.shape[-1], *(entities.features.shape[-1] for entities in types)]
    if kernels.select(rows, features).fused:
        return agents * (1 + len(types)) * EMBEDDING * 4
    return agents * num_seen(game, neighbours) * HIDDEN * 4


class ObservationEncoder(eqx.Module):
    """The part of f that sees an observation: own embedding and one embedding per entity type."""

    own: MLP
    entities: dict[str, MLP]

    def __init__(self, key: Key[Array, ""], game: Game):
        shapes = game.observation_shapes
        keys = jax.random.split(key, 1 + len(shapes.entities))
        self.own = MLP(keys[0], shapes.own.shape[-1], HIDDEN, EMBEDDING)
        self.entities = {
            name: MLP(k, shapes.entities[name].features.shape[-1], HIDDEN, EMBEDDING)
            for name, k in zip(sorted(shapes.entities), keys[1:], strict=True)
        }

    @property
    def width(self) -> int:
        return EMBEDDING * (1 + len(self.entities))

    @property
    def features(self) -> tuple[int, ...]:
        """Numbers of features: of the agent itself, and of each entity type."""
        mlps = self.own, *self.entities.values()
        return tuple(mlp.layers[0].weight.shape[-1] for mlp in mlps)

    def __call__(
        self, view: Observation, agents: Int[Array, "slots batch"] | None = None
    ) -> Float[Array, "width *rows"]:
        """`view` is that of one agent, or of many along the rows.

        If `agents` are given, rows are these, of the many that `view` has.
        """
        seen = view.own.shape[1:]
        rows = seen if agents is None else agents.shape
        index = None if agents is None else row_index(agents)
        kernel = kernels.select(math.prod(rows), self.features).encode
        encoded = kernel(self.own, self.entities, flatten_rows(view, len(seen)), index)
        return encoded.reshape(self.width, *rows)

    def attention(self, view: Observation) -> dict[str, Float[Array, "_slots *rows"]]:
        """The attention weights among the entities of each type."""
        query = jax.nn.relu(self.own(view.own))
        return {
            name: attention_weights(query, jax.nn.relu(self.entities[name](features)), mask)
            for name, (features, mask) in view.entities.items()
        }


class AttentionPolicy(eqx.Module):
    """As f without the action, then a layer more and one logit per action, or other outputs."""

    encoder: ObservationEncoder
    head: MLP

    def __init__(self, key: Key[Array, ""], game: Game, outputs: int | None = None):
        first, second = jax.random.split(key)
        outputs = game.num_actions if outputs is None else outputs
        self.encoder = ObservationEncoder(first, game)
        self.head = MLP(second, self.encoder.width, HIDDEN, HIDDEN, outputs, leaky=True)

    def __call__(self, view: Observation) -> Float[Array, "actions *rows"]:
        return self.head(self.encoder(view))


class Context(NamedTuple):
    """A situation as the critic of agent i encodes it."""

    own: Float[Array, "width batch"]  # the encoded o_i, a constant
    mine: Float[Array, "size batch"]  # f(o_i, a_i)
    embedded: Float[Array, "size agents batch"]  # f(o_j, a_j)
    keys: list[Float[Array, "size agents batch"]]  # W_phi f(o_j, a_j), for each module
    groups: list[Bool[Array, "agents batch"]]  # living teammates, living opponents


class AttentionCritic(eqx.Module):
    """Q_i = h([g(f(o_i, a_i)), v_i]), equation 3, with v_i over teammates and over opponents.

    Both attend with the same W_psi and W_phi, or, if `separate`, with a module each, as the paper's
    appendix has it.
    """

    encoder: ObservationEncoder
    action: Linear
    combine: Linear  # with the two above: f
    own: Linear  # g
    queries: list[Linear]  # W_psi of each module
    keys: list[Linear]  # W_phi of each module
    value: MLP  # h
    groups: int = eqx.field(static=True)  # 1 without opponents

    def __init__(self, key: Key[Array, ""], game: Game, separate: bool = False):
        keys = jax.random.split(key, 7)
        self.groups = 1 if len(game.roles) == 1 else 2
        self.encoder = ObservationEncoder(keys[0], game)
        self.action = Linear(keys[1], game.num_actions, EMBEDDING)
        self.combine = Linear(keys[2], self.encoder.width + EMBEDDING, EMBEDDING)
        self.own = Linear(keys[3], EMBEDDING, EMBEDDING)
        modules = self.groups if separate else 1
        self.queries, self.keys = (
            [Linear(k, EMBEDDING, EMBEDDING, bias=False) for k in jax.random.split(two, modules)]
            for two in keys[4:6]
        )
        self.value = MLP(keys[6], (1 + self.groups) * EMBEDDING, HIDDEN, 1, leaky=True)

    def encode(
        self,
        views: Observation,
        actions: Float[Array, "actions agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> Context:
        """f(o_j, a_j) of all agents, or of a neighbourhood, and whom agent i attends to."""
        who = attended(views, alive, seat)
        encoded = self.encoder(views, who.agents)
        groups = who.groups[: self.groups]
        kernel = self._select(encoded).embed
        embedded = kernel(self.action, self.combine, encoded, who.take(actions))
        own = jax.lax.stop_gradient(who.mine(encoded))
        keys = [key(embedded) for key in self.keys]
        return Context(own, who.mine(embedded), embedded, keys, groups)

    def q_value(self, context: Context) -> Float[Array, "batch"]:
        """Q of the actions that were taken."""
        return self.head(context, context.mine)

    def q_value_of(
        self, context: Context, action: Float[Array, "actions batch"]
    ) -> Float[Array, "batch"]:
        """Q if agent i had taken another action."""
        kernel = self._select(context.embedded).embed_own
        return self.head(context, kernel(self.action, self.combine, context.own, action))

    def head(self, context: Context, mine: Float[Array, "size batch"]) -> Float[Array, "batch"]:
        """Q_i = h([g(f_i), v_i]), where `mine` is f_i, and v_i attends to every f_j.

        That is equations 4 and 5, for each group of agents: v_i = sum_j alpha_ij f_j, and alpha_ij
        is the softmax over j of (W_psi f_i) . (W_phi f_j).
        """
        attend = self._select(context.embedded).attend
        mixed = [
            attended
            for module, groups in self._modules(context)
            for attended in attend(
                self.queries[module](mine),
                self.keys[module],
                context.keys[module],
                context.embedded,
                groups,
            )
        ]
        parts = [jax.nn.relu(self.own(mine)), *map(normalise, mixed)]
        return self.value(jnp.concatenate(parts))[0]

    def attention(self, context: Context) -> list[Float[Array, "agents batch"]]:
        """The weights alpha_ij among teammates and among opponents."""
        return [
            attention_weights(self.queries[module](context.mine), context.keys[module], group)
            for module, groups in self._modules(context)
            for group in groups
        ]

    def _modules(self, context: Context) -> list[tuple[int, list[Bool[Array, "agents batch"]]]]:
        """The modules by number, and the groups of agents that each attends to."""
        if len(self.queries) == 1:
            return [(0, context.groups)]
        return [(module, [group]) for module, group in enumerate(context.groups)]

    def _select(self, encoded: Float[Array, "_ agents batch"]) -> kernels.Kernels:
        rows, actions = math.prod(encoded.shape[1:]), self.action.weight.shape[-1]
        return kernels.select(rows, self.encoder.features, actions)
