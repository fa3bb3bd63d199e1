"""The devices of this machine, their free memory, and the cache of compiled programs."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax

from epcx.cache import private_folder
from epcx.errors import InputError, whole_number
from epcx.runs.provenance import cores

CONFIG: Any = jax.config
MEMORY_LIMIT = "EPCX_MEMORY_LIMIT"  # bytes that this process may take of the machine's memory


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def use_all_cores() -> None:
    """Makes every CPU core a device of its own; only before JAX is first used.

    One core per shard of a match is faster than all cores inside every small operation.
    """
    if CONFIG.jax_num_cpu_devices < 1 and "host_platform_device_count" not in os.environ.get(
        "XLA_FLAGS", ""
    ):
        with contextlib.suppress(RuntimeError):  # JAX has been initialised already
            CONFIG.update("jax_num_cpu_devices", cores())


def local_devices(number: int | None = None) -> list[jax.Device]:
    """The first `number` devices of this machine, or all of them."""
    found = jax.local_devices()
    if number is None:
        return found
    return found[: whole_number("devices", number, 1, len(found))]


def enable_compilation_cache() -> None:
    """Turns on JAX's persistent compilation cache, unless the user has chosen a folder.

    Without one where there is no home folder, or others could put programs into it.
    """
    if CONFIG.jax_compilation_cache_dir is None:
        with contextlib.suppress(RuntimeError, OSError):
            CONFIG.update("jax_compilation_cache_dir", str(private_folder("jax")))


def free_memory(devices: Sequence[jax.Device]) -> int:
    """Bytes that are free on each of the devices; the cores of a machine share its memory."""
    if devices[0].platform != "cpu":
        stats = [device.memory_stats() or {} for device in devices]
        free = [s["bytes_limit"] - s.get("bytes_in_use", 0) for s in stats if "bytes_limit" in s]
        return min(free, default=2**63)
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
                return min(available, memory_limit()) // len(devices)
    return 2**63


def memory_limit() -> int:
    """That of processes that share the machine."""
    text = os.environ.get(MEMORY_LIMIT, str(2**63))
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{MEMORY_LIMIT} {text!r} is not a whole number of bytes")
    return int(text)


def format_bytes(number: int) -> str:
    """Such as 1.2 GB."""
    size, unit = float(number), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"
