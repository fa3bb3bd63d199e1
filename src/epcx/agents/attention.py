"""The population-invariant policy and critic (section 4.1 and figure 1 of the paper).

No weight depends on how many entities or agents there are. Everything is written for the network
of one agent; features come first, a batch last.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epcx.agents.kernels import (
    attention,
    cpu,
    current_precision,
    embedding,
    encoder,
    on_gpu,
)
from epcx.agents.layers import (
    EMBEDDING,
    HIDDEN,
    MLP,
    Linear,
    attend,
    attention_weights,
    normalise,
    project,
)
from epcx.agents.seat import Seat
from epcx.games import NUM_ACTIONS, Entities, Game, Observation, World

OWN_FEATURES = 5


def see(game: Game, worlds: World) -> Observation:
    return game.observe(worlds)


def arrange(seen: Observation) -> Observation:
    """What agents see in a batch of worlds (batch axis last), with the features first.

    own [5, N, batch], features [2 or 4, slots, N, batch], mask [slots, N, batch].
    """
    entities = {
        name: Entities(features.transpose(2, 1, 0, 3), mask.swapaxes(0, 1))
        for name, (features, mask) in seen.entities.items()
    }
    return Observation(seen.own.swapaxes(0, 1), entities)


def effort(game: Game) -> int:
    """Bytes of the hidden units of a critic, per sample.

    Where a kernel keeps them on chip, of what is left of them.
    """
    types = entity_shapes(game).values()
    if fuses(widths(types)):
        return encoded_bytes(game, len(types))
    return sum(entities.mask.size for entities in types) * HIDDEN * 4


def widest(game: Game) -> int:
    """Bytes of the widest layer of a critic that reaches memory, per sample."""
    types = entity_shapes(game).values()
    return encoded_bytes(game, len(types)) if is_native(widths(types)) else effort(game)


def encoded_bytes(game: Game, types: int) -> int:
    return game.num_agents * (1 + types) * EMBEDDING * 4


def widths(types: Iterable[Entities]) -> list[int]:
    """The numbers of features, of the shapes of one world."""
    return [entities.features.shape[-1] for entities in types]


def fuses(features: Iterable[int]) -> bool:
    """Whether the kernel is used, for entity types with these numbers of features."""
    return on_gpu() and all(number <= encoder.MOST_FEATURES for number in features)


def is_native(features: Iterable[int]) -> bool:
    """Whether the programs for CPUs are used, likewise, if there are enough rows."""
    return cpu.usable() and all(number <= cpu.MOST_FEATURES for number in features)


def entity_shapes(game: Game) -> dict[str, Entities]:
    """The sets that agents see in one world, by type, as shapes."""
    world = jax.eval_shape(game.reset, jax.random.key(0))
    return jax.eval_shape(game.observe, world).entities


class ObservationEncoder(eqx.Module):
    """What f makes of an observation: own embedding and one attended embedding per entity type."""

    own: MLP
    entities: dict[str, MLP]

    def __init__(self, key: Array, game: Game):
        seen = entity_shapes(game)
        keys = jax.random.split(key, 1 + len(seen))
        self.own = MLP(keys[0], OWN_FEATURES, HIDDEN, EMBEDDING)
        self.entities = {
            name: MLP(k, seen[name].features.shape[-1], HIDDEN, EMBEDDING)
            for name, k in zip(sorted(seen), keys[1:], strict=True)
        }

    @property
    def width(self) -> int:
        return EMBEDDING * (1 + len(self.entities))

    def __call__(self, view: Observation) -> Float[Array, "width *rows"]:
        """`view` is of one agent, or of many along the rows."""
        features = [len(features) for features, _ in view.entities.values()]
        if fuses(features):
            return self.fused(view, encoder.Options(current_precision()))
        worth = math.prod(view.own.shape[1:]) >= cpu.FEWEST_ROWS
        return self.native(view) if worth and is_native(features) else self.attending(view)[0]

    def fused(self, view: Observation, options: encoder.Options) -> Float[Array, "width *rows"]:
        """The same by the kernel for GPUs."""
        seen = in_a_row(view)
        names = sorted(self.entities)
        mlps = [self.own, *(self.entities[name] for name in names)]
        types = [tuple(seen.entities[name]) for name in names]
        encoded = encoder.encode(options, [arrays_of(mlp) for mlp in mlps], seen.own, types)
        return encoded.reshape(-1, *view.own.shape[1:])

    def native(self, view: Observation) -> Float[Array, "width *rows"]:
        """The same by the programs for CPUs."""
        seen = in_a_row(view)
        query = cpu.embed(arrays_of(self.own), seen.own)
        parts = [query]
        for name in sorted(self.entities):
            mixed = cpu.attend(arrays_of(self.entities[name]), query, *seen.entities[name])
            parts.append(jax.nn.relu(mixed))
        return jnp.concatenate(parts).reshape(-1, *view.own.shape[1:])

    def attending(
        self, view: Observation
    ) -> tuple[Float[Array, "width *rows"], dict[str, Float[Array, "slots *rows"]]]:
        """The same in plain JAX; also the attention weights by type."""
        seen = in_a_row(view)
        query = jax.nn.relu(self.own(seen.own))
        parts, weights = [query], {}
        for name in sorted(self.entities):
            features, mask = seen.entities[name]
            embedded = jax.nn.relu(self.entities[name](features))
            mixed, given = attend(query, embedded, embedded, mask)
            # LayerNorm of nothing is nothing: its epsilon keeps 0 at 0.
            parts.append(jax.nn.relu(normalise(mixed)))
            weights[name] = given.reshape(view.entities[name].mask.shape)
        return jnp.concatenate(parts).reshape(-1, *view.own.shape[1:]), weights


def in_a_row(view: Observation) -> Observation:
    """With one long axis of rows instead of several short ones: loops on a CPU are as long."""
    number = math.prod(view.own.shape[1:])
    entities = {
        name: Entities(
            features.reshape(*features.shape[:2], number), mask.reshape(len(mask), number)
        )
        for name, (features, mask) in view.entities.items()
    }
    return Observation(view.own.reshape(len(view.own), number), entities)


def arrays_of(mlp: MLP) -> tuple[Array, Array, Array, Array]:
    """The weights and biases of two layers."""
    first, last = mlp.layers
    return *in_two(first), *in_two(last)


def in_two(layer: Linear) -> tuple[Array, Array]:
    assert layer.bias is not None
    return layer.weight, layer.bias


class AttentionPolicy(eqx.Module):
    """As f without the action, then a layer more and one logit per action."""

    encoder: ObservationEncoder
    head: MLP

    def __init__(self, key: Array, game: Game):
        first, second = jax.random.split(key)
        self.encoder = ObservationEncoder(first, game)
        self.head = MLP(second, self.encoder.width, HIDDEN, HIDDEN, NUM_ACTIONS, leaky=True)

    def __call__(self, view: Observation) -> Float[Array, "5 *rows"]:
        return self.head(self.encoder(view))


class Context(NamedTuple):
    """What a critic makes of a situation."""

    own: Float[Array, "..."]  # the agent's encoded observation [width, batch]
    mine: Float[Array, "..."]  # f(o_i, a_i) [16, batch]
    embedded: Float[Array, "..."]  # f(o_j, a_j) of everybody [16, N, batch]
    keys: Float[Array, "..."]  # W_phi f(o_j, a_j) [16, N, batch]
    groups: list[Bool[Array, "..."]]  # living teammates, living opponents: [N, batch]


class AttentionCritic(eqx.Module):
    """Q_i = h([g(f(o_i, a_i)), v_i]), equation 3, with v_i over teammates and over opponents."""

    encoder: ObservationEncoder
    action: Linear
    combine: Linear  # with the two above: f
    own: Linear  # g
    query: Linear  # W_psi
    key: Linear  # W_phi
    value: MLP  # h
    groups: int = eqx.field(static=True)  # 1 without opponents

    def __init__(self, key: Array, game: Game):
        keys = jax.random.split(key, 7)
        self.groups = 1 if len(game.roles) == 1 else 2
        self.encoder = ObservationEncoder(keys[0], game)
        self.action = Linear(keys[1], NUM_ACTIONS, EMBEDDING)
        self.combine = Linear(keys[2], self.encoder.width + EMBEDDING, EMBEDDING)
        self.own = Linear(keys[3], EMBEDDING, EMBEDDING)
        self.query = Linear(keys[4], EMBEDDING, EMBEDDING, bias=False)
        self.key = Linear(keys[5], EMBEDDING, EMBEDDING, bias=False)
        self.value = MLP(keys[6], (1 + self.groups) * EMBEDDING, HIDDEN, 1, leaky=True)

    def context(
        self,
        views: Observation,
        actions: Float[Array, "5 agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> Context:
        """f(o_j, a_j) of everybody, and whom the agent attends to."""
        encoded = self.encoder(views)
        groups = (seat.teammates, seat.opponents)[: self.groups]
        masks = [group[:, None] & alive for group in groups]
        if on_gpu():
            embedded = self.embed_fused(encoded, actions)
        elif alive.size >= cpu.FEWEST_ROWS and cpu.usable():
            embedded = self.embed_native(encoded, actions)
        else:
            embedded = self.embed(encoded, actions)
        own = jax.lax.stop_gradient(seat.mine(encoded))
        return Context(own, seat.mine(embedded), embedded, self.key(embedded), masks)

    def embed(
        self, encoded: Float[Array, "width *rows"], actions: Float[Array, "5 *rows"]
    ) -> Float[Array, "16 *rows"]:
        """f(o, a), of encoded observations."""
        acted = jax.nn.relu(self.action(actions))
        return jax.nn.relu(self.combine(encoded, acted))

    def embed_fused(
        self, encoded: Float[Array, "width *rows"], actions: Float[Array, "5 *rows"]
    ) -> Float[Array, "16 *rows"]:
        """The same by the kernel for GPUs, without a gradient by the actions."""
        rows = encoded.shape[1:]
        weights = embedding.Weights(*in_two(self.action), *in_two(self.combine))
        options = encoder.Options(current_precision(), tiling=embedding.TILING)
        flat = [x.reshape(len(x), -1) for x in (encoded, actions)]
        return embedding.embed(options, weights, *flat).reshape(-1, *rows)

    def embed_native(
        self, encoded: Float[Array, "width *rows"], actions: Float[Array, "5 *rows"]
    ) -> Float[Array, "16 *rows"]:
        """The same by the program for CPUs."""
        flat = [x.reshape(len(x), -1) for x in (encoded, actions)]
        layers = *in_two(self.action), *in_two(self.combine)
        return cpu.combine(layers, *flat).reshape(-1, *encoded.shape[1:])

    def judge(self, context: Context) -> Float[Array, "batch"]:
        """The value of what was done."""
        return self.conclude(context, context.mine)

    def reconsider(
        self, context: Context, action: Float[Array, "5 batch"]
    ) -> Float[Array, "batch"]:
        """The value if the agent itself had done something else."""
        return self.conclude(context, self.embed(context.own, action))

    def conclude(self, context: Context, mine: Float[Array, "16 batch"]) -> Float[Array, "batch"]:
        query = self.query(mine)
        if on_gpu():
            # (W_psi f_i) . (W_phi f_j), without the keys of everybody.
            back = project(self.key.weight.T, query)
            mixed = attention.attend(attention.Options(), back, context.embedded, context.groups)
        else:
            mixed = [attend(query, context.keys, context.embedded, g)[0] for g in context.groups]
        parts = [jax.nn.relu(self.own(mine)), *map(normalise, mixed)]
        return self.value(jnp.concatenate(parts))[0]

    def attention(self, context: Context) -> list[Float[Array, "agents batch"]]:
        """The weights among teammates and among opponents."""
        query = self.query(context.mine)
        return [attention_weights(query, context.keys, group) for group in context.groups]
