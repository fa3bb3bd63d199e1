"""The paper's experiment: what is planned, what is reused, and how a small one ends."""

import json
from dataclasses import replace

import pytest

from epcx import presets, reproduce, trainer
from epcx.cli import main
from epcx.errors import InputError, RunError
from epcx.interrupts import Interrupts
from epcx.runs.run import Run
from epcx.training import Training
from tests.made import made_run
from tests.test_cli import fails
from tests.test_trainer import Said


def test_all_methods_have_as_many_episodes(tmp_path):
    tasks = {task.name: task.training for task in reproduce.plan(tmp_path, "grassland", "paper")}
    assert len(tasks) == 2 + 3 * 4
    assert tasks["epc-seed0"].sets == 2
    assert tasks["vanilla-pc-seed0"].sets == 1
    stages = ("3-2", "6-4", "12-8", "24-16")
    assert tasks["epc-seed0"].population == stages
    for method in ("att-maddpg", "mean-field", "maddpg"):
        episodes = [tasks[f"{method}-{stage}-seed0"].episodes for stage in stages]
        assert episodes == [100_000, 150_000, 200_000, 250_000]


def test_stages_of_your_own_have_budgets_of_their_own(tmp_path):
    asked = (tmp_path, "food-collection", "paper", ("epc", "maddpg"), ("4", "8"))
    tasks = {task.name: task.training for task in reproduce.plan(*asked)}
    assert [tasks[f"maddpg-{stage}-seed0"].episodes for stage in ("4", "8")] == [50_000, 70_000]
    assert [tasks[f"maddpg-{stage}-seed0"].snapshots for stage in ("4", "8")] == [0, 20]


def test_seeds_share_a_run_from_scratch_and_can_be_added(tmp_path):
    methods, population = ("epc", "maddpg"), ("1", "2")
    tasks = reproduce.plan(tmp_path, "food-collection", "smoke", methods, population, 3)
    assert [(task.name, task.trials) for task in tasks] == [
        ("epc-seed0", 1),
        ("epc-seed1", 1),
        ("epc-seed2", 1),
        ("maddpg-1-seed0", 3),
        ("maddpg-2-seed0", 3),
    ]
    Run.create(tmp_path / "maddpg-1-seed0", tasks[3].training.config()).release()
    more = reproduce.plan(tmp_path, "food-collection", "smoke", methods, population, 5)
    assert [(task.name, task.trials) for task in more][5:] == [
        ("maddpg-1-seed0", 3),
        ("maddpg-1-seed3", 2),
        ("maddpg-2-seed0", 5),
    ]


def test_a_run_with_other_settings_is_not_taken(tmp_path):
    asked = ("food-collection", "smoke", ("epc",), ("1", "2"))
    (task,) = reproduce.plan(tmp_path, *asked)
    other = replace(task.training, episodes=41)
    Run.create(tmp_path / task.name, other.config()).release()
    with pytest.raises(InputError, match=r"other settings \(episodes 41, not 40\)"):
        reproduce.plan(tmp_path, *asked)


def test_what_is_finished_stays_and_what_was_interrupted_goes_on(tmp_path, monkeypatch):
    done, begun, new = (tmp_path / name for name in ("done", "begun", "new"))
    made_run(done, "food-collection", "maddpg", ("1",))
    made_run(begun, "food-collection", "maddpg", ("1",)).write("result.json", {"ended": "failed"})
    called = []

    def note(what, path):
        called.append((what, path))
        return Run.open(done)

    monkeypatch.setattr(trainer, "resume", lambda path, *_, **__: note("resume", path))
    monkeypatch.setattr(trainer, "train", lambda _, path, *__, **___: note("train", path))
    training = Training("food-collection", "maddpg", ("1",))
    tasks = [reproduce.Task(name, training) for name in ("done", "begun", "new")]
    said = Said()
    runs, failures = reproduce.train_all(tmp_path, tasks, said, Interrupts())
    assert not failures
    assert called == [("resume", begun), ("train", new)]
    assert runs[0].path == done
    assert said.lines[-1] == f"run 3 of 3: maddpg at 1, in {new}"


def test_a_run_that_fails_does_not_keep_others_from_training(tmp_path, monkeypatch):
    def train(training, path, *_, **__):
        if path.name == "bad":
            raise RunError("all 1 matches at 1 have diverged")
        return made_run(path, "food-collection", "maddpg", ("1",))

    monkeypatch.setattr(trainer, "train", train)
    training = Training("food-collection", "maddpg", ("1",))
    tasks = [reproduce.Task(name, training) for name in ("bad", "good")]
    said = Said()
    runs, failures = reproduce.train_all(tmp_path, tasks, said, Interrupts())
    assert [run.path.name for run in runs] == ["good"]
    assert failures == ["bad: all 1 matches at 1 have diverged"]
    assert "bad failed: all 1 matches at 1 have diverged" in said.lines


def test_the_plan_can_be_seen_first(capsys, tmp_path):
    out = tmp_path / "x"
    main(["reproduce", "food-collection", "--dry-run", "--seeds", "3", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "att-maddpg-24-seed0" in shown
    assert "330,000" in shown  # three times 110,000 episodes
    main(["reproduce", "food-collection", "--dry-run", "--json", "--out", str(out)])
    assert json.loads(capsys.readouterr().out)["maddpg-24-seed0"]["episodes"] == 110_000
    assert not out.exists()


def test_bad_experiments_are_named(capsys):
    assert "unknown game 'chess'" in fails(capsys, "reproduce", "chess")
    assert "seeds 0 is not" in fails(capsys, "reproduce", "grassland", "--seeds", "0")
    assert "unknown method 'ppo'" in fails(capsys, "reproduce", "grassland", "--methods", "ppo")
    assert "episodes 0 is not" in fails(capsys, "reproduce", "grassland", "--episodes", "0")


def test_a_small_experiment_ends_in_a_report(tmp_path, capsys):
    """The second time nothing is trained or played again."""
    asked = ["reproduce", "food-collection", "--preset", "smoke", "--methods", "mean-field"]
    asked += ["--population", "1", "--out", str(tmp_path / "all"), "--seeds", "2"]
    main(asked)
    shown = capsys.readouterr().out
    assert "mean-field on food-collection" in shown
    report = tmp_path / "all" / "report"
    page = (report / "index.html").read_text()
    assert "Up to 2 independent trainings" in page
    results = json.loads((report / "results.json").read_text())
    assert {row["method"] for row in results} == {"mean-field", "scripted", "random"}
    games = (report / "games.jsonl").read_bytes()
    main(asked)
    assert (report / "games.jsonl").read_bytes() == games


def test_presets_know_their_evaluation():
    assert set(presets.Preset.__args__) == set(reproduce.EPISODES) == set(reproduce.SNAPSHOTS)
