"""Training: it learns, logs, reports, can be interrupted, and goes on where it was."""

import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, teams, trainer
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError
from epcx.execution.arena import Arena
from epcx.execution.local import LocalExecutor
from epcx.execution.match_trainer import MatchTrainer
from epcx.interrupts import Interrupts, Terminated
from epcx.learners import MADDPGConfig
from epcx.metrics_log import evenly_spaced
from epcx.runs.run import RunFolder
from tests.factories import RecordingCallback
from tests.processes import assert_same_results, run_epcx

TINY = MADDPGConfig(
    network="mean-field", batch_size=32, learning_starts=100, num_envs=4, buffer_size=400
)
CONFIG = TrainConfig(
    "food-collection", "mean-field", population=("1",), episodes=200, learner_config=TINY
)


def train(folder, callback=None, **options):
    return trainer.train(CONFIG, folder, LocalExecutor(), callback, **options)


def resume(folder, callback=None):
    return trainer.resume(folder, LocalExecutor(), callback)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def precompiling_executor():
    """This machine, as if it had GPUs."""
    executor = LocalExecutor()
    executor.precompiles = True
    return executor


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of four matches in which one collector learns to stand on its food."""
    run = tmp_path_factory.mktemp("runs") / "one"
    options = "--population 1 --matches 4 --episodes 2600 --batch-size 256 --learning-starts 5000"
    options += " --steps-per-update 2 --learning-rate 0.005 --tau 0.03 --json"
    method = ["food-collection", "--method", "att-maddpg"]
    # Compiled better than other tests do: it runs longer than it compiles.
    flags = "--xla_backend_optimization_level=1"
    done = run_epcx("train", *method, *options.split(), "--out", run, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    return run, done


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What CONFIG gives without an interruption."""
    return train(tmp_path_factory.mktemp("runs") / "run").path


def test_trained_agents_are_better_than_random_ones(trained):
    """Random collectors stand on the food for a step or two of 25; the best one nearly always."""
    run, _ = trained
    shown = run_epcx("evaluate", run, "--episodes", "500", "--json")
    learnt = [match["roles"]["collector"] for match in json.loads(shown.stdout)["matches"]]
    game = games.make("food-collection", "1")

    def act_randomly(key, agents, worlds):
        return jnp.moveaxis(jax.random.dirichlet(key, jnp.ones(5), (1, 500)), -1, 1)

    (played,) = Arena(game, act_randomly).play([None], jax.random.key(0), 500)
    baseline = played["reward"].mean()
    assert np.mean([match["reward"]["mean"] for match in learnt]) > 20 * max(1, baseline)
    best = max(learnt, key=lambda match: match["reward"]["mean"])
    assert best["reward"]["mean"] > 70
    assert best["coverage"]["mean"] > 0.8


def test_finished_run_has_config_metrics_and_result(trained):
    path, done = trained
    result = json.loads(done.stdout)
    assert result["run"] == str(path)
    assert result["ended"] == "finished"
    assert result["episodes_along_a_lineage"] == result["episodes_in_total"] // 4 == 2600
    run = RunFolder.open(path)
    assert run.config["learner_config"]["batch_size"] == 256
    assert {"epcx", "jax", "device", "kernels"} <= run.provenance.keys()
    rows = run.metrics()
    assert rows[-1]["episodes"] == 2600
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows)
    assert {"reward/collector", "shaping/collector", "critic_loss/collector"} <= rows[0].keys()
    assert rows[-1]["reward/collector"] > rows[0]["reward/collector"]
    assert not (path / "checkpoints").exists()  # nothing is left to be done


def test_progress_without_a_terminal_is_plain_lines(trained):
    _, done = trained
    lines = done.stderr.splitlines()
    assert lines[0].startswith("1: 4 matches on ")
    assert "training states take " in lines[0]
    assert lines[0].endswith("B per device")
    assert lines[-1].startswith("1  (1/1)  2600/2600 episodes")
    assert "/s  collector " in lines[-1]
    assert "\x1b" not in done.stderr


def test_trained_agents_can_be_replayed_and_play_at_another_population(trained, tmp_path):
    run, _ = trained
    shown = run_epcx("replay", run, "--out", tmp_path / "a.html")
    what = "food-collection 1, 25 steps (run one: att-maddpg of stage 1, match 0)"
    assert what in shown.stdout
    larger = run_epcx("evaluate", run, "--population", "3", "--episodes", "10")
    assert "food-collection 3" in larger.stdout
    assert "reward" in larger.stdout


def test_bad_options_for_a_run_are_refused(error_of, trained):
    run, _ = trained
    message = error_of("evaluate", run, "--match", "4")
    assert "match 4 is too large: a whole number from 0 to 3" in message
    assert "does not fit food-collection" in error_of("evaluate", run, "--population", "3-2")
    assert "stage '9' is not in" in error_of("evaluate", run, "--stage", "9")
    assert "--players random does not go" in error_of("replay", run, "--players", "random")


def test_precompiled_programs_give_identical_results(tmp_path, uninterrupted):
    run = trainer.train(CONFIG, tmp_path / "run", precompiling_executor())
    assert_same_results(run.path, uninterrupted)


@pytest.mark.slow
def test_precompiled_stages_give_identical_results(tmp_path, monkeypatch):
    config = TrainConfig(
        "food-collection",
        population=("1", "2"),
        episodes=60,
        stage_episodes=60,
        matches=2,
        fitness_episodes=20,
        learner_config=MADDPGConfig(
            batch_size=32, learning_starts=100, num_envs=4, buffer_size=400
        ),
    )
    plain = trainer.train(config, tmp_path / "plain", LocalExecutor())
    compiled, compile_trainer = [], MatchTrainer.compile

    def counting(self, *arguments, **options):
        compiled.append(self)
        return compile_trainer(self, *arguments, **options)

    monkeypatch.setattr(MatchTrainer, "compile", counting)
    precompiled = trainer.train(config, tmp_path / "precompiled", precompiling_executor())
    assert_same_results(precompiled.path, plain.path)
    assert len(compiled) == 2  # one per stage: the second is the one that was prepared


def test_resume_after_interrupt_gives_identical_results(tmp_path, uninterrupted):
    callback = RecordingCallback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callback)
    run = RunFolder.open(tmp_path / "run")
    assert run.result["ended"] == "interrupted"
    assert callback.messages[-1] == f"to go on: epcx resume {run.path}"
    with pytest.raises(InputError, match="has no agents yet"):
        teams.stage_of(run, "1")
    resume(run.path)
    assert run.result["ended"] == "finished"
    assert_same_results(run.path, uninterrupted)


def test_resume_takes_an_older_checkpoint_if_the_newest_is_damaged(tmp_path, uninterrupted):
    chunks = iter([False, False, False, True])
    callback = RecordingCallback(lambda: next(chunks) and interrupt())
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callback, checkpoint_seconds=0.0)
    newest = max((tmp_path / "run" / "checkpoints").glob("[0-9]*")) / "match-0.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    resumed = RecordingCallback()
    resume(tmp_path / "run", resumed)
    assert "match-0 has another checksum" in resumed.messages[0]
    assert_same_results(tmp_path / "run", uninterrupted)


def test_log_that_has_lost_lines_is_mended(tmp_path, uninterrupted):
    """A power failure may take the end of a file."""
    chunks = iter([False, False, True])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", RecordingCallback(lambda: next(chunks) and interrupt()))
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    callback = RecordingCallback()
    run = resume(tmp_path / "run", callback)
    assert f"{log} has lost lines since the checkpoint" in callback.messages[0]
    assert run.digests() == RunFolder.open(uninterrupted).digests()
    assert len(run.metrics()) == len(RunFolder.open(uninterrupted).metrics()) - 1


def test_checkpoint_is_written_when_the_batch_system_asks(tmp_path, uninterrupted):
    """SLURM sends SIGUSR1 before a time limit; after a kill, the run goes on from there."""
    chunks = iter([False, True])
    found = []

    def ask():
        if next(chunks, False):
            os.kill(os.getpid(), signal.SIGUSR1)
        found.append(len(list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))))

    callback = RecordingCallback(ask)
    run = train(tmp_path / "run", callback, checkpoint_seconds=1000.0)
    assert found[1:3] == [0, 1]  # written right after the chunk in which it was asked for
    assert any("a checkpoint was asked for and is written" in line for line in callback.messages)
    assert run.result["ended"] == "finished"
    assert_same_results(tmp_path / "run", uninterrupted)


def test_checkpoint_of_other_settings_is_refused(tmp_path):
    chunks = iter([False, False, False, True])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", RecordingCallback(lambda: next(chunks) and interrupt()))
    path = tmp_path / "run" / "config.json"
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    path.write_text(path.read_text().replace('"buffer_size": 400', '"buffer_size": 500'))
    with pytest.raises(InputError, match="its checkpoints are of other settings"):
        resume(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def test_resume_leaves_a_finished_run_as_it_is(uninterrupted):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*.*")}
    assert resume(uninterrupted).result["ended"] == "finished"
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*.*")} == before


def test_folder_in_use_is_refused(tmp_path):
    refused = []

    def resume_meanwhile():
        with pytest.raises(InputError, match="in use by another process"):
            resume(tmp_path / "run")
        refused.append(True)

    train(tmp_path / "run", RecordingCallback(resume_meanwhile))
    assert refused


def test_resume_after_a_checkpoint_could_not_be_written(tmp_path, monkeypatch, uninterrupted):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("epcx.runs.checkpoint.write_through", refuse)
        with pytest.raises(RunError, match=r"no space left on device; .*: epcx resume"):
            train(tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    assert run.result["ended"] == "failed"
    assert "no space left on device" in run.result["cause"]
    resume(run.path)
    assert_same_results(run.path, uninterrupted)


def test_first_interrupt_is_noted_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted == signal.SIGTERM
        with pytest.raises(Terminated):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_termination_that_comes_twice_at_once_is_one(monkeypatch):
    """Batch systems signal all processes of a job, and some of these pass it on."""
    with Interrupts() as interrupts:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted == signal.SIGTERM
        monkeypatch.setattr("epcx.interrupts.REPEAT_SECONDS", 0)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)


def test_training_fails_if_all_matches_diverge(tmp_path, monkeypatch):
    start = MatchTrainer.start

    def start_with_nan(self, *arguments):
        start(self, *arguments)
        reward = self.blocks[0].buffer.steps.reward
        self.blocks[0] = jax.tree.map(lambda x: x * np.nan if x is reward else x, self.blocks[0])

    monkeypatch.setattr(MatchTrainer, "start", start_with_nan)
    callback = RecordingCallback()
    with pytest.raises(RunError, match="all 1 matches at 1 have diverged"):
        train(tmp_path / "run", callback)
    run = RunFolder.open(tmp_path / "run")
    assert run.result["ended"] == "failed"
    assert "diverged" in run.result["cause"]
    assert "match 0 stopped near episode" in callback.messages[-1]
    assert run.metrics()[-1]["diverged"] is True


def test_log_lines_are_evenly_spaced():
    assert evenly_spaced(3) == [1, 2, 3]
    assert evenly_spaced(10_000) == list(range(100, 10_001, 100))
    assert evenly_spaced(10, 4) == [3, 5, 8, 10]
    assert evenly_spaced(10, 0) == []


def test_compilation_cache_is_a_private_folder_of_the_user(tmp_path):
    cache = tmp_path / "epcx" / "jax"
    assert compilation_cache(tmp_path) == str(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)
    assert compilation_cache(tmp_path) == "None"


def compilation_cache(home):
    code = "from epcx.execution.devices import CONFIG, enable_compilation_cache as enable; "
    code += "enable(); print(CONFIG.jax_compilation_cache_dir)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return shown.stdout.strip()
