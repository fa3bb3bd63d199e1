"""Signals while the command starts: one sentence and an exit code, whatever is being imported."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import command, environment

RUN = Path(__file__).parent.parent / "results" / "food-collection" / "epc"
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 1.8, 2.3, 3.0)


def start(*arguments):
    """The process, once it handles signals; before, Python itself is starting."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    while process.poll() is None and not handles(process.pid, signal.SIGTERM):
        time.sleep(0.001)
    return process


def handles(pid, number):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return int(caught, 16) >> (number - 1) & 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_signal_during_start_ends_with_one_sentence(tmp_path, name, number, code, sentence):
    for delay in DELAYS[:: 1 if number == signal.SIGINT else 4]:
        # Small buffers, for the memory that other programs leave.
        run = ("food-collection", "--preset", "paper", "--buffer-size", "50000", "--out")
        run = (*run, tmp_path / str(delay))
        process = start(name, *(run if name == "train" else (RUN, "--episodes", "100000")))
        time.sleep(delay)
        process.send_signal(number)
        shown = process.communicate(timeout=60)[1]
        last = shown.splitlines()[-1]
        assert (process.returncode, last) == (code, f"epcx: {sentence}"), (delay, shown)
        assert "Traceback" not in shown
        if not (tmp_path / str(delay)).exists():  # not yet in training
            assert shown == f"epcx: {sentence}\n"


def test_command_line_within_a_process_leaves_its_signal_handlers_alone():
    code = (
        "import signal, sys; from epcx.cli import main; "
        "before = [signal.getsignal(s) for s in (2, 15)], sys.unraisablehook; main(['--version']); "
        "print(before == ([signal.getsignal(s) for s in (2, 15)], sys.unraisablehook))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "body",
    [
        "class Late:\n    def __del__(self): signal.raise_signal(signal.SIGINT)\nlate = Late()\n"
        "with startup.interruptible():\n    del late",  # where Python ignores exceptions
        "with startup.interruptible():\n    import interrupting",
        "signal.raise_signal(signal.SIGINT)",
    ],
)
def test_interrupt_is_not_lost_where_exceptions_are(tmp_path, body):
    (tmp_path / "interrupting.py").write_text(
        "import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept BaseException: pass\n"
    )
    code = f"import signal\nfrom epcx import startup\nstartup.handle_signals()\n{body}\nprint(1)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "epcx: interrupted\n")


def test_ignored_interrupt_stays_ignored():
    code = "import signal; signal.signal(2, signal.SIG_IGN); from epcx import startup; "
    code += "startup.handle_signals(); signal.raise_signal(2); print('on')"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("on\n", "")
