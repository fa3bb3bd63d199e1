"""Many matches on many devices: each trains as it would alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from epcx import games, learners
from epcx.errors import InputError
from epcx.execution.devices import format_bytes
from epcx.execution.layout import Layout, lay_out
from epcx.execution.match_trainer import MatchTrainer
from epcx.learners import MADDPGConfig, MAPPOConfig
from epcx.learners.learner import state_bytes
from epcx.runs.checkpoint import MatchState
from tests.execution.toy import Options, RandomSearch, Walk

CONFIG = MADDPGConfig("mean-field", batch_size=32, buffer_size=400, num_envs=4, learning_starts=100)
GAME = games.make("food-collection", 2)
LEARNER = learners.make("maddpg", GAME, CONFIG)
PPO = learners.make("mappo", GAME, MAPPOConfig(num_envs=4, epochs=1, minibatches=2))
TOY = RandomSearch(Walk(2), Options())


def make(matches, devices, learner=LEARNER):
    return MatchTrainer(learner, matches, jax.devices()[:devices])


def trained(matches, devices, seed=0, learner=LEARNER):
    trainer = make(matches, devices, learner)
    trainer.start(jax.random.key(seed))
    return trainer, trainer.advance(3)


def assert_close(a, b, **tolerance):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def assert_equal(a, b):
    assert_close(a, b, rtol=0, atol=0)


def match(number, agents):
    return jax.tree.map(lambda x: x[number], agents)


@pytest.fixture(scope="module")
def one_device():
    """Three matches, in turns on one device."""
    return trained(3, 1)[0]


@pytest.mark.parametrize("learner", [LEARNER, PPO], ids=["maddpg", "mappo"])
def test_matches_on_eight_devices_train_as_on_one(learner):
    trainer, metrics = trained(8, 8, learner=learner)
    assert trainer.layout == Layout(groups=8, shards=1, concurrent=1, turns=1)
    assert metrics["reward"].shape == (8, 2)
    in_turns, expected = trained(8, 1, learner=learner)
    assert_equal(trainer.agents(), in_turns.agents())
    assert_equal(metrics, expected)


def test_matches_in_turns_on_two_devices_train_as_on_one(one_device):
    """Two devices for three matches: the second turn has a spare place."""
    trainer, _ = trained(3, 2)
    assert trainer.layout == Layout(groups=2, shards=1, concurrent=1, turns=2)
    assert_equal(trainer.agents(), one_device.agents())


def test_concurrent_matches_train_as_in_turns(one_device):
    """As on a GPU."""
    trainer = make(3, 1)
    trainer.layout = Layout(groups=1, shards=1, concurrent=3, turns=1)
    trainer.start(jax.random.key(0))
    trainer.advance(3)
    assert_close(trainer.agents(), one_device.agents(), atol=1e-4)


def test_sharded_match_trains_as_on_one_device(monkeypatch):
    """Every device holds the same agents and worlds, and a shard of the buffer."""
    monkeypatch.setattr("epcx.learners.maddpg.MIN_SHARD_BYTES", 1)
    trainer, _ = trained(1, 8)
    assert trainer.layout.shards == 8
    (state,) = trainer.blocks
    for leaf in jax.tree.leaves((state.agents, state.worlds)):
        for shard in range(1, 8):
            np.testing.assert_array_equal(leaf[0, shard], leaf[0, 0])
    alone, _ = trained(1, 1)
    assert_close(trainer.agents(), alone.agents(), atol=1e-3)


def test_match_trains_as_the_learner_alone(one_device):
    learner = one_device.learner
    first, second = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
    state = jax.jit(learner.start)(second, jax.jit(learner.init)(first))
    state, _ = jax.jit(learner.advance)(state, 3)
    assert_close(match(1, one_device.agents()), state.agents, atol=1e-4)


def test_learner_without_layout_trains_on_one_device_per_match():
    trainer, metrics = trained(2, 8, learner=TOY)
    assert trainer.layout == Layout(groups=2, shards=1, concurrent=1, turns=1)
    assert trainer.learner == TOY
    assert metrics["reward"].shape == (2, 2)
    assert_equal(trainer.agents(), trained(2, 1, learner=TOY)[0].agents())
    assert trainer.diverged().tolist() == [False, False]
    trainer.blocks[1] = jax.tree.map(
        lambda x: x * np.nan if x.dtype == np.float32 else x, trainer.blocks[1]
    )
    assert trainer.diverged().tolist() == [False, True]


def test_state_bytes_of_a_learner_without_layout_are_those_of_its_state():
    trainer, _ = trained(2, 1, learner=TOY)
    logits, key = 2 * 3 * 4, 2 * 4
    assert state_bytes(TOY) == logits + key
    assert trainer.bytes_per_device == 2 * (logits + key)


def test_seed_determines_the_weights(one_device):
    again, _ = trained(3, 1)
    assert_equal(again.agents(), one_device.agents())
    other, _ = trained(3, 1, seed=1)
    assert (jax.tree.leaves(other.agents())[0] != jax.tree.leaves(again.agents())[0]).any()


def test_two_chunks_train_as_one(one_device):
    trainer = make(3, 1)
    trainer.start(jax.random.key(0))
    trainer.advance(1)
    trainer.advance(2)
    assert_equal(trainer.agents(), one_device.agents())


def test_training_starts_from_given_agents():
    given = trained(2, 1)[0].agents()
    other = make(2, 1)
    other.start(jax.random.key(9), given)
    assert_equal(other.agents(), given)  # the targets, too
    for state in other.blocks:
        assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(state.optimisers))


def test_precompiled_programs_are_not_compiled_again(one_device, caplog):
    """For agents that are given, as in a later stage."""
    trainer = make(3, 1).compile(new_agents=False)
    agents = one_device.agents()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        trainer.start(jax.random.key(1), agents)
        trainer.advance(3)
    assert not [line for line in caplog.messages if "Compiling" in line and "body" in line]
    assert trainer.agents().policy.mlp.layers[0].weight.shape[0] == 3


def test_advance_compiles_once_for_any_number_of_updates():
    trainer, _ = trained(1, 1)
    compiled = trainer.programs[0].advance._cache_size
    before = compiled()
    trainer.advance(2)
    trainer.advance(5)
    assert compiled() == before


@pytest.mark.parametrize(
    ("saved", "restored", "matches"),
    [(2, 1, 3), pytest.param(2, 2, 1, marks=pytest.mark.slow), (2, 1, 1)],
)
def test_restored_snapshot_trains_as_if_uninterrupted(saved, restored, matches, monkeypatch):
    """Also on other devices, as long as a match has as many shards."""
    monkeypatch.setattr("epcx.learners.maddpg.MIN_SHARD_BYTES", 1)
    first, second = make(matches, saved), make(matches, restored)
    first.start(jax.random.key(0))
    first.advance(2)
    if first.layout.shards != second.layout.shards:
        with pytest.raises(InputError, match="resume with as many devices"):
            second.restore(first.snapshot(0, 2))
        return
    second.restore(first.snapshot(0, 2))
    assert_equal(states_of(second.snapshot(0, 2)), states_of(first.snapshot(0, 2)))
    assert_equal(second.advance(1), first.advance(1))
    assert_equal(second.agents(), first.agents())


def states_of(states):
    """As trees of arrays."""
    return [(state.arrays, [(rows.rows, rows.arrays) for rows in state.rows]) for state in states]


@pytest.mark.parametrize("devices", [1, 2])
def test_changes_in_a_row_are_the_whole_state(devices, monkeypatch):
    """The ring has 5 rounds of 25 steps: after 40 updates of 4 steps it has been overwritten."""
    monkeypatch.setattr("epcx.learners.maddpg.MIN_SHARD_BYTES", 1)
    first, second = make(1, devices), make(1, devices)
    first.start(jax.random.key(0))
    changes, done = [], 0
    for updates in (3, 1, 17, 19):
        first.advance(updates)
        changes += first.snapshot(done, done + updates)
        done += updates
    assert all(len(rows) for state in changes for rows, _ in state.rows)
    assert len(changes[1].rows[0].rows) < len(changes[0].rows[0].rows) + 1  # only what is new
    joined = MatchState(changes[-1].arrays, [rows for state in changes for rows in state.rows])
    second.restore([joined])
    rings = (jax.tree.leaves(LEARNER.ring(trainer.blocks[0])) for trainer in (first, second))
    kept = slice(None, None if devices == 1 else -1)  # the last row of a shard is never read
    for x, y in zip(*rings, strict=True):
        np.testing.assert_array_equal(x[:, :, kept], y[:, :, kept])
    assert_equal(second.advance(2), first.advance(2))
    assert_equal(second.agents(), first.agents())


def test_snapshot_does_not_change_while_training_goes_on():
    trainer, _ = trained(1, 1)
    (before,) = trainer.snapshot(0, 3)
    kept = jax.tree.map(np.copy, states_of([before]))
    trainer.advance(30)
    assert_equal(states_of([before]), kept)


def test_learner_without_a_ring_is_saved_whole():
    trainer, _ = trained(2, 1, learner=TOY)
    first, second = trainer.snapshot(1, 3)
    assert not first.rows
    other = make(2, 1, learner=TOY)
    other.restore([first, second])
    assert_equal(other.advance(1), trainer.advance(1))


def test_snapshot_of_other_settings_is_refused():
    trainer, _ = trained(1, 1)
    larger = make(1, 1, learners.make("maddpg", GAME, replace(CONFIG, num_envs=5)))
    with pytest.raises(InputError, match="of other settings"):
        larger.restore(trainer.snapshot(0, 3))


def test_diverged_match_stops_alone():
    trainer, _ = trained(2, 1)
    before = trainer.agents()
    state = trainer.blocks[1]
    reward = state.buffer.steps.reward
    trainer.blocks[1] = jax.tree.map(lambda x: x * np.nan if x is reward else x, state)
    trainer.advance(2)
    assert trainer.diverged().tolist() == [False, True]
    after = trainer.agents()
    assert_equal(match(1, after), match(1, before))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
    leaves = zip(*map(jax.tree.leaves, (after, before)), strict=True)
    assert any((x[0] != y[0]).any() for x, y in leaves)


@pytest.mark.parametrize(
    ("matches", "devices", "platform", "expected"),
    [
        (1, 1, "cpu", Layout(1, 1, 1, 1)),
        (1, 2, "cpu", Layout(1, 2, 1, 1)),
        (1, 6, "cpu", Layout(1, 4, 1, 1)),
        (9, 2, "cpu", Layout(2, 1, 1, 5)),
        (9, 1, "gpu", Layout(1, 1, 9, 1)),
        (9, 8, "gpu", Layout(8, 1, 2, 1)),
        (2, 8, "gpu", Layout(2, 4, 1, 1)),
    ],
)
def test_layout_of_matches_on_devices(matches, devices, platform, expected):
    assert lay_out(matches, devices, platform, shards=1024) == expected


def test_states_that_do_not_fit_are_refused():
    trainer = MatchTrainer(LEARNER, 2, jax.devices()[:1], free_bytes=50_000)
    with pytest.raises(InputError, match=r"training 2 matches takes .* kB .* 50 kB are free: use"):
        trainer.check_memory(lambda: "use less")


def test_bytes_per_device_are_those_of_the_states():
    trainer, _ = trained(2, 2)
    states = [(s.buffer, s.agents, s.optimisers) for s in trainer.blocks]
    assert sum(x.nbytes for x in jax.tree.leaves(states)) == trainer.bytes_per_device * 2


def test_format_bytes():
    sizes = (12, 34_500, 999_900, 2_260_000_000)
    assert [format_bytes(size) for size in sizes] == ["12 bytes", "34.5 kB", "1 MB", "2.26 GB"]
