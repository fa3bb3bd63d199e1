"""The paper's experiment: what is planned, what is reused, and how a small one ends."""

import json
from dataclasses import replace
from typing import get_args

import pytest

from epcx import presets, reproduce, trainer
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError
from epcx.execution.local import LocalExecutor
from epcx.runs.run import RunFolder
from tests.factories import RecordingCallback, make_run

SCRATCH = TrainConfig("food-collection", "maddpg", population=("1",))


def create(folder, config):
    """A run that has just begun."""
    RunFolder.create(folder, config.to_json(), {}).unlock()


def test_plan_gives_all_methods_the_same_number_of_episodes(tmp_path):
    plan = reproduce.plan(tmp_path, "grassland", "paper")
    configs = {task.name: task.config for task in plan}
    assert len(configs) == 2 * 3 + 3 * 4  # three seeds, which share a run if they are from scratch
    assert {task.trials for task in plan if not task.config.grows} == {3}
    assert configs["epc-seed0"].sets == 2
    assert configs["vanilla-pc-seed0"].sets == 1
    stages = ("3-2", "6-4", "12-8", "24-16")
    assert configs["epc-seed0"].population == stages
    for method in ("att-maddpg", "mean-field", "maddpg"):
        episodes = [configs[f"{method}-{stage}-seed0"].episodes for stage in stages]
        assert episodes == [100_000, 150_000, 200_000, 250_000]


def test_plan_with_other_stages_has_their_budgets(tmp_path):
    methods, stages = ("epc", "maddpg"), ("4", "8")
    plan = reproduce.plan(tmp_path, "food-collection", "paper", methods, stages, 1)
    scratch = [task.config for task in plan[1:]]
    assert [task.name for task in plan] == ["epc-seed0", "maddpg-4-seed0", "maddpg-8-seed0"]
    assert [config.episodes for config in scratch] == [50_000, 70_000]
    assert [config.snapshots for config in scratch] == [0, 20]


def test_plan_shares_a_run_between_seeds_from_scratch_and_adds_seeds_later(tmp_path):
    methods, population = ("epc", "maddpg"), ("1", "2")
    plan = reproduce.plan(tmp_path, "food-collection", "smoke", methods, population, 3)
    assert [(task.name, task.trials) for task in plan] == [
        ("epc-seed0", 1),
        ("epc-seed1", 1),
        ("epc-seed2", 1),
        ("maddpg-1-seed0", 3),
        ("maddpg-2-seed0", 3),
    ]
    create(tmp_path / "maddpg-1-seed0", plan[3].config)
    more = reproduce.plan(tmp_path, "food-collection", "smoke", methods, population, 5)
    assert [(task.name, task.trials) for task in more][5:] == [
        ("maddpg-1-seed0", 3),
        ("maddpg-1-seed3", 2),
        ("maddpg-2-seed0", 5),
    ]


def test_plan_refuses_a_run_with_other_settings(tmp_path):
    experiment = ("food-collection", "smoke", ("epc",), ("1", "2"))
    (task,) = reproduce.plan(tmp_path, *experiment)
    create(tmp_path / task.name, replace(task.config, episodes=41))
    with pytest.raises(InputError, match=r"other settings \(episodes 41, not 40\)"):
        reproduce.plan(tmp_path, *experiment)


def test_train_all_keeps_finished_runs_and_resumes_interrupted_ones(tmp_path, monkeypatch):
    done, begun, new = (tmp_path / name for name in ("done", "begun", "new"))
    make_run(done, "food-collection", "maddpg", ("1",))
    make_run(begun, "food-collection", "maddpg", ("1",)).write("result.json", {"ended": "failed"})
    called = []

    def note(what, path):
        called.append((what, path))
        return RunFolder.open(done)

    monkeypatch.setattr(trainer, "resume", lambda path, *_, **__: note("resume", path))
    monkeypatch.setattr(trainer, "train", lambda _, path, *__, **___: note("train", path))
    tasks = [reproduce.Task(name, SCRATCH) for name in ("done", "begun", "new")]
    callback = RecordingCallback()
    runs, failures = reproduce.train_all(tmp_path, tasks, LocalExecutor(), callback)
    assert not failures
    assert called == [("resume", begun), ("train", new)]
    assert runs[0].path == done
    assert callback.messages[-1] == f"run 3 of 3: maddpg at 1, in {new}"


def test_train_all_goes_on_after_a_run_that_fails(tmp_path, monkeypatch):
    def train(config, path, *_, **__):
        if path.name == "bad":
            raise RunError("all 1 matches at 1 have diverged")
        return make_run(path, "food-collection", "maddpg", ("1",))

    monkeypatch.setattr(trainer, "train", train)
    tasks = [reproduce.Task(name, SCRATCH) for name in ("bad", "good")]
    callback = RecordingCallback()
    runs, failures = reproduce.train_all(tmp_path, tasks, LocalExecutor(), callback)
    assert [run.path.name for run in runs] == ["good"]
    assert failures == ["bad: all 1 matches at 1 have diverged"]
    assert "bad failed: all 1 matches at 1 have diverged" in callback.messages


def test_dry_run_prints_the_plan_and_writes_nothing(capsys, tmp_path):
    out = tmp_path / "x"
    options = ["--dry-run", "--preset", "paper", "--budget", "total", "--out", str(out)]
    main(["reproduce", "food-collection", *options])
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading == "settings of all methods: preset paper"
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["epc-seed2"] == ["3", "6", "12", "24", "1", "110,000", "510,000"]
    assert cells["att-maddpg-24-seed0"] == ["24", "3", "110,000", "110,000"]  # three trainings
    assert cells["maddpg-24-total-seed1"] == ["24", "1", "110,000", "550,000"]
    assert any(
        "epc trains in all its matches 3.0 at 3, 3.9 at 6, 4.3 at 12, 4.6 at 24" in row
        for row in rows
    )
    main(["reproduce", "food-collection", "--dry-run", "--json", "--out", str(out)])
    assert json.loads(capsys.readouterr().out)["maddpg-24-seed0"]["episodes"] == 110_000
    assert not out.exists()


def test_preset_with_another_learner_compares_methods_that_go_with_any(capsys, tmp_path):
    options = ["--dry-run", "--json", "--preset", "best", "--seeds", "1"]
    main(["reproduce", "food-collection", *options, "--out", str(tmp_path / "x")])
    runs = [name for name in json.loads(capsys.readouterr().out) if name.endswith("-seed0")]
    assert runs == [
        "epc-seed0",
        "vanilla-pc-seed0",
        *(f"scratch-{population}-seed0" for population in (3, 6, 12, 24)),
    ]


def test_bad_experiments_are_refused(error_of):
    assert "unknown game 'chess'" in error_of("reproduce", "chess")
    assert "seeds 0 is too small" in error_of("reproduce", "grassland", "--seeds", "0")
    assert "unknown method 'ppo'" in error_of("reproduce", "grassland", "--methods", "ppo")
    assert "episodes 0 is too small" in error_of("reproduce", "grassland", "--episodes", "0")
    shrinking = ("--population", "3-2", "2-2", "--dry-run")
    assert "2-2 after 3-2 does not grow" in error_of("reproduce", "grassland", *shrinking)


def test_folder_for_the_report_is_checked_before_the_training(error_of, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "train", lambda *_: pytest.fail("trained"))
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.tex").write_text("")
    message = error_of("reproduce", "food-collection", "--preset", "smoke", "--out", tmp_path)
    assert "has other files than a report" in message
    (tmp_path / "file").write_text("")
    message = error_of("reproduce", "grassland", "--out", tmp_path / "file")
    assert "file/report cannot be made: not a directory" in message


def test_reproduce_writes_a_report_and_repeats_nothing_the_second_time(
    tmp_path, capsys, monkeypatch
):
    command = ["reproduce", "food-collection", "--preset", "smoke", "--methods", "mean-field"]
    command += ["--population", "1", "--out", str(tmp_path / "all"), "--seeds", "2"]
    main(command)
    shown = capsys.readouterr().out
    assert "mean-field on food-collection" in shown
    report = tmp_path / "all" / "report"
    page = (report / "index.html").read_text()
    assert "Up to 2 independent training runs" in page
    results = json.loads((report / "results.json").read_text())
    assert {row["method"] for row in results} == {"mean-field", "scripted", "random"}
    games = (report / "games.jsonl").read_bytes()
    for name in ("train", "resume"):
        monkeypatch.setattr(trainer, name, lambda *_, **__: pytest.fail("trained again"))
    main(command)
    assert (report / "games.jsonl").read_bytes() == games


def test_every_preset_has_evaluation_episodes_and_snapshots():
    assert set(get_args(presets.Preset)) == set(reproduce.EPISODES) == set(reproduce.SNAPSHOTS)
