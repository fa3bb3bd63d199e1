"""Random encoders and observations, a game of any sizes, and comparisons of implementations."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.games import Entities, Game, Observation, Outcome, Role
from epcx.networks import kernels
from epcx.networks.attention import ObservationEncoder
from epcx.networks.kernels import cpp_build
from epcx.networks.layers import EMBEDDING, HIDDEN, MLP, flatten_rows

OWN_FEATURES = 5  # of particle games
needs_compiler = pytest.mark.skipif(cpp_build.compiler() is None, reason="no C++ compiler")


@dataclass(frozen=True)
class SizedGame(Game):
    """Random observations with any numbers of features and actions."""

    own: int = 3
    features: tuple[int, ...] = (1, 6)  # of each entity type
    actions: int = 7

    name = "sized"
    stages = ("2-1",)
    roles = (Role("first", 7), Role("second", 7))

    @property
    def num_actions(self):
        return self.actions

    def reset(self, key):
        own, *keys = jax.random.split(key, 1 + len(self.features))
        return {
            "own": jax.random.normal(own, (self.num_agents, self.own)),
            "seen": [
                jax.random.normal(k, (self.num_agents, 4, f))
                for k, f in zip(keys, self.features, strict=True)
            ],
        }

    def step(self, key, world, actions):
        zeros = jnp.zeros(self.num_agents)
        return world, Outcome(zeros, zeros, zeros.astype(bool))

    def observe(self, world):
        entities = {
            f"type{i}": Entities(features, features[..., 0] > -1)
            for i, features in enumerate(world["seen"])
        }
        return Observation(world["own"], entities)


def encoder_of(key, features, kind=ObservationEncoder, size=EMBEDDING):
    """An encoder for entity types with these numbers of features; its biases are not zero."""
    encoder = kind(key, games.make("grassland", "1-1"))
    keys = dict(zip(features, jax.random.split(key, len(features)), strict=True))
    entities = {name: MLP(keys[name], n, HIDDEN, size) for name, n in features.items()}
    encoder = eqx.tree_at(lambda encoder: encoder.entities, encoder, entities)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), encoder)


def view_of(key, types, rows, present=0.7):
    """Random observations; `types` has the slots and features of every entity type."""
    first, *rest = jax.random.split(key, 1 + len(types))

    def entities(key, slots, features):
        one, two = jax.random.split(key)
        mask = jax.random.bernoulli(two, present, (slots, *rows))
        return Entities(jax.random.normal(one, (features, slots, *rows)), mask)

    own = jax.random.normal(first, (OWN_FEATURES, *rows))
    named = zip(rest, types.items(), strict=True)
    return Observation(own, {name: entities(key, *sizes) for key, (name, sizes) in named})


def encode(implementation, view):
    """The encoder by one implementation, as a function of the encoder."""
    rows = view.own.shape[1:]
    flat = flatten_rows(view, len(rows))

    def encoded(encoder):
        values = implementation.encode(encoder.own, encoder.entities, flat)
        return values.reshape(encoder.width, *rows)

    return encoded


def values_and_gradients(function, grad, *arguments):
    @jax.jit
    def both(*arguments):
        values, backward = jax.vjp(function, *arguments)
        return values, backward(grad.astype(values.dtype))

    return jax.tree.leaves(both(*arguments))


def compare_with_plain(implementation, types, rows, present=0.7, scale=1.0, tolerance=1e-4):
    """Checks values and gradients of an encoder for random observations."""
    encoder = encoder_of(jax.random.key(0), {name: n for name, (_, n) in types.items()})
    encoder = jax.tree.map(lambda x: x * scale, encoder)
    view = view_of(jax.random.key(1), types, rows, present)
    grad = jax.random.normal(jax.random.key(2), (encoder.width, *rows))
    expected = values_and_gradients(encode(kernels.XLA, view), grad, encoder)
    actual = values_and_gradients(encode(implementation, view), grad, encoder)
    assert all(np.isfinite(x).all() for x in actual)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, float(jnp.abs(b).max())))
