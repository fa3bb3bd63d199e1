"""A policy and a critic in which what an agent sees is related to each other.

In the paper's networks an agent attends to food and to teammates apart: nothing relates a piece of
food to the teammate that is already there. Here the agent and all entities that it sees are tokens
of one set, and blocks of self-attention relate them to each other (Zambaldi et al. 2019); in the
last block only the agent's own token asks. No weight depends on how many there are. Features come
first, a batch last.

A critic does so for its own agent only: N x S x S pairs of entities for N agents, where the paper's
critics, which encode what every agent sees, have N x N x S.

Equivariant networks do the same in a frame of their agent's own, into which the game turns what it
sees; policies turn their actions back. What is learnt in one world then holds in all worlds that
are mirrored or turned.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from epcx.games import Entities, Frame, Game, Observation
from epcx.networks import kernels
from epcx.networks.kernels import plain
from epcx.networks.layers import EMBEDDING, HIDDEN, MLP, Linear, flatten_rows, normalise
from epcx.networks.neighbourhood import Attended, attended, num_seen
from epcx.networks.seat import Seat

HEADS = 2
BLOCKS = 2
FrameOf = Callable[[Array], Frame]  # given what an agent observes of itself


def turn_view(frame: Frame, view: Observation) -> Observation:
    """What one agent sees, or many along the rows, in its frame."""
    entities = {
        name: Entities(frame.turn(features), mask)
        for name, (features, mask) in view.entities.items()
    }
    return Observation(frame.turn(view.own), entities)


def turn_actions(
    frame: Frame | None, actions: Float[Array, "actions *agents batch"]
) -> Float[Array, "actions *agents batch"]:
    return actions if frame is None else frame.turn_actions(actions)


class Block(eqx.Module):
    """Self-attention and an MLP; each has a normalised input, and is added to what there was."""

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
        features = [len(view.own), *(len(seen.features) for seen in view.entities.values())]
        kernel = kernels.select(view.own.shape[1], features, relational=True)
        return kernel.encode_relations(HEADS, self, view).reshape(HIDDEN, *rows)


class RelationalPolicy(eqx.Module):
    """One logit per action, or other outputs, from what the agent sees."""

    encoder: RelationalEncoder
    head: MLP
    frame: FrameOf | None = eqx.field(static=True)
    acts: bool = eqx.field(static=True)

    def __init__(
        self,
        key: Key[Array, ""],
        game: Game,
        outputs: int | None = None,
        equivariant: bool = False,
    ):
        first, second = jax.random.split(key)
        self.acts = outputs is None
        self.encoder = RelationalEncoder(first, game)
        self.head = MLP(second, HIDDEN, HIDDEN, outputs or game.num_actions, leaky=True)
        self.frame = game.frame if equivariant else None

    def __call__(self, view: Observation) -> Float[Array, "actions *rows"]:
        if self.frame is None:
            return self.head(self.encoder(view))
        frame = self.frame(view.own)
        outputs = self.head(self.encoder(turn_view(frame, view)))
        return frame.turn_back(outputs) if self.acts else outputs


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
        # Numbers of features matter to encoders only.
        attend = kernels.select(math.prod(embedded.shape[1:]), (1, 1), relational=True).attend
        seen = attend(query, self.key, keys, embedded, groups[: self.groups])
        return jnp.concatenate([normalise(x) for x in seen])


class Situation(NamedTuple):
    """What the critic of agent i sees, in the frame of its agent if it is equivariant."""

    view: Observation  # of agent i
    others: Float[Array, "features agents batch"]  # what the attended observe of themselves
    frame: Frame | None

    @staticmethod
    def of(views: Observation, who: Attended, frame_of: FrameOf | None) -> "Situation":
        view, others = jax.tree.map(who.seat.mine, views), who.take(views.own)
        if frame_of is None:
            return Situation(view, others, None)
        frame = frame_of(view.own)
        return Situation(turn_view(frame, view), frame.turn(others), frame)


class Context(NamedTuple):
    """A situation as the critic of agent i encodes it."""

    frame: Frame | None  # of agent i, if the critic is equivariant
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
    frame: FrameOf | None = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], game: Game, equivariant: bool = False):
        keys = jax.random.split(key, 5)
        self.frame = game.frame if equivariant else None
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
        situation = Situation.of(views, who, self.frame)
        own = self.encoder(situation.view)
        frame = situation.frame
        mine = self.embed(own, turn_actions(frame, seat.mine(actions)))
        taken = turn_actions(frame, who.take(actions))
        embedded = self.others.embedded(situation.others, taken)
        return Context(frame, jax.lax.stop_gradient(own), mine, embedded, who.groups)

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
        turned = turn_actions(context.frame, action)
        return self.head(context, self.embed(context.own, turned))

    def head(self, context: Context, mine: Float[Array, "hidden batch"]) -> Float[Array, "batch"]:
        seen = self.others(mine, context.embedded, context.groups)
        return self.value(jnp.concatenate([mine, seen]))[0]


class RelationalValue(eqx.Module):
    """V_i = h([f(o_i), v_i]): the critic without actions."""

    encoder: RelationalEncoder
    others: Others
    value: MLP
    frame: FrameOf | None = eqx.field(static=True)

    def __init__(self, key: Key[Array, ""], game: Game, equivariant: bool = False):
        first, second, third = jax.random.split(key, 3)
        self.frame = game.frame if equivariant else None
        self.encoder = RelationalEncoder(first, game)
        self.others = Others(second, game)
        self.value = MLP(third, HIDDEN + self.others.width, HIDDEN, 1, leaky=True)

    def __call__(
        self, views: Observation, alive: Bool[Array, "agents batch"], seat: Seat
    ) -> Float[Array, "batch"]:
        who = attended(views, alive, seat)
        situation = Situation.of(views, who, self.frame)
        mine = self.encoder(situation.view)
        seen = self.others(mine, self.others.embedded(situation.others), who.groups)
        return self.value(jnp.concatenate([mine, seen]))[0]


def hidden_bytes(game: Game, neighbours: int | None = None) -> int:
    """Bytes of a critic's widest layer per sample: hidden units of its tokens, or the weights of
    every token among all of them.
    """
    tokens = 1 + num_seen(game, neighbours)
    return max(2 * HIDDEN, HEADS * tokens) * tokens * 4
