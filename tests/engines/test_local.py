"""Many matches on many devices: each learns as it would alone."""

from functools import partial

import jax
import numpy as np
import pytest

from epcx import games, learners
from epcx.engines import devices
from epcx.engines.local import Layout, LocalEngine, lay_out
from epcx.errors import InputError
from epcx.learners import Hyperparameters

HYPER = Hyperparameters(batch=32, replay=400, worlds=4, warm_up=100)
GAME = games.make("food-collection", 2)


def trained(matches, number, method="mean-field", seed=0):
    engine = LocalEngine(learners.make(method, GAME, HYPER), matches, jax.devices()[:number])
    engine.start(jax.random.key(seed))
    metrics = engine.advance(3)
    return engine, metrics


def same(a, b, **tolerance):
    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.fixture(scope="module")
def alone():
    """Three matches, one after the other on one device."""
    return trained(3, 1)


def test_matches_spread_over_eight_devices_learn_as_on_one():
    engine, metrics = trained(8, 8)
    assert engine.layout == Layout(lanes=8, parts=1, at_once=1, turns=1)
    assert metrics["reward"].shape == (8, 2)
    one_by_one, expected = trained(8, 1)
    same(engine.agents(), one_by_one.agents(), rtol=0, atol=0)
    same(metrics, expected, rtol=0, atol=0)


def test_matches_that_take_turns_learn_as_side_by_side(alone):
    """Two devices for three matches: the second turn has a spare place."""
    engine, _ = trained(3, 2)
    assert engine.layout == Layout(lanes=2, parts=1, at_once=1, turns=2)
    same(engine.agents(), alone[0].agents(), rtol=0, atol=0)


def test_what_was_compiled_ahead_is_not_compiled_again(alone, caplog):
    """For agents that are given, as in a later stage."""
    engine = LocalEngine(learners.make("mean-field", GAME, HYPER), 3, jax.devices()[:1])
    engine.compile(fresh=False)
    agents = alone[0].agents()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        engine.start(jax.random.key(1), agents)
        engine.advance(3)
    assert not [line for line in caplog.messages if "Compiling" in line and "body" in line]
    assert engine.agents().policy.mlp.layers[0].weight.shape[0] == 3


def test_a_match_is_the_learner_alone(alone):
    """The engine adds nothing to what the learner does, written for one match."""
    learner = alone[0].learner
    first, second = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
    state = jax.jit(learner.start)(second, jax.jit(learner.init)(first))
    state, _ = jax.jit(learner.advance)(state, 3)
    same(jax.tree.map(lambda x: x[1], alone[0].agents()), state.agents, atol=1e-4)


def test_the_seed_fixes_the_weights(alone):
    again, _ = trained(3, 1)
    same(again.agents(), alone[0].agents(), rtol=0, atol=0)
    other, _ = trained(3, 1, seed=1)
    assert (jax.tree.leaves(other.agents())[0] != jax.tree.leaves(again.agents())[0]).any()


def test_two_chunks_are_one(alone):
    engine = LocalEngine(learners.make("mean-field", GAME, HYPER), 3, jax.devices()[:1])
    engine.start(jax.random.key(0))
    engine.advance(1)
    engine.advance(2)
    same(engine.agents(), alone[0].agents(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("saved", "restored", "matches"),
    [(2, 1, 3), pytest.param(2, 2, 1, marks=pytest.mark.slow), (2, 1, 1)],
)
def test_a_snapshot_goes_on_as_if_nothing_had_happened(saved, restored, matches, monkeypatch):
    """Also on other devices, as long as a match has as many parts."""
    monkeypatch.setattr("epcx.learners.maddpg.LEAST_PART", 1)

    def engine(number):
        return LocalEngine(
            learners.make("mean-field", GAME, HYPER), matches, jax.devices()[:number]
        )

    first, second = engine(saved), engine(restored)
    first.start(jax.random.key(0))
    first.advance(2)
    if first.layout.parts != second.layout.parts:
        with pytest.raises(InputError, match="resume with as many devices"):
            second.restore(list(first.snapshot()))
        return
    second.restore(list(first.snapshot()))
    same(list(second.snapshot()), list(first.snapshot()), rtol=0, atol=0)
    same(second.advance(1), first.advance(1), rtol=0, atol=0)
    same(second.agents(), first.agents(), rtol=0, atol=0)


def test_a_snapshot_of_other_settings_is_refused():
    engine, _ = trained(1, 1)
    other = Hyperparameters(batch=32, replay=800, worlds=4, warm_up=100)
    larger = LocalEngine(learners.make("mean-field", GAME, other), 1, jax.devices()[:1])
    with pytest.raises(InputError, match="of other settings"):
        larger.restore(list(engine.snapshot()))


def test_all_matches_at_once_as_on_a_gpu(alone):
    engine = LocalEngine(learners.make("mean-field", GAME, HYPER), 3, jax.devices()[:1])
    engine.layout = Layout(lanes=1, parts=1, at_once=3, turns=1)
    engine.start(jax.random.key(0))
    engine.advance(3)
    same(engine.agents(), alone[0].agents(), atol=1e-4)


def test_a_match_on_eight_devices_learns_as_on_one(monkeypatch):
    """Every device holds the same agents and worlds, and a part of the replay."""
    monkeypatch.setattr("epcx.learners.maddpg.LEAST_PART", 1)
    engine, _ = trained(1, 8)
    assert engine.layout.parts == 8
    (state,) = engine.blocks
    for leaf in jax.tree.leaves((state.agents, state.worlds)):
        for part in range(1, 8):
            np.testing.assert_array_equal(leaf[0, part], leaf[0, 0])
    alone, _ = trained(1, 1)
    same(engine.agents(), alone.agents(), atol=1e-3)


def test_training_starts_from_given_agents():
    engine, _ = trained(2, 1)
    given = engine.agents()
    other = LocalEngine(learners.make("mean-field", GAME, HYPER), 2, jax.devices()[:1])
    other.start(jax.random.key(9), given)
    same(other.agents(), given, rtol=0, atol=0)  # the targets, too
    for turn in other.blocks:
        assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(turn.optimisers))


def test_a_match_that_diverges_stops_alone():
    engine, _ = trained(2, 1)
    kept = engine.agents()
    poisoned = engine.blocks[1]
    bad = jax.tree.map(lambda x: x * np.nan, poisoned.replay.steps.reward)
    engine.blocks[1] = jax.tree_util.tree_map(
        lambda x: bad if x is poisoned.replay.steps.reward else x, poisoned
    )
    engine.advance(2)
    assert engine.diverged().tolist() == [False, True]
    now = engine.agents()
    same(jax.tree.map(lambda x: x[1], now), jax.tree.map(lambda x: x[1], kept), rtol=0, atol=0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(now))
    assert any(
        (x[0] != y[0]).any() for x, y in zip(*map(jax.tree.leaves, (now, kept)), strict=True)
    )


@pytest.mark.parametrize(
    ("matches", "number", "platform", "expected"),
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
def test_how_matches_are_laid_out(matches, number, platform, expected):
    assert lay_out(matches, number, platform, most_parts=1024) == expected


def test_a_replay_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("epcx.engines.local.free_memory", lambda devices: 50_000)
    engine = LocalEngine(learners.make("maddpg", GAME, HYPER), 2, jax.devices()[:1])
    with pytest.raises(InputError, match=r"training 2 matches takes .* kB .* 50 kB are free: use"):
        engine.check_memory(lambda: "use less")


def test_bytes_in_words():
    sizes = (12, 34_500, 999_900, 2_260_000_000)
    assert [devices.in_words(x) for x in sizes] == ["12 bytes", "34.5 kB", "1 MB", "2.26 GB"]


def test_the_replay_is_where_it_was_said_to_be():
    engine, _ = trained(2, 2)
    states = [(s.replay, s.agents, s.optimisers) for s in engine.blocks]
    assert sum(x.nbytes for x in jax.tree.leaves(states)) == engine.bytes * 2


def test_advancing_does_not_compile_again():
    engine, _ = trained(1, 1)
    compiled = partial(engine.programs[0].advance._cache_size)
    before = compiled()
    engine.advance(2)
    engine.advance(5)
    assert compiled() == before
