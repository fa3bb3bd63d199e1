"""A policy and a critic in which what an agent sees is related to each other.

In the paper's networks an agent attends to food and to teammates apart: nothing relates a piece of
food to the teammate that is already there. Here the agent and all entities that it sees are tokens
of one set, and blocks of self-attention relate them to each other (Zambaldi et al. 2019); in the
last block only the agent's own token asks. No weight depends on how many there are. Features come
first, a batch last.

A critic does so for its own agent only: N x S x S pairs of entities for N agents, where the paper's
critics, which encode what every agent sees, have N x N x S.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from epcx.games import Game, Observation
from epcx.networks.kernels import plain
from epcx.networks.layers import EMBEDDING, HIDDEN, LOWEST, MLP, Linear, flatten_rows, normalise
from epcx.networks.neighbourhood import attended, num_seen
from epcx.networks.seat import Seat

HEADS = 2
BLOCKS = 2


class Block(eqx.Module):
    """Self-attention and an MLP; each has a normalised input, and is added to what it was."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    mlp: MLP

    def __init__(self, key: Key[Array, ""], size: int):
        *keys, last = jax.random.split(key, 5)
        self.query, self.key, self.value, self.output = (
            Linear(k, size, size, bias=False) for k in keys
        )
        self.mlp = MLP(last, size, 2 * size, size)

    def __call__(
        self,
        tokens: Float[Array, "size tokens rows"],
        mask: Bool[Array, "tokens rows"],
        asking: int | None = None,
    ) -> Float[Array, "size asking rows"]:
        """The first `asking` tokens, or all, after they have attended to all where `mask` holds."""
        normal, kept = normalise(tokens), tokens[:, :asking]
        parts = self.query(normal[:, :asking]), self.key(normal), self.value(normal)
        query, key, value = (x.reshape(HEADS, -1, *x.shape[1:]) for x in parts)
        mixed = attend_by_heads(query, key, value, mask)
        kept = kept + self.output(mixed.reshape(kept.shape))
        return kept + self.mlp(normalise(kept))


def attend_by_heads(
    query: Float[Array, "heads size asking rows"],
    key: Float[Array, "heads size tokens rows"],
    value: Float[Array, "heads size tokens rows"],
    mask: Bool[Array, "tokens rows"],
) -> Float[Array, "heads size asking rows"]:
    """Scaled dot-product attention; the mask holds for one token at least."""
    scores = jnp.einsum("hesr,hetr->hstr", query, key) / query.shape[1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, LOWEST), 2)
    return jnp.einsum("hstr,hetr->hesr", weights, value)


class RelationalEncoder(eqx.Module):
    """An embedding of what one agent sees."""

    own: MLP
    entities: dict[str, MLP]
    blocks: list[Block]

    def __init__(self, key: Key[Array, ""], game: Game):
        shapes = game.observation_shapes
        first, second, third = jax.random.split(key, 3)
        self.own = MLP(first, shapes.own.shape[-1], HIDDEN, HIDDEN)
        names = sorted(shapes.entities)
        self.entities = {
            name: MLP(k, shapes.entities[name].features.shape[-1], HIDDEN, HIDDEN)
            for name, k in zip(names, jax.random.split(second, len(names)), strict=True)
        }
        self.blocks = [Block(k, HIDDEN) for k in jax.random.split(third, BLOCKS)]

    def __call__(self, view: Observation) -> Float[Array, "hidden *rows"]:
        """`view` is that of one agent, or of many along the rows."""
        rows = view.own.shape[1:]
        view = flatten_rows(view, len(rows))
        own = self.own(view.own)[:, None]
        tokens, masks = [own], [jnp.ones(own.shape[1:], bool)]
        for name in sorted(self.entities):
            features, mask = view.entities[name]
            tokens.append(self.entities[name](features))
            masks.append(mask)
        x, mask = jnp.concatenate(tokens, 1), jnp.concatenate(masks)
        for block in self.blocks[:-1]:
            x = block(x, mask)
        x = self.blocks[-1](x, mask, asking=1)
        return jax.nn.relu(normalise(x[:, 0])).reshape(HIDDEN, *rows)


class RelationalPolicy(eqx.Module):
    """One logit per action, or other outputs, from what the agent sees."""

    encoder: RelationalEncoder
    head: MLP

    def __init__(self, key: Key[Array, ""], game: Game, outputs: int | None = None):
        first, second = jax.random.split(key)
        outputs = game.num_actions if outputs is None else outputs
        self.encoder = RelationalEncoder(first, game)
        self.head = MLP(second, HIDDEN, HIDDEN, outputs, leaky=True)

    def __call__(self, view: Observation) -> Float[Array, "actions *rows"]:
        return self.head(self.encoder(view))


class Others(eqx.Module):
    """Attention to the living teammates and opponents, as in equations 4 and 5.

    An agent is embedded by what it observes of itself, and by its action where critics judge it:
    how it stands to all others is in the relations among what the critic's own agent sees.
    """

    embed: MLP
    query: Linear
    key: Linear
    groups: int = eqx.field(static=True)  # 1 without opponents

    def __init__(self, key: Key[Array, ""], game: Game, actions: int = 0):
        first, second, third = jax.random.split(key, 3)
        features = game.observation_shapes.own.shape[-1] + actions
        self.embed = MLP(first, features, HIDDEN, EMBEDDING)
        self.query = Linear(second, HIDDEN, EMBEDDING, bias=False)
        self.key = Linear(third, EMBEDDING, EMBEDDING, bias=False)
        self.groups = 1 if len(game.roles) == 1 else 2

    @property
    def width(self) -> int:
        return self.groups * EMBEDDING

    def embedded(
        self, *features: Float[Array, "_ agents batch"]
    ) -> Float[Array, "size agents batch"]:
        return jax.nn.relu(self.embed(jnp.concatenate(features)))

    def __call__(
        self,
        mine: Float[Array, "hidden batch"],
        embedded: Float[Array, "size agents batch"],
        groups: list[Bool[Array, "agents batch"]],
    ) -> Float[Array, "width batch"]:
        query, keys = self.query(mine), self.key(embedded)
        seen = plain.attend(query, self.key, keys, embedded, groups[: self.groups])
        return jnp.concatenate([normalise(x) for x in seen])


class Context(NamedTuple):
    """A situation as the critic of agent i encodes it."""

    own: Float[Array, "hidden batch"]  # the encoded o_i, a constant
    mine: Float[Array, "hidden batch"]  # of o_i and a_i
    embedded: Float[Array, "size agents batch"]  # all agents and their actions
    groups: list[Bool[Array, "agents batch"]]  # living teammates, living opponents


class RelationalCritic(eqx.Module):
    """Q_i = h([f(o_i, a_i), v_i]), with v_i over teammates and over opponents."""

    encoder: RelationalEncoder
    action: Linear
    combine: Linear  # with the two above: f
    others: Others
    value: MLP  # h

    def __init__(self, key: Key[Array, ""], game: Game):
        keys = jax.random.split(key, 5)
        self.encoder = RelationalEncoder(keys[0], game)
        self.action = Linear(keys[1], game.num_actions, HIDDEN)
        self.combine = Linear(keys[2], 2 * HIDDEN, HIDDEN)
        self.others = Others(keys[3], game, game.num_actions)
        self.value = MLP(keys[4], HIDDEN + self.others.width, HIDDEN, 1, leaky=True)

    def encode(
        self,
        views: Observation,
        actions: Float[Array, "actions agents batch"],
        alive: Bool[Array, "agents batch"],
        seat: Seat,
    ) -> Context:
        who = attended(views, alive, seat)
        own = self.encoder(jax.tree.map(seat.mine, views))
        mine = self.embed(own, seat.mine(actions))
        embedded = self.others.embedded(who.take(views.own), who.take(actions))
        return Context(jax.lax.stop_gradient(own), mine, embedded, who.groups)

    def embed(
        self, own: Float[Array, "hidden batch"], action: Float[Array, "actions batch"]
    ) -> Float[Array, "hidden batch"]:
        """f of an encoded observation and an action."""
        return plain.embed(self.action, self.combine, own, action)

    def q_value(self, context: Context) -> Float[Array, "batch"]:
        """Q of the actions that were taken."""
        return self.head(context, context.mine)

    def q_value_of(
        self, context: Context, action: Float[Array, "actions batch"]
    ) -> Float[Array, "batch"]:
        """Q if agent i had taken another action."""
        return self.head(context, self.embed(context.own, action))

    def head(self, context: Context, mine: Float[Array, "hidden batch"]) -> Float[Array, "batch"]:
        seen = self.others(mine, context.embedded, context.groups)
        return self.value(jnp.concatenate([mine, seen]))[0]


class RelationalValue(eqx.Module):
    """V_i = h([f(o_i), v_i]): the critic without actions."""

    encoder: RelationalEncoder
    others: Others
    value: MLP

    def __init__(self, key: Key[Array, ""], game: Game):
        first, second, third = jax.random.split(key, 3)
        self.encoder = RelationalEncoder(first, game)
        self.others = Others(second, game)
        self.value = MLP(third, HIDDEN + self.others.width, HIDDEN, 1, leaky=True)

    def __call__(
        self, views: Observation, alive: Bool[Array, "agents batch"], seat: Seat
    ) -> Float[Array, "batch"]:
        who = attended(views, alive, seat)
        mine = self.encoder(jax.tree.map(seat.mine, views))
        seen = self.others(mine, self.others.embedded(who.take(views.own)), who.groups)
        return self.value(jnp.concatenate([mine, seen]))[0]


def hidden_bytes(game: Game, neighbours: int | None = None) -> int:
    """Bytes of a critic's widest layer per sample: hidden units of its tokens, or the weights of
    every token among all of them.
    """
    tokens = 1 + num_seen(game, neighbours)
    return max(2 * HIDDEN, HEADS * tokens) * tokens * 4
