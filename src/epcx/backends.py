"""Which kernels programs may have on this machine; games and networks ask when they are traced."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

MIN_COMPUTE_CAPABILITY = 8.0  # has bfloat16
_traced: ContextVar[set[str] | None] = ContextVar("traced", default=None)


def runs_pallas() -> bool:
    """Whether JAX's default device is a GPU that runs Pallas kernels: NVIDIA's from Ampere on."""
    if jax.default_backend() != "gpu":
        return False
    try:
        return float(jax.local_devices()[0].compute_capability) >= MIN_COMPUTE_CAPABILITY
    except (AttributeError, ValueError):  # another vendor's
        return False


def prefers_loops() -> bool:
    """Whether a program is for a CPU: it has few cores, and caches that fill up. Not if the program
    is traced within `plain_only`, which may be for any machine.
    """
    return jax.default_backend() == "cpu" and plain_names() is None


@contextlib.contextmanager
def plain_only() -> Iterator[set[str]]:
    """Programs that are traced within are plain JAX: they run on any machine without epcx, and
    their operations can be counted.

    Collects the names of the implementations that they would have had.
    """
    names: set[str] = set()
    token = _traced.set(names)
    try:
        yield names
    finally:
        _traced.reset(token)


def plain_names() -> set[str] | None:
    """Within `plain_only`, what it collects; None elsewhere."""
    return _traced.get()
