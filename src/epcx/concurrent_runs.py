"""Runs that train at the same time, each in a process of its own with its share of the devices.

One run often leaves room on a machine: a single match of MAPPO trains on one core, a small team on
a fraction of a GPU.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epcx.callbacks import Callback
from epcx.config import TrainConfig
from epcx.execution.devices import MEMORY_LIMIT, free_memory, local_devices
from epcx.interrupts import Interrupts
from epcx.runs.files import read_text
from epcx.runs.run import METRICS, RunFolder
from epcx.startup import PARENT

MAX_AT_ONCE = 64
POLL_SECONDS = 0.5
GPU_MEMORY_SHARE = 0.9  # of a GPU, for all processes on it
GPU_MEMORY = "XLA_CLIENT_MEM_FRACTION"
OLD_GPU_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # XLA refuses both at once
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def leave_memory() -> None:
    """Keeps this process from taking most of a GPU's memory; before JAX is first used."""
    os.environ.setdefault(PREALLOCATE, "false")


@dataclass(frozen=True)
class Machine:
    """Its devices, which processes share."""

    platform: str
    devices: int
    memory: int  # free bytes of all devices together

    @staticmethod
    def find(devices: int | None) -> "Machine":
        """The first `devices` devices, or all."""
        found = local_devices(devices)
        return Machine(found[0].platform, len(found), free_memory(found) * len(found))

    def share(self, slot: int, slots: int) -> tuple[list[str], dict[str, str]]:
        """Options and environment of the process in one of so many slots.

        Every process has devices of its own, or a part of one if there are more processes.
        """
        number = self.devices
        if slots > number:
            mine = [slot % number]
        else:
            mine = list(range(slot * number // slots, (slot + 1) * number // slots))
        if self.platform == "cpu":
            return ["--devices", str(len(mine))], {MEMORY_LIMIT: str(self.memory // slots)}
        visible = os.environ.get(VISIBLE_GPUS) or ",".join(map(str, range(number)))
        gpus = visible.split(",")
        environment = {VISIBLE_GPUS: ",".join(gpus[i] for i in mine)}
        on_it = len(range(mine[0], slots, number))
        if on_it > 1 and not {GPU_MEMORY, OLD_GPU_MEMORY} & os.environ.keys():
            environment[GPU_MEMORY] = f"{GPU_MEMORY_SHARE / on_it:.3f}"
        return [], environment


@dataclass
class Training:
    """A run that is being trained by a process."""

    path: Path
    config: TrainConfig
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> Path:
        return log_of(self.path)

    def why_it_ended(self) -> str | None:
        """Why it has failed; None if the run is finished."""
        code = self.process.returncode
        if code == 0 and RunFolder.is_finished(self.path):
            return None
        if code < 0:
            return f"it was killed by signal {-code} ({self.log} has its output)"
        return last_line(self.log.read_text(errors="replace")).removeprefix("epcx: ")


def train(
    wanted: Sequence[tuple[Path, TrainConfig]],
    at_once: int,
    devices: int | None,
    callback: Callback,
) -> dict[Path, str]:
    """Trains the missing runs, and resumes interrupted ones: so many at a time.

    Gives why runs have failed. An interrupt is passed on to all processes: they write checkpoints.
    """
    waiting = deque(run for run in wanted if not RunFolder.is_finished(run[0]))
    slots = min(at_once, len(waiting))
    failures: dict[Path, str] = {}
    if not waiting:
        return failures
    machine = Machine.find(devices)
    home = waiting[0][0].parent
    home.mkdir(parents=True, exist_ok=True)
    running: dict[int, Training] = {}
    played = {path: episodes(path, config) for path, config in wanted}
    shown = 0  # of all these episodes
    callback.on_stage(f"{len(wanted)} runs, {slots} at once", sum(length(c) for _, c in wanted))
    with (
        Interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix=".settings-", dir=home) as folder,
    ):
        try:
            while (waiting or running) and interrupts.noted is None:
                for slot in set(range(slots)) - set(running):
                    if waiting and interrupts.noted is None:
                        path, config = waiting.popleft()
                        callback.on_message(f"{config.method} at {stages(config)}, in {path}")
                        share = machine.share(slot, slots)
                        with interrupts.only_noted():
                            running[slot] = start(path, config, Path(folder), *share)
                time.sleep(POLL_SECONDS)
                if interrupts.asked:
                    interrupts.asked = False
                    for training in running.values():
                        training.process.send_signal(signal.SIGUSR1)
                for slot, training in list(running.items()):
                    if training.process.poll() is not None:
                        del running[slot]
                        if why := training.why_it_ended():
                            failures[training.path] = why
                            callback.on_message(f"{training.path.name} failed: {why}")
                    played[training.path] = episodes(training.path, training.config)
                if (total := sum(played.values())) > shown:
                    shown = total
                    callback.on_progress(shown, {})
        finally:
            stop(running.values(), interrupts.noted or signal.SIGINT)
        interrupts.check()
    return failures


def start(
    path: Path, config: TrainConfig, folder: Path, options: list[str], environment: dict[str, str]
) -> Training:
    """Its output goes to a file beside the run. `folder` is for what it has to read."""
    with open(log_of(path), "ab") as log, ignored(signal.SIGUSR1):
        process = subprocess.Popen(
            [*command(path, config, folder), *options],
            env={**os.environ, PARENT: str(os.getpid()), **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only, which passes it on
        )
    return Training(path, config, process)


@contextlib.contextmanager
def ignored(number: int) -> Iterator[None]:
    """Processes that are started within ignore a signal until they handle it themselves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def command(path: Path, config: TrainConfig, folder: Path) -> list[str]:
    """The one that trains a new run, or goes on with one that was interrupted."""
    epcx = [sys.executable, "-m", "epcx"]
    if RunFolder.exists(path):
        return [*epcx, "resume", str(path)]
    settings = folder / f"{path.name}.json"
    settings.write_text(json.dumps(config.to_json()))
    return [*epcx, "train", "--config", str(settings), "--out", str(path)]


def stop(trainings: Collection[Training], number: int) -> None:
    """Waits until all have written their checkpoints; another interrupt ends them at once."""
    for attempt in (number, signal.SIGKILL):
        for training in trainings:
            with contextlib.suppress(ProcessLookupError):
                training.process.send_signal(attempt)
        with contextlib.suppress(KeyboardInterrupt):
            for training in trainings:
                training.process.wait()
            return


def length(config: TrainConfig) -> int:
    """Episodes along a lineage."""
    return config.accumulated(config.populations[-1])[0]


def episodes(path: Path, config: TrainConfig) -> int:
    """Those that a run has played, by its last line of metrics."""
    if RunFolder.is_finished(path):
        return length(config)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return int(json.loads(last_line(read_text(path / METRICS)))["episodes"])
    return 0  # it has not begun, or is writing this line


def stages(config: TrainConfig) -> str:
    return " ".join(config.populations)


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason was given"
