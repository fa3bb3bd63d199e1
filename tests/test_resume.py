"""Resuming goes on with the very next update: nothing of a training state is lost on disk."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from epcx import games, learners, methods
from epcx.config import TrainConfig
from epcx.execution.match_trainer import MatchTrainer
from epcx.learners import MADDPGConfig, MAPPOConfig
from epcx.learners.learner import ScheduledLearner
from epcx.runs.checkpoint import Checkpoints, MatchUpdate
from tests.es_learner import ESConfig, EvolutionStrategies

TINY = {"batch_size": 32, "buffer_size": 400, "num_envs": 4, "learning_starts": 100}


def all_learners():
    """Of every method, and with every network; those that are the same once."""
    of_methods = [TrainConfig("food-collection", name).learner_config for name in methods.METHODS]
    networks = [
        MADDPGConfig("attention-separate"),
        MADDPGConfig(clip_per="variable"),
        MADDPGConfig("relational", anneal=True),
    ]
    for config in dict.fromkeys(replace(config, **TINY) for config in of_methods + networks):
        yield pytest.param("maddpg", config, id=f"maddpg {config.network} {config.clip_per}")
    ppo = MAPPOConfig(num_envs=4, epochs=1, minibatches=2)
    yield pytest.param("mappo", ppo, id="mappo")
    yield pytest.param("mappo", replace(ppo, network="equivariant"), id="mappo equivariant")
    yield pytest.param("ippo", replace(ppo, network="mlp"), id="ippo")
    yield pytest.param(EvolutionStrategies, ESConfig(), id="es")


@pytest.mark.parametrize(("name", "config"), list(all_learners()))
def test_update_after_a_resume_is_the_same(tmp_path, name, config):
    """Weights, targets, moments of the optimisers, keys, worlds and buffer, bit by bit.

    A buffer has been overwritten once by then, and was saved in two parts.
    """
    game = games.make("food-collection", "2")
    learner = learners.make(name, game, config)
    if isinstance(learner, ScheduledLearner):
        learner = learner.with_updates(20)
    first, second = (MatchTrainer(learner, 2, jax.devices()[:1]) for _ in range(2))
    first.start(jax.random.key(0))
    checkpoints, done = Checkpoints(tmp_path), 0
    for updates in (30, 7):
        first.advance(updates)
        states = first.snapshot(done, done + updates)
        changes = [MatchUpdate(done, done + updates, state) for state in states]
        checkpoints.save({}, {}, {f"match-{i}": change for i, change in enumerate(changes)})
        done += updates
    checkpoints.wait()
    found = Checkpoints(tmp_path).load(pytest.fail)
    second.restore([found.state(f"match-{i}") for i in range(2)])
    expected, metrics = whole_state(first), first.advance(1)
    assert_same(whole_state(second), expected)
    assert_same(second.advance(1), metrics)
    after = whole_state(first)
    assert_same(whole_state(second), after)
    assert any((x != y).any() for x, y in zip(after, expected, strict=True))


def whole_state(trainer):
    """Every array of it; keys as numbers."""
    leaves = jax.tree.leaves(trainer.blocks)
    return [
        np.array(
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        )
        for x in leaves
    ]


def assert_same(a, b):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(x, y)
