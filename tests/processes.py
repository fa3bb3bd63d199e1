"""epcx in processes of its own."""

import os
import subprocess
import sys

from epcx.runs.run import Run


def command(*arguments):
    return [sys.executable, "-m", "epcx", *map(str, arguments)]


def environment():
    """On the cores that there are, not on virtual ones."""
    return {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}


def epcx(*arguments, **variables):
    """The command in a process of its own."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env={**environment(), **variables},
        check=False,
    )


def same_results(run, other):
    """The same weights and lineage, and every line of the log once; matches may take turns."""
    assert Run.open(run).digests() == Run.open(other).digests()
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in Run.open(path).metrics()]
        for path in (run, other)
    ]
    lines = [sorted((r["stage"], r["match"], r["updates"]) for r in mine) for mine in rows]
    assert lines[0] == lines[1]
