"""Training as a user meets it: it learns, it reports, it can be stopped, it refuses nonsense."""

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

from epcx import games, training
from epcx.errors import InputError
from epcx.evaluation.evaluate import play_episodes
from epcx.interrupts import Interrupts
from epcx.learners import Hyperparameters
from epcx.runs.run import Run
from tests.test_cli import fails

TINY = ["--batch", "32", "--warm-up", "100", "--worlds", "4", "--replay", "400"]
QUICK = Hyperparameters(batch=32, warm_up=100, worlds=4, replay=400)


def epcx(*arguments, **options):
    """The command in a process of its own, compiled for speed."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    command = [sys.executable, "-m", "epcx", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, **options
    )


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    """A run in which one collector learns to stand on its food."""
    runs = tmp_path_factory.mktemp("runs")
    options = ["--population", "1", "--episodes", "5000", "--batch", "256", "--warm-up", "5000"]
    done = epcx("train", "food-collection", *options, "--runs", runs, "--name", "one", "--json")
    assert done.returncode == 0, done.stderr
    return runs / "one", done


def test_it_learns(collector):
    """Random collectors stand on the food for a step or two of 25; this one for most of them."""
    run, _ = collector
    shown = epcx("evaluate", run, "--episodes", "500", "--json")
    learnt = json.loads(shown.stdout)["matches"][0]["roles"]["collector"]
    game = games.make("food-collection", "1")

    def at_random(key, agents, worlds):
        return jnp.moveaxis(jax.random.dirichlet(key, jnp.ones(5), (1, 500)), -1, 1)

    chance = play_episodes(game, at_random, None, jax.random.key(0), 500)["reward"].mean()
    assert learnt["reward"]["mean"] > max(50, 5 * chance)
    assert learnt["coverage"]["mean"] > 0.8


def test_a_run_holds_everything(collector):
    path, done = collector
    result = json.loads(done.stdout)
    assert result["run"] == str(path)
    assert result["ended"] == "finished"
    assert result["episodes"] == 5000
    run = Run.open(path)
    assert run.config["hyper"]["batch"] == 256
    rows = run.metrics()
    assert rows[-1]["episodes"] == 5000
    assert [row["updates"] for row in rows] == sorted(row["updates"] for row in rows)
    assert {"reward/collector", "shaping/collector", "critic_loss/collector"} <= rows[0].keys()
    assert rows[-1]["reward/collector"] > rows[0]["reward/collector"]


def test_progress_without_a_terminal_is_plain_lines(collector):
    _, done = collector
    lines = done.stderr.splitlines()
    assert "replay" in lines[0]
    assert "bytes" in lines[0] or "MB" in lines[0]
    assert lines[-1].startswith("1  5000/5000 episodes")
    assert "/s  collector " in lines[-1]
    assert "\x1b" not in done.stderr


def test_trained_agents_can_be_watched_and_moved(collector, tmp_path):
    run, _ = collector
    shown = epcx("replay", run, "--out", tmp_path / "a.html")
    assert "food-collection 1, 25 steps" in shown.stdout
    moved = epcx("evaluate", run, "--population", "3", "--episodes", "10")
    assert "food-collection 3" in moved.stdout
    assert "reward" in moved.stdout


def test_an_interrupt_keeps_the_agents(tmp_path):
    """The first signal ends training after the chunk."""
    wanted = training.Training("food-collection", "mean-field", "1", 10**6, 1, 0, QUICK)
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        training.train(
            wanted,
            tmp_path / "run",
            report=lambda *progress: signal.raise_signal(signal.SIGINT),
            interrupts=interrupts,
        )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["ended"] == "interrupted"
    assert result["updates"] >= 1
    run = Run.open(tmp_path / "run")
    agents = training.load_agents(run, 0, training.trained(run))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(agents))


def test_a_second_interrupt_does_not_wait():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_matches_that_diverge_are_reported_and_end_the_training(tmp_path, monkeypatch):
    said = []
    poison = training.LocalEngine.start

    def start(engine, key, agents=None):
        poison(engine, key, agents)
        reward = engine.turns[0].replay.steps.reward
        engine.turns[0] = jax.tree.map(lambda x: x * np.nan if x is reward else x, engine.turns[0])

    monkeypatch.setattr(training.LocalEngine, "start", start)
    wanted = training.Training("food-collection", "mean-field", "1", 1000, 1, 0, QUICK)
    training.train(wanted, tmp_path / "run", announce=said.append)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["ended"] == "diverged"
    assert result["diverged_matches"] == [0]
    assert "match 0 stopped near episode" in said[-1]
    rows = Run.open(tmp_path / "run").metrics()
    assert rows[-1]["diverged"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "chess"], "chess"),
        (["train", "grassland", "--method", "ppo"], "unknown method 'ppo': the methods are att-"),
        (["train", "grassland", "--population", "3"], "population '3' does not fit grassland"),
        (["train", "grassland", "--episodes", "0"], "episodes 0"),
        (["train", "grassland", "--episodes", "10"], "episodes 10 end before the first update"),
        (["train", "grassland", "--matches", "0"], "matches 0"),
        (["train", "grassland", "--seed", "-1"], "seed -1"),
        (["train", "grassland", "--learning-rate", "nan"], "learning-rate nan"),
        (["train", "grassland", "--discount", "0"], "discount 0"),
        (["train", "grassland", "--batch", "2000", "--replay", "1000"], "larger than replay 1000"),
        (["train", "grassland", "--replay", "10000000000"], "use --replay"),
        (["train", "grassland", "--name", "../up"], "'../up' is not the name of a folder"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["evaluate", "nowhere", "--episodes", "0"], "episodes 0"),
        (["replay", "grassland", "--match", "1"], "--match 1 does not go with the game"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, *arguments)
    assert says in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_exists_is_left_alone(capsys, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "precious").write_text("data")
    options = [*TINY, "--population", "1", "--episodes", "100", "--runs", str(tmp_path)]
    message = fails(capsys, "train", "food-collection", *options, "--name", "mine")
    assert "exists already" in message
    assert [path.name for path in folder.iterdir()] == ["precious"]


def test_options_of_a_run_are_checked(capsys, collector):
    run = str(collector[0])
    assert "match 3 is not a whole number from 0 to 0" in fails(
        capsys, "evaluate", run, "--match", "3"
    )
    assert "does not fit food-collection" in fails(capsys, "evaluate", run, "--population", "3-2")
    assert "--players random does not go" in fails(capsys, "replay", run, "--players", "random")


def test_what_makes_a_replay_fit_is_named():
    wanted = training.Training("grassland", matches=8)
    engine = training.LocalEngine(wanted.learner(), 8, jax.devices()[:1])
    engine.free = engine.bytes // 2
    assert training.advice(wanted, engine) == "use --replay 400000 or less, or --matches 3 or fewer"
    with pytest.raises(InputError, match="use --replay 400000"):
        engine.check_memory(lambda: training.advice(wanted, engine))


def test_log_lines_are_spread_over_the_training():
    assert training.marks(3) == [1, 2, 3]
    marks = training.marks(10_000)
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
