"""Training as a user meets it: it learns, it reports, it can be stopped, it goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, log, trained, trainer
from epcx.engines.arena import Arena
from epcx.engines.host import Host
from epcx.engines.local import LocalEngine
from epcx.errors import InputError, RunError
from epcx.interrupts import Interrupts
from epcx.learners import Hyperparameters
from epcx.runs.run import Run
from epcx.training import Training
from tests.processes import epcx, same_results
from tests.test_cli import fails

TINY = Hyperparameters(batch=32, warm_up=100, worlds=4, replay=400)
ONE = Training("food-collection", "mean-field", ("1",), 200, hyper=TINY)


class Said:
    """Remembers what it is told, and may do something at every report."""

    def __init__(self, then=lambda: None):
        self.lines, self.stages, self.then = [], [], then

    def begin(self, stage, total):
        self.stages.append(stage)

    def show(self, episodes, rewards):
        self.then()

    def say(self, line):
        self.lines.append(line)


def compiling_ahead():
    """This machine, as if it had GPUs."""
    site = Host()
    site.compiles_ahead = True
    return site


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    """A run of four matches in which one collector learns to stand on its food."""
    run = tmp_path_factory.mktemp("runs") / "one"
    options = "--population 1 --matches 4 --episodes 2600 --batch 256 --warm-up 5000"
    options += " --steps-per-update 2 --learning-rate 0.005 --target-rate 0.03 --json"
    method = ["food-collection", "--method", "att-maddpg"]
    # Compiled better than other tests do: it runs longer than it compiles.
    flags = "--xla_backend_optimization_level=1"
    done = epcx("train", *method, *options.split(), "--out", run, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    return run, done


def test_it_learns(collector):
    """Random collectors stand on the food for a step or two of 25; the best one nearly always."""
    run, _ = collector
    shown = epcx("evaluate", run, "--episodes", "500", "--json")
    learnt = [m["roles"]["collector"] for m in json.loads(shown.stdout)["matches"]]
    game = games.make("food-collection", "1")

    def at_random(key, agents, worlds):
        return jnp.moveaxis(jax.random.dirichlet(key, jnp.ones(5), (1, 500)), -1, 1)

    (played,) = Arena(game, at_random).play([None], jax.random.key(0), 500)
    chance = played["reward"].mean()
    assert np.mean([match["reward"]["mean"] for match in learnt]) > 20 * max(1, chance)
    best = max(learnt, key=lambda match: match["reward"]["mean"])
    assert best["reward"]["mean"] > 70
    assert best["coverage"]["mean"] > 0.8


def test_a_run_holds_everything(collector):
    path, done = collector
    result = json.loads(done.stdout)
    assert result["run"] == str(path)
    assert result["ended"] == "finished"
    assert result["episodes_along_a_lineage"] == result["episodes_in_total"] // 4 == 2600
    run = Run.open(path)
    assert run.config["hyper"]["batch"] == 256
    rows = run.metrics()
    assert rows[-1]["episodes"] == 2600
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows)
    assert {"reward/collector", "shaping/collector", "critic_loss/collector"} <= rows[0].keys()
    assert rows[-1]["reward/collector"] > rows[0]["reward/collector"]
    assert not (path / "checkpoints").exists()  # nothing is left to be done


def test_progress_without_a_terminal_is_plain_lines(collector):
    _, done = collector
    lines = done.stderr.splitlines()
    assert "replay" in lines[0]
    assert "bytes" in lines[0] or "MB" in lines[0]
    assert lines[-1].startswith("1  (1/1)  2600/2600 episodes")
    assert "/s  collector " in lines[-1]
    assert "\x1b" not in done.stderr


def test_trained_agents_can_be_watched_and_moved(collector, tmp_path):
    run, _ = collector
    shown = epcx("replay", run, "--out", tmp_path / "a.html")
    assert "food-collection 1, 25 steps" in shown.stdout
    moved = epcx("evaluate", run, "--population", "3", "--episodes", "10")
    assert "food-collection 3" in moved.stdout
    assert "reward" in moved.stdout


def test_options_of_a_run_are_checked(capsys, collector):
    run = str(collector[0])
    assert "match 4 is not a whole number from 0 to 3" in fails(
        capsys, "evaluate", run, "--match", "4"
    )
    assert "does not fit food-collection" in fails(capsys, "evaluate", run, "--population", "3-2")
    assert "stage '9' is not in" in fails(capsys, "evaluate", run, "--stage", "9")
    assert "--players random does not go" in fails(capsys, "replay", run, "--players", "random")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What ONE gives without an interruption."""
    return trainer.train(ONE, tmp_path_factory.mktemp("runs") / "whole").path


def test_programs_that_were_compiled_ahead_train_the_same(tmp_path, monkeypatch, whole):
    """As on a GPU."""
    ahead = trainer.train(ONE, tmp_path / "ahead", site=compiling_ahead())
    same_results(ahead.path, whole)


@pytest.mark.slow
def test_later_stages_that_were_compiled_ahead_train_the_same(tmp_path, monkeypatch):
    grown = Training(
        "food-collection", "epc", ("1", "2"), 60, 60, sets=2, matches=2, fitness_episodes=20,
        hyper=TINY,
    )  # fmt: skip
    plain = trainer.train(grown, tmp_path / "plain")
    made = []
    compiled = LocalEngine.compile
    monkeypatch.setattr(
        LocalEngine, "compile", lambda *args, **kw: made.append(1) or compiled(*args, **kw)
    )
    ahead = trainer.train(grown, tmp_path / "ahead", site=compiling_ahead())
    same_results(ahead.path, plain.path)
    assert len(made) == 2  # one per stage: the second is the one that was prepared


def test_an_interrupt_keeps_what_is_needed_to_go_on(tmp_path, whole):
    """The first signal ends training after the chunk."""
    said = Said(lambda: signal.raise_signal(signal.SIGINT))
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        trainer.train(ONE, tmp_path / "run", watcher=said, interrupts=interrupts)
    run = Run.open(tmp_path / "run")
    assert run.result["ended"] == "interrupted"
    assert said.lines[-1] == f"to go on: epcx resume {run.path}"
    with pytest.raises(InputError, match="has no agents yet"):
        trained.stage_of(run, "1")
    trainer.resume(run.path)
    assert run.result["ended"] == "finished"
    same_results(run.path, whole)


def test_a_damaged_checkpoint_costs_some_time_only(tmp_path, whole):
    said = Said()
    chunks = iter([False, False, False, True])
    said.then = lambda: next(chunks) and signal.raise_signal(signal.SIGINT)
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        trainer.train(ONE, tmp_path / "run", False, said, interrupts, checkpoint_seconds=0.0)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1] / "match-0.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    again = Said()
    trainer.resume(tmp_path / "run", again)
    assert "match-0 has another checksum" in again.lines[0]
    same_results(tmp_path / "run", whole)


def test_a_finished_run_is_left_as_it_is(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.*")}
    assert trainer.resume(whole).result["ended"] == "finished"
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.*")} == before


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    def second():
        with pytest.raises(InputError, match="in use by another process"):
            trainer.resume(tmp_path / "run")

    trainer.train(ONE, tmp_path / "run", watcher=Said(second))


def test_a_checkpoint_that_cannot_be_written_stops_the_run(tmp_path, monkeypatch, whole):
    """The sentence says what is left, and after the cause is gone, it goes on."""
    with monkeypatch.context() as patched:

        def refuse(*arguments):
            raise OSError(28, "No space left on device")

        patched.setattr("epcx.runs.checkpoint.write_through", refuse)
        with pytest.raises(RunError, match=r"no space left on device; .*: epcx resume"):
            trainer.train(ONE, tmp_path / "run")
    assert Run.open(tmp_path / "run").result["ended"] == "failed"
    trainer.resume(tmp_path / "run")
    same_results(tmp_path / "run", whole)


def test_a_second_interrupt_does_not_wait():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_matches_that_diverge_are_reported_and_end_the_training(tmp_path, monkeypatch):
    start = LocalEngine.start

    def poisoned(engine, *arguments):
        start(engine, *arguments)
        reward = engine.blocks[0].replay.steps.reward
        engine.blocks[0] = jax.tree.map(
            lambda x: x * np.nan if x is reward else x, engine.blocks[0]
        )

    monkeypatch.setattr(LocalEngine, "start", poisoned)
    said = Said()
    with pytest.raises(RunError, match="all 1 matches at 1 have diverged"):
        trainer.train(ONE, tmp_path / "run", watcher=said)
    run = Run.open(tmp_path / "run")
    assert run.result["ended"] == "failed"
    assert "diverged" in run.result["cause"]
    assert "match 0 stopped near episode" in said.lines[-1]
    assert run.metrics()[-1]["diverged"] is True


def test_log_lines_are_spread_over_the_training():
    assert log.marks(3) == [1, 2, 3]
    marks = log.marks(10_000)
    assert len(marks) == 100
    assert marks[0] == 100
    assert marks[-1] == 10_000


def test_compiled_programs_are_kept_by_default(tmp_path):
    home = tmp_path / "cache"
    code = "from epcx.engines.devices import CONFIG, keep_compiled_programs as keep; keep(); "
    code += "print(CONFIG.jax_compilation_cache_dir)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert Path(shown.stdout.strip()) == home / "epcx" / "jax"
