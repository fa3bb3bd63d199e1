"""Runs that train at the same time, each in a process of its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from epcx import concurrent_runs, reproduce
from epcx.cli import main
from epcx.concurrent_runs import GPU_MEMORY, OLD_GPU_MEMORY, VISIBLE_GPUS, Machine, train
from epcx.config import TrainConfig
from epcx.execution.devices import MEMORY_LIMIT
from epcx.execution.local import LocalExecutor
from epcx.runs.run import RunFolder
from tests.factories import RecordingCallback, make_run
from tests.processes import assert_same_results

CONFIG = TrainConfig("food-collection", "maddpg", population=("1",))
# Stands for `epcx train`: notes when it begins and ends, and which signal it got.
CHILD = """
import os, signal, sys, time
from pathlib import Path
path, seconds, code = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
def stop(number, frame):
    path.with_suffix(".signal").write_text(str(number))
    print("epcx: interrupted")
    sys.exit(130)
def asked(number, frame):
    path.with_suffix(".asked").write_text("")
signal.signal(signal.SIGUSR1, asked)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
path.with_suffix(".begun").write_text(str(os.getpid()))
begin = time.monotonic()
end = begin + seconds
while (left := end - time.monotonic()) > 0:
    time.sleep(left)
path.with_suffix(".times").write_text(f"{begin} {time.monotonic()}")
print("compiling")
print("epcx: the disk is full" if code else "done")
sys.exit(code)
"""


@pytest.fixture
def children(monkeypatch):
    """Has processes sleep instead of training: the `seconds` and exit code of each by its name."""
    behaviours = {}

    def command(path, config, folder):
        seconds, code = behaviours.get(path.name, (0.1, 0))
        return [sys.executable, "-c", CHILD, str(path), str(seconds), str(code)]

    monkeypatch.setattr(concurrent_runs, "command", command)
    monkeypatch.setattr(concurrent_runs, "POLL_SECONDS", 0.02)
    return behaviours


def paths(folder, *names):
    return [(folder / name, CONFIG) for name in names]


def test_as_many_runs_train_at_a_time_as_are_asked_for(tmp_path, children):
    names = "abcd"
    children.update(dict.fromkeys(names, (1.0, 0)))
    train(paths(tmp_path, *names), 2, None, RecordingCallback())
    times = []
    for name in names:
        first, last = (tmp_path / f"{name}.times").read_text().split()
        times.append((float(first), float(last)))
    for begin, _ in times:
        assert sum(first <= begin < last for first, last in times) <= 2
    assert sorted(times)[1][0] < min(last for _, last in times)  # the second began beside the first


def test_finished_runs_are_not_trained_again(tmp_path, children):
    make_run(tmp_path / "done", "food-collection", "maddpg", ("1",))
    callback = RecordingCallback()
    failures = train(paths(tmp_path, "done"), 2, None, callback)
    assert failures == {}
    assert callback.messages == []


def test_run_that_fails_is_reported_with_its_last_sentence_and_others_go_on(tmp_path, children):
    children["bad"] = (0.0, 1)
    callback = RecordingCallback()
    failures = train(paths(tmp_path, "bad", "good"), 1, None, callback)
    assert failures[tmp_path / "bad"] == "the disk is full"
    assert (tmp_path / "good.times").exists()
    assert "bad failed: the disk is full" in callback.messages


def test_run_that_is_killed_is_reported_with_the_signal(tmp_path, children):
    children["long"] = (60, 0)
    threading.Thread(target=kill_when_begun, args=(tmp_path / "long.begun",)).start()
    failures = train(paths(tmp_path, "long"), 1, None, RecordingCallback())
    assert failures[tmp_path / "long"].startswith("it was killed by signal 9 (")


def kill_when_begun(path):
    wait_for(path)
    os.kill(int(path.read_text()), signal.SIGKILL)


def wait_for(path):
    while not (path.exists() and path.read_text()):
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_passed_on_and_no_other_run_begins(tmp_path, children, number):
    children.update(a=(60, 0), b=(60, 0))
    begun = tmp_path / "a.begun", tmp_path / "b.begun"

    def interrupt():
        for path in begun:
            wait_for(path)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        train(paths(tmp_path, "a", "b", "c"), 2, None, RecordingCallback())
    for name in "ab":
        assert (tmp_path / f"{name}.signal").read_text() == str(int(number))
    assert not (tmp_path / "c.begun").exists()


def test_request_for_a_checkpoint_is_passed_on(tmp_path, children):
    children["a"] = (60, 0)

    def ask():
        wait_for(tmp_path / "a.begun")
        os.kill(os.getpid(), signal.SIGUSR1)
        while not (tmp_path / "a.asked").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    with pytest.raises(KeyboardInterrupt):
        train(paths(tmp_path, "a"), 1, None, RecordingCallback())
    assert (tmp_path / "a.asked").exists()


def test_two_interrupts_while_processes_start_leave_none_behind(tmp_path, children, monkeypatch):
    children.update(dict.fromkeys("abcd", (60, 0)))
    starting, started = concurrent_runs.start, []

    def start(*arguments):
        started.append(starting(*arguments))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(concurrent_runs, "start", start)
    with pytest.raises(KeyboardInterrupt):
        train(paths(tmp_path, *"abcd"), 4, None, RecordingCallback())
    assert len(started) == 1
    assert started[0].process.poll() is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells processes")
def test_process_ends_when_the_one_that_started_it_is_killed(tmp_path):
    """Without the chance to pass anything on."""
    child = (
        "import os, sys, time; from epcx import startup; startup.handle_signals(); "
        "print(os.getpid(), startup.PARENT in os.environ, flush=True); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys; from epcx.startup import PARENT; "
        f"subprocess.run([sys.executable, '-c', {child!r}], "
        "env={**os.environ, PARENT: str(os.getpid())})"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pid, inherited = process.stdout.readline().split()
    assert inherited == "False"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and state_of(pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_cores_are_divided_among_processes():
    shares = [Machine("cpu", 8, 3000).share(slot, 3) for slot in range(3)]
    assert [options for options, _ in shares] == [["--devices", n] for n in "233"]
    assert [environment for _, environment in shares] == [{MEMORY_LIMIT: "1000"}] * 3
    assert Machine("cpu", 2, 1000).share(3, 4) == (["--devices", "1"], {MEMORY_LIMIT: "250"})


def test_free_memory_is_at_most_the_share_of_the_process(monkeypatch, error_of, tmp_path):
    monkeypatch.setenv(MEMORY_LIMIT, "1000000")
    message = error_of("train", "grassland", "--preset", "quick", "--out", tmp_path / "run")
    assert "kB are free" in message
    monkeypatch.setenv(MEMORY_LIMIT, "much")
    message = error_of("train", "grassland", "--preset", "quick", "--out", tmp_path / "run")
    assert "EPCX_MEMORY_LIMIT 'much' is not a whole number of bytes" in message


def test_processes_get_gpus_of_their_own_or_a_share_of_the_memory_of_one(monkeypatch):
    for name in (VISIBLE_GPUS, GPU_MEMORY, OLD_GPU_MEMORY):
        monkeypatch.delenv(name, raising=False)
    four = Machine("gpu", 4, 0)
    assert [four.share(slot, 2)[1] for slot in range(2)] == [
        {VISIBLE_GPUS: "0,1"},
        {VISIBLE_GPUS: "2,3"},
    ]
    assert [four.share(slot, 3)[1][VISIBLE_GPUS] for slot in range(3)] == ["0", "1", "2,3"]
    assert [four.share(slot, 5)[1] for slot in range(5)] == [
        {VISIBLE_GPUS: "0", GPU_MEMORY: "0.450"},
        {VISIBLE_GPUS: "1"},
        {VISIBLE_GPUS: "2"},
        {VISIBLE_GPUS: "3"},
        {VISIBLE_GPUS: "0", GPU_MEMORY: "0.450"},
    ]
    assert Machine("gpu", 1, 0).share(3, 4) == ([], {VISIBLE_GPUS: "0", GPU_MEMORY: "0.225"})
    monkeypatch.setenv(VISIBLE_GPUS, "5,7")
    assert Machine("gpu", 2, 0).share(1, 2)[1] == {VISIBLE_GPUS: "7"}
    for name in (GPU_MEMORY, OLD_GPU_MEMORY):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0.1")
            assert Machine("gpu", 2, 0).share(1, 4)[1] == {VISIBLE_GPUS: "7"}


def test_runs_at_once_are_the_same_as_one_after_the_other(tmp_path):
    """One of them is resumed from its beginning."""
    tasks = reproduce.plan(tmp_path, "food-collection", "smoke", ["mean-field"], ("1", "2"))
    names = [task.name for task in tasks]
    begun = RunFolder.create(tmp_path / "at-once" / names[0], tasks[0].config.to_json(), {})
    begun.unlock()
    alone, executor = tmp_path / "alone", LocalExecutor()
    reproduce.train_all(alone, tasks, executor, RecordingCallback())
    callback = RecordingCallback()
    runs, failures = reproduce.train_at_once(tmp_path / "at-once", tasks, 2, None, callback)
    assert failures == []
    assert [run.path.name for run in runs] == names
    for name in names:
        assert_same_results(alone / name, tmp_path / "at-once" / name)
    assert callback.totals == [sum(task.config.episodes for task in tasks)]
    assert callback.episodes[-1] == callback.totals[0]


def test_reproduce_trains_at_once_and_names_the_runs_that_failed(tmp_path, monkeypatch, capsys):
    def fake(wanted, number, devices, callback):
        assert (number, devices) == (3, 1)
        return dict.fromkeys((path for path, _ in wanted), "no luck")

    monkeypatch.setattr(concurrent_runs, "train", fake)
    options = ["--preset", "smoke", "--methods", "mean-field", "--population", "1"]
    out = ["--out", str(tmp_path), "--at-once", "3", "--devices", "1"]
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "food-collection", *options, *out])
    assert stopped.value.code == 1
    assert "1 of 1 runs failed: mean-field-1-seed0: no luck" in capsys.readouterr().err


def test_bad_numbers_of_runs_at_once_are_refused(error_of):
    command = ("reproduce", "grassland", "--at-once")
    assert "at-once 0 is too small: a whole number from 1 to 64 is needed" in error_of(*command, 0)
    message = error_of(*command, 2, "--engine", "ray")
    assert "at-once 2 does not go with engine ray" in message
    message = error_of(*command, 2, "--gpus-per-task", 1)
    assert "gpus-per-task 1 does not go with engine local" in message
