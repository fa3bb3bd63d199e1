"""A learner from outside the package goes through everything that MADDPG goes through."""

import json
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import epcx
from epcx import games, learners
from epcx.teams import RunPlayers
from tests.es_learner import ESConfig, EvolutionStrategies
from tests.processes import assert_same_results, command, environment, run_epcx

NAME = "tests.es_learner:EvolutionStrategies"
TRAIN = [
    "train",
    "food-collection",
    "--learner",
    NAME,
    "--preset",
    "smoke",
    "--population",
    "1",
    "2",
]
TRAIN += ["--episodes", "400", "--stage-episodes", "400", "--pairs", "2", "--sigma", "0.2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An EPC run of evolution strategies, by the command line."""
    folder = tmp_path_factory.mktemp("es") / "run"
    done = run_epcx(*TRAIN, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_config_of_an_open_learner_is_in_the_run(trained):
    config = json.loads((trained / "config.json").read_text())
    assert config["learner"] == NAME
    assert config["learner_config"] == {"step_size": 1.0, "sigma": 0.2, "pairs": 2}
    assert epcx.Run(trained).config.learner_config == ESConfig(sigma=0.2, pairs=2)


def test_help_shows_the_options_of_the_learner():
    shown = run_epcx("train", "food-collection", "--learner", NAME, "--preset", "smoke", "--help")
    assert shown.returncode == 0
    assert "--sigma" in shown.stdout
    assert "Antithetic pairs of perturbed teams per update. (default: 2)" in " ".join(
        shown.stdout.split()
    )
    assert "--buffer-size" not in shown.stdout


def test_killed_training_resumes_to_identical_results(trained, tmp_path):
    """SIGKILL as soon as there is a checkpoint inside the first stage."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(*TRAIN, "--out", folder, "--checkpoint-minutes", "0"),
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    while not list(folder.glob("checkpoints/0*")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()
    resumed = run_epcx("resume", folder)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_results(folder, trained)


@pytest.mark.slow
def test_ray_executor_gives_the_same_bits(trained, tmp_path):
    done = run_epcx(*TRAIN, "--engine", "ray", "--out", tmp_path / "ray")
    assert done.returncode == 0, done.stderr
    assert_same_results(tmp_path / "ray", trained)


def test_evaluate_crossplay_report_and_replay(trained, tmp_path):
    found = epcx.evaluate(trained, episodes=20)
    assert set(found.roles()) == {"collector"}
    played = epcx.crossplay([trained, f"{trained}@1", "random"], episodes=20)
    assert played.names == ("run", "run@1", "random")
    written = epcx.report([trained], out=tmp_path / "report", episodes=20)
    assert "EPC" in written.page.read_text()
    assert epcx.replay(trained, out=tmp_path / "a.html").steps == 25


def test_published_policies_start_another_training(trained, tmp_path):
    run = epcx.train(
        "food-collection",
        learner=NAME,
        preset="smoke",
        population="2",
        init_from=f"{trained}@2",
        out=tmp_path / "grown",
        callback=epcx.NullCallback(),
    )
    first = [record for record in run.lineage().records if record.stage == 0]
    assert {parent for record in first for parent in record.parents} <= {
        "collector-init.0",
        "collector-init.1",
    }
    epcx.report([run], out=tmp_path / "report", episodes=20)
    (chart,) = (tmp_path / "report" / "figures").glob("lineage-*.svg")
    assert ">start<" in chart.read_text()
    best = run.lineage().promoted(0, "collector")[0]
    assert RunPlayers("grown", run.folder, "2").origin("collector") == best.match


def test_evolution_strategies_learn():
    """One collector finds its food: the learner of this test is a real one."""
    game = games.make("food-collection", "1")
    learner = EvolutionStrategies(game, ESConfig())
    state = learner.start(jax.random.key(1), learner.init(jax.random.key(0)))
    advance = jax.jit(learner.advance)
    state, before = advance(state, 5)
    state, _ = advance(state, 200)
    _, after = advance(state, 20)
    assert before["reward"].mean() < 2
    assert after["reward"].mean() > 15


def test_registered_learner_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(learners.REGISTRY, "known", dict(learners.REGISTRY.known))
    learners.register(EvolutionStrategies)
    assert learners.find("es") is EvolutionStrategies
    assert epcx.configure("food-collection", learner="es", preset="smoke").learner == NAME


def test_learner_without_device_layout_has_a_known_size():
    learner = EvolutionStrategies(games.make("food-collection", "3"), ESConfig())
    assert not isinstance(learner, learners.ShardedLearner)
    weights = learner.init(jax.random.key(0))
    expected = np.asarray(weights).nbytes + 8  # and the key
    assert learners.learner.state_bytes(learner) == expected


def test_no_module_outside_learners_and_networks_names_maddpg():
    """The paper's methods and tables aside."""
    package = Path(epcx.__file__).parent
    allowed = ("learners/", "networks/", "reports/paper/", "methods.py")
    naming = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "maddpg" in path.read_text().lower()
    ]
    assert [name for name in naming if not name.startswith(allowed)] == []
