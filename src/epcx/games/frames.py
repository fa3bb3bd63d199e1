"""Symmetries of the square: a world that is mirrored or turned plays in the same way.

An agent that sees and acts in a frame of its own need not learn the same eight times.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Frame(NamedTuple):
    """One of the eight symmetries, for every row: axes are mirrored, then maybe exchanged."""

    mirror_x: Bool[Array, "*rows"]
    mirror_y: Bool[Array, "*rows"]
    exchange: Bool[Array, "*rows"]

    def turn(
        self, features: Float[Array, "features *slots_and_rows"]
    ) -> Float[Array, "features *slots_and_rows"]:
        """Features as they are in the frame: vectors, two numbers each, and a number or none."""
        vectors = len(features) // 2
        turned = []
        for i in range(vectors):
            x = jnp.where(self.mirror_x, -features[2 * i], features[2 * i])
            y = jnp.where(self.mirror_y, -features[2 * i + 1], features[2 * i + 1])
            turned += [jnp.where(self.exchange, y, x), jnp.where(self.exchange, x, y)]
        return jnp.stack([*turned, *features[2 * vectors :]])

    def turn_actions(
        self, actions: Float[Array, "5 *agents_and_rows"]
    ) -> Float[Array, "5 *agents_and_rows"]:
        """Weights of the actions (none, +x, -x, +y, -y) as they are in the frame."""
        none, *axes = actions[:1], actions[1:3], actions[3:5]
        x, y = self._mirror(*axes)
        return jnp.concatenate([none, *self._exchange(x, y)])

    def turn_back(
        self, actions: Float[Array, "5 *agents_and_rows"]
    ) -> Float[Array, "5 *agents_and_rows"]:
        """Weights or logits of the actions in the frame, as they are in the world."""
        none, *axes = actions[:1], actions[1:3], actions[3:5]
        x, y = self._exchange(*axes)
        return jnp.concatenate([none, *self._mirror(x, y)])

    def _mirror(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Actions along two axes, a pair for each."""
        return jnp.where(self.mirror_x, x[::-1], x), jnp.where(self.mirror_y, y[::-1], y)

    def _exchange(self, x: Array, y: Array) -> tuple[Array, Array]:
        return jnp.where(self.exchange, y, x), jnp.where(self.exchange, x, y)


def octant(own: Float[Array, "5 *rows"]) -> Frame:
    """The frame in which an agent is where 0 <= y <= x; on the borders, its velocity decides.

    `own` is what agents of particle games observe of themselves: velocity, position, alive. In
    worlds that have grown, positions are 0 wherever no wall is near.
    """
    speed, place = jnp.abs(own[:2]), jnp.abs(own[2:4])
    x, y = jnp.where(own[2:4] == 0, own[:2], own[2:4])
    faster = (place[0] == place[1]) & (speed[1] > speed[0])
    return Frame(x < 0, y < 0, (place[1] > place[0]) | faster)
