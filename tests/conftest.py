"""Shapes in signatures are checked while testing, and there are eight virtual CPU devices."""

import os
import signal
from pathlib import Path

from tests import environment  # noqa: F401 - before anything imports JAX

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import pytest
from jaxtyping import install_import_hook

install_import_hook("epcx", "beartype.beartype")

# Shells start background jobs with Ctrl-C ignored, which commands of tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take longest start first: so no worker waits for another at the end.
LONGEST = (
    "test_docs.py",
    "execution/test_ray.py",
    "test_open_learner.py",
    "test_campaign.py",
    "test_curriculum_run.py",
    "test_trainer.py",
    "execution/test_match_trainer.py",
    "learners/test_maddpg.py",
    "networks/test_gpu_kernels.py",
    "networks/test_cpu_kernels.py",
    "test_init_from.py",
    "test_library.py",
    "test_teams.py",
    "reports/test_report.py",
    "test_grid_battle.py",
    "test_reproduce.py",
)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture
def error_of(capsys):
    """Runs a command line that must end with exit code 2, and returns its message."""
    from epcx.cli import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        assert stopped.value.code == 2
        message = capsys.readouterr().err.strip()
        assert message.startswith("epcx: ")
        assert "\n" not in message
        return message

    return run
