"""epcx in a process of its own that answers many command lines, since starting takes seconds."""

import faulthandler
import json
import os
import resource
import select
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.processes import environment

SECONDS = 60  # for one command line
MEMORY = 12 * 2**30  # bytes, which is far more than small inputs need
REPOSITORY = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Answer:
    """How a command line ended: its exit code or, if it had none, what went wrong."""

    code: int | None
    crash: str
    stdout: str
    stderr: str


class CommandServer:
    """Runs command lines one after the other; one that kills the process costs a new process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "CommandServer":
        self.process = self._start()  # while others get ready, too
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run(self, arguments: list[str], place: Path) -> Answer:
        """One command line, in the folder `place`."""
        if self.process is None:
            self.process = self._start()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([str(place), arguments]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        reply = self.process.stdout.readline() if ready else ""
        code, crash = json.loads(reply) if reply else (None, f"no end within {SECONDS} s")
        if ready and not reply:
            crash = f"the process ended with {self.process.wait()}"
        if not reply:
            self.stop()
        shown = [(self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
        return Answer(code, crash, *shown)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.command_server", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**environment(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        )


def serve(folder: Path) -> None:
    """Answers the command lines on the standard input; what they print goes to two files."""
    from epcx import estimate  # takes seconds
    from epcx.cli import main

    def no_estimate(learner: object) -> None:
        """Estimates take seconds, and have tests of their own."""
        raise estimate.UnknownCostError("it is not tested here")

    estimate.update_cost = no_estimate  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "w")
    modules = list(sys.path)
    for line in sys.stdin:
        place, arguments = json.loads(line)
        code, crash = 0, ""
        os.chdir(place)
        sys.path[:] = modules
        streams = redirect(folder)
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code, crash = None, traceback.format_exc()
        for stream in streams:
            stream.flush()
        replies.write(json.dumps([code, crash]) + "\n")
        replies.flush()


def redirect(folder: Path) -> tuple[TextIO, TextIO]:
    """New streams into empty files, also for what is not written by Python."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    return sys.stdout, sys.stderr


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
