"""Programs for GPUs, written by hand where what XLA makes of the plain code is slow."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

PRECISIONS = ("float32", "tf32", "bf16")
_precision = ContextVar("precision", default="bf16")


def on_gpu() -> bool:
    """Whether programs are for a GPU; otherwise they are laid out for a CPU."""
    return jax.default_backend() == "gpu"


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
