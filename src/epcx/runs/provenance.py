"""Where and with what something was computed."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import jax

from epcx import __version__


def describe() -> dict[str, object]:
    """Device, cores, versions, date, and the commit if this is a checkout."""
    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processor": processor(),
        "cores": cores(),
        "epcx": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }


def cores() -> int:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def commit() -> str | None:
    """The checked-out commit, with `+` if files were changed since."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    ).stdout.strip()
