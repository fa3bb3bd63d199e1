"""Weights as integers of 8 or 4 bits, for teams that many people download."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int8, UInt8, UInt16

from epcx.errors import InputError

SCALE = ".scale"  # behind the name of weights that are stored as integers
BASE = ".base"  # behind that of weights that are stored as differences: from what
FAMILY = ".family"  # and which of the bases is that of each agent
MIN_PACKED = 16  # weights of a row that are stored with 4 bits
MIN_RELATIVES = 4  # agents of a family, on average, with which bases pay
RELATED = 0.3  # how far relatives are apart at most, as a share of the length of all their weights

Arrays = dict[str, np.ndarray]


def quantised(arrays: Arrays, bits: Literal[8, 4]) -> Arrays:
    """Float32 as integers of some bits for each row of weights, and its scale.

    Two integers of 4 bits are a byte. Biases and short rows always have 8 bits: they are few, and
    rounding them to 4 would cost more than rounding all others does. The agents that a curriculum
    makes of the same one remain alike; where a team consists of such families, weights of 4 bits
    are differences from the family's mean, which has 8.
    """
    weights = {name: x for name, x in arrays.items() if x.dtype == np.float32 and x.size}
    packed = {name: x for name, x in weights.items() if bits == 4 and takes_four_bits(x.shape)}
    family = families(packed.values())
    stored = dict(arrays)
    for name, x in weights.items():
        if name not in packed:
            stored[name], stored[name + SCALE] = integers(x, 127)
            continue
        if family is not None:
            means = np.stack([x[family == i].mean(0) for i in range(family.max() + 1)])
            base, scale = integers(means, 127)
            stored |= {name + BASE: base, name + BASE + SCALE: scale, name + FAMILY: family}
            x = x - floats(base, scale)[family]
        fours, stored[name + SCALE] = integers(x, 7)
        stored[name] = packed_pairs(fours)
    return stored


def dequantised(path: Path, stored: Arrays) -> Arrays:
    """The inverse of `quantised`, up to rounding; other arrays as they are.

    Weights may be called `scale` themselves, as those of a normalisation are.
    """
    arrays = dict(stored)
    small = [n for n, x in stored.items() if x.dtype in (np.int8, np.uint8) and n + SCALE in stored]
    for name in small:
        x, scale = stored[name], arrays.pop(name + SCALE)
        if scale.shape != (*x.shape[:-1], 1):
            raise InputError(f"{path} is damaged: the scale of {name} does not fit it")
        arrays[name] = floats(unpacked_pairs(x) if x.dtype == np.uint8 else x, scale)
    for name in small:
        if name + FAMILY not in arrays or name not in arrays:
            continue
        x, family, base = arrays[name], arrays.pop(name + FAMILY), arrays.pop(name + BASE, None)
        if (
            base is None
            or base.ndim != x.ndim
            or base.shape[1:] != x.shape[1:]
            or family.dtype != np.uint16
            or family.shape != x.shape[:1]
            or not (family < len(base)).all()
        ):
            raise InputError(f"{path} is damaged: the families of {name} do not fit it")
        arrays[name] = x + base[family]
    return arrays


def takes_four_bits(shape: tuple[int, ...]) -> bool:
    """Whether these are weights of a layer with many inputs, stacked over the agents."""
    return len(shape) > 2 and shape[-1] >= MIN_PACKED and shape[-1] % 2 == 0


def families(
    weights: Iterable[Float[np.ndarray, "agents ..."]],
) -> UInt16[np.ndarray, "agents"] | None:
    """The number of each agent's family; None if they are too small."""
    flat = [x.reshape(len(x), -1) for x in weights]
    if not flat:
        return None
    agents = np.concatenate(flat, 1)
    first: list[int] = []  # of each family
    family = np.zeros(len(agents), np.uint16)
    for i, agent in enumerate(agents):
        apart = np.square(agents[np.array(first, int)] - agent).sum(1)
        if first and apart.min() < RELATED**2 * np.square(agent).sum():
            family[i] = apart.argmin()
            continue
        family[i] = len(first)
        first.append(i)
        if len(agents) < MIN_RELATIVES * len(first):
            return None
    return family


def integers(
    x: Float[np.ndarray, "*rows columns"], largest: int
) -> tuple[Int8[np.ndarray, "*rows columns"], Float[np.ndarray, "*rows 1"]]:
    """The nearest multiples of a scale for each row, of which the largest fits exactly."""
    scale = (np.abs(x).max(-1, keepdims=True) / largest).astype(np.float16)
    levels = np.round(x / np.where(scale > 0, scale.astype(np.float32), 1))
    return np.clip(levels, -largest, largest).astype(np.int8), scale


def floats(
    x: Int8[np.ndarray, "*rows columns"], scale: Float[np.ndarray, "*rows 1"]
) -> Float[np.ndarray, "*rows columns"]:
    return x * scale.astype(np.float32)


def packed_pairs(x: Int8[np.ndarray, "*rows columns"]) -> UInt8[np.ndarray, "*rows half"]:
    """Integers from -7 to 7 in pairs: the first of each in the lower half of a byte."""
    low, high = (x[..., i::2].astype(np.uint8) & 15 for i in range(2))
    return low | high << 4


def unpacked_pairs(x: UInt8[np.ndarray, "*rows half"]) -> Int8[np.ndarray, "*rows columns"]:
    """The inverse of `packed_pairs`."""
    halves = np.stack([x << 4, x & 0xF0], -1).view(np.int8) >> 4  # with their signs
    return halves.reshape(*x.shape[:-1], -1)
