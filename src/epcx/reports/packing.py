"""Arrays as short text, base64 of bits or of 16-bit numbers, which the script of a page unpacks."""

import base64
from typing import Any

import numpy as np

LEVELS = 65535


def pack_flags(array: np.ndarray) -> str:
    return encode(np.packbits(array != 0, bitorder="little"))


def pack_numbers(array: np.ndarray) -> dict[str, Any]:
    """Multiples of `step`, from `low` on: in a world of side 2 the step is 0.00003."""
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    step = (high - low) / LEVELS or 1.0
    levels = ((array - low) / step).round().astype("<u2")
    return {"low": low, "step": step, "levels": encode(levels)}


def encode(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
