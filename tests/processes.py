"""epcx in processes of its own."""

import os
import subprocess
import sys

from epcx.runs.run import RunFolder


def command(*arguments):
    return [sys.executable, "-m", "epcx", *map(str, arguments)]


def environment():
    """On the cores that there are, not on virtual ones."""
    return {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}


def run_epcx(*arguments, stdout=subprocess.PIPE, **variables):
    """Runs the command in a process of its own, with more environment variables."""
    return subprocess.run(
        command(*arguments),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **variables},
        check=False,
    )


def assert_same_results(run, other):
    """The same weights and lineage, and every line of the log once, in any order of matches."""
    assert RunFolder.open(run).digests() == RunFolder.open(other).digests()
    lines = [
        sorted((row["stage"], row["match"], row["updates"]) for row in RunFolder.open(x).metrics())
        for x in (run, other)
    ]
    assert lines[0] == lines[1]
