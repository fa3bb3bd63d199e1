"""Programs for GPUs and for CPUs, written by hand where what XLA makes of plain code is slow."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

PRECISIONS = ("float32", "tf32", "bf16")
OLDEST = 8.0  # NVIDIA's compute capability with bfloat16
_precision = ContextVar("precision", default="bf16")


def on_gpu() -> bool:
    """Whether programs are for a GPU that runs the kernels: NVIDIA's, from Ampere (A100) on.

    Otherwise networks are laid out for a CPU.
    """
    if jax.default_backend() != "gpu":
        return False
    try:
        return float(jax.local_devices()[0].compute_capability) >= OLDEST
    except (AttributeError, ValueError):  # of another maker
        return False


def current_precision() -> str:
    return _precision.get()


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Of the products in programs for GPUs that are traced within; sums are float32."""
    token = _precision.set(name)
    try:
        with jax.default_matmul_precision("float32" if name == "float32" else None):
            yield
    finally:
        _precision.reset(token)
