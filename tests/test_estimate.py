"""Estimated times: what is counted, what is not known, and what is refused because of it."""

import json
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import epcx
from epcx import backends, estimate, games, learners
from epcx.cli import main
from epcx.errors import InputError
from epcx.estimate import Cost, UnknownCostError, format_duration, update_cost
from epcx.execution.execution_options import ExecutionOptions
from epcx.learners import Learner, MAPPOConfig
from epcx.networks import kernels
from epcx.networks.kernels.pallas_attention import Options as AttentionOptions
from epcx.networks.kernels.pallas_encoder import Options
from epcx.presets import make_config


@dataclass(frozen=True)
class Program(Learner):
    """A learner, as far as counting needs one."""

    step: Any

    name = "program"
    game = games.make("food-collection", "1")

    def init(self, key):
        return jnp.zeros((3, 4))

    def start(self, key, agents):
        return agents

    def advance(self, state, updates):
        return jax.lax.fori_loop(0, updates, self.step, state)


def test_cost_counts_every_element_of_one_update():
    def step(_, x):  # [3, 4]
        y, _ = jax.lax.scan(lambda y, _: (jnp.tanh(y), None), x @ jnp.ones((4, 5)), length=7)
        return x + y.sum()

    cost = update_cost(Program(step))
    # 4 x 5 ones, a product of 3 x 5, seven times 3 x 5 tanh, a sum and 3 x 4 additions; the
    # counter of the loop is compared and increased.
    assert cost.elements == 20 + 15 + 7 * 15 + 1 + 12 + 2
    assert cost.kernels == "XLA"


def test_cost_counts_the_part_of_a_buffer_that_is_written():
    def step(i, x):
        return jax.lax.dynamic_update_slice(x, jnp.ones((1, 4)), (0, 0))

    assert update_cost(Program(step)).elements == 4 + 4 + 2


def test_cost_is_unknown_where_the_program_does_not_tell():
    def calls(_, x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def waits(_, x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x)

    with pytest.raises(UnknownCostError, match="learner program calls pure_callback"):
        update_cost(Program(calls))
    with pytest.raises(UnknownCostError, match="loops of unknown length"):
        update_cost(Program(waits))


def test_program_is_counted_as_plain_jax_and_named_after_its_kernels():
    with backends.plain_only() as names:
        assert kernels.select(4096, [8, 8], 5) is kernels.XLA
    assert names == {kernels.fastest(4096, [8, 8], 5).name}
    assert kernels.select(4096, [8, 8], 5).name in names


def test_relational_networks_are_named_after_the_kernels_that_relate():
    """On a CPU they are plain JAX, whatever the kernels of other networks are."""
    with backends.plain_only() as names:
        kernels.select(4096, [8, 8], relational=True)
    assert names == {"XLA"}
    learner = learners.make(
        "mappo", games.make("food-collection", "2"), MAPPOConfig(network="relational", num_envs=4)
    )
    assert update_cost(learner).kernels == "XLA"
    on_gpu = kernels.pallas_kernels(Options(), Options(), AttentionOptions())
    assert {on_gpu.name, on_gpu.relations} < set(estimate.ON_GPU)


@pytest.fixture
def slow_updates(monkeypatch):
    """Every update takes a second."""
    monkeypatch.setattr(estimate, "update_cost", lambda learner: Cost(1.0, 1.0, "XLA"))
    monkeypatch.setattr(Cost, "seconds", lambda cost, device, matches: 1.0)


def test_estimate_adds_up_updates_of_all_turns(slow_updates, capsys):
    words = "train food-collection --population 3 6 --devices 1 --dry-run --json"
    main(words.split())
    plan = json.loads(capsys.readouterr().out)["plan"]
    turns = [stage["matches"] * stage["updates"] for stage in plan["stages"]]  # on one core
    assert plan["estimated_seconds"] == {"stages": turns, "total": sum(turns)}


def test_dry_run_shows_the_time_of_every_stage(slow_updates, capsys):
    main(["train", "food-collection", "--population", "3", "6", "--devices", "1", "--dry-run"])
    shown = capsys.readouterr().out
    assert "10 hours" in shown  # 3 x 12,244 seconds
    assert "8 hours" in shown  # 6 x 4,744
    assert "time: about 18 hours on this machine" in shown


def test_estimate_of_a_cluster_is_unknown():
    config = make_config("food-collection", preset="smoke")
    found = estimate.estimate(config, ExecutionOptions(engine="ray"))
    assert found.reason == "the devices of the cluster are not known here"
    assert found.to_json()["estimated_seconds"] is None


SMALL_BUFFERS = ("--buffer-size", "50000")  # for the memory that other programs leave


def test_long_schedule_that_was_not_asked_for_is_refused(slow_updates, error_of, tmp_path):
    out = tmp_path / "run"
    train = ("train", "food-collection", "--devices", "1", *SMALL_BUFFERS)
    message = error_of(*train, "--out", out)
    assert "the paper's schedule takes 8 hours or more on this machine" in message
    assert "--preset paper to train it anyway, or --preset quick for minutes" in message
    one = ExecutionOptions(devices=1)
    with pytest.raises(InputError, match="takes 8 hours or more"):
        epcx.train("food-collection", out=out, buffer_size=50_000, execution=one)
    assert not out.exists()


@pytest.mark.parametrize(
    "words", ["--preset paper", "--method maddpg --episodes 1100", "--engine ray --dry-run"]
)
def test_schedule_that_is_asked_for_or_short_is_not_refused(
    slow_updates, error_of, tmp_path, words
):
    if "--dry-run" in words:
        main(["train", "food-collection", *words.split()])
        return
    (tmp_path / "file").touch()
    train = ("train", "food-collection", *words.split(), *SMALL_BUFFERS)
    message = error_of(*train, "--out", tmp_path)
    assert "exists already" in message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 second"),
        (2.0, "2 seconds"),
        (80.0, "80 seconds"),
        (100.0, "2 minutes"),
        (5000.0, "83 minutes"),
        (5401.0, "2 hours"),
        (90e3, "25 hours"),
        (130e3, "2 days"),
        (4e7, "463 days"),
        (1e12, "31,710 years"),
    ],
)
def test_durations_are_as_precise_as_estimates(seconds, text):
    assert format_duration(seconds) == text
