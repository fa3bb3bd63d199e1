"""Weights as safetensors: one file per agent set, with what it belongs to in its metadata."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from epcx.errors import InputError
from epcx.runs.files import MAX_WEIGHTS, check_file

FORMAT = "epcx agent set 1"
SCALE = ".scale"  # behind the name of weights that are stored as integers
MIN_PACKED = 16  # weights of a row that are stored with 4 bits


def save_weights(tree: PyTree, metadata: dict[str, str]) -> bytes:
    """The arrays of a pytree under the names of their places in it, as the content of a file."""
    arrays = {name: np.ascontiguousarray(x) for name, x in named(tree).items()}
    return save(arrays, metadata={"format": FORMAT, **metadata})


def load_weights(
    path: Path,
    like: PyTree,
    metadata: dict[str, str],
    part: Callable[[PyTree], PyTree] = lambda tree: tree,
) -> PyTree:
    """The arrays of a file in the shape of `like`, whose first axis may have any length.

    Or a part of them; the file need not have the others. `metadata` is what it must say of itself.
    Weights that were stored with less precision become float32 again.
    """
    found, arrays = read(path)
    for name, value in metadata.items():
        if found.get(name) != value:
            raise InputError(
                f"{path} holds weights for {name} {found.get(name, 'unknown')!r}, not {value!r}"
            )
    expected = named(like)
    wanted = part(names_of(like))
    names = jax.tree.leaves(wanted)
    fits = expected.keys() >= arrays.keys() >= set(names) and all(
        arrays[name].shape[1:] == expected[name].shape[1:]
        and stored_as(expected[name].dtype, arrays[name].dtype)
        for name in names
    )
    lengths = {x.shape[:1] for x in arrays.values()}
    if not fits or len(lengths) != 1 or lengths <= {(), (0,)}:
        raise InputError(f"{path} holds weights of another architecture or population")
    if not all(np.isfinite(arrays[name]).all() for name in names):
        raise InputError(f"{path} is damaged: it holds weights that are not finite")
    return jax.tree.map(lambda name: arrays[name].astype(expected[name].dtype, copy=False), wanted)


def stored_as(expected: np.dtype, found: np.dtype) -> bool:
    """Whether weights of a type may be in a file as another: float32 also in half precision."""
    return found == expected or (expected == np.float32 and found == np.float16)


def holds_all(path: Path, like: PyTree) -> bool:
    """Whether a file has all arrays of a pytree, by their names."""
    return read(path)[1].keys() >= named(like).keys()


def read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    try:
        check_file(path, MAX_WEIGHTS)
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, AttributeError):
        # The last two: arrays of kinds that NumPy does not have.
        raise InputError(f"{path} cannot be read as weights of epcx") from None
    if metadata.get("format") != FORMAT:
        shown = json.dumps(metadata.get("format"))
        raise InputError(f"{path} has format {shown}, but this version reads '{FORMAT}'")
    return metadata, dequantised(path, stored)


def quantised(arrays: dict[str, np.ndarray], bits: Literal[8, 4]) -> dict[str, np.ndarray]:
    """Float32 as integers of some bits for each row of weights, and its scale.

    Two integers of 4 bits are a byte. Biases and short rows always have 8 bits: they are few, and
    rounding them to 4 would cost more than rounding all others does.
    """
    stored = {}
    for name, x in arrays.items():
        if x.dtype != np.float32 or not x.size:
            stored[name] = x
            continue
        packed = bits == 4 and takes_four_bits(x.shape)
        largest = 7 if packed else 127
        scale = (np.abs(x).max(-1, keepdims=True) / largest).astype(np.float16)
        levels = np.round(x / np.where(scale > 0, scale.astype(np.float32), 1))
        integers = np.clip(levels, -largest, largest).astype(np.int8)
        stored[name] = packed_pairs(integers) if packed else integers
        stored[name + SCALE] = scale
    return stored


def takes_four_bits(shape: tuple[int, ...]) -> bool:
    """Whether these are weights of a layer with many inputs, stacked over the agents."""
    return len(shape) > 2 and shape[-1] >= MIN_PACKED and shape[-1] % 2 == 0


def dequantised(path: Path, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `quantised`, up to rounding; other arrays as they are.

    Weights may be called `scale` themselves, as those of a normalisation are.
    """
    arrays = dict(stored)
    for name, x in stored.items():
        if x.dtype not in (np.int8, np.uint8) or name + SCALE not in stored:
            continue
        scale = arrays.pop(name + SCALE)
        if scale.shape != (*x.shape[:-1], 1):
            raise InputError(f"{path} is damaged: the scale of {name} does not fit it")
        integers = unpacked_pairs(x) if x.dtype == np.uint8 else x
        arrays[name] = integers * scale.astype(np.float32)
    return arrays


def packed_pairs(x: np.ndarray) -> np.ndarray:
    """Integers from -7 to 7 in pairs: the first of each in the lower half of a byte."""
    low, high = (x[..., i::2].astype(np.uint8) & 15 for i in range(2))
    return low | high << 4


def unpacked_pairs(x: np.ndarray) -> np.ndarray:
    """The inverse of `packed_pairs`."""
    halves = np.stack([x << 4, x & 0xF0], -1).view(np.int8) >> 4  # with their signs
    return halves.reshape(*x.shape[:-1], -1)


def digest(path: Path) -> str:
    """A checksum of all arrays and their names. Files with the same ones may differ in order."""
    total = hashlib.sha256()
    for name, x in sorted(read(path)[1].items()):
        total.update(f"{name} {x.dtype} {x.shape} ".encode())
        total.update(np.ascontiguousarray(x).tobytes())
    return total.hexdigest()


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves of a pytree, by names such as policy.encoder.own.layers.0.weight."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(place, simple=True, separator="."): leaf for place, leaf in leaves}


def names_of(tree: PyTree) -> PyTree:
    """A pytree like it, with the names of the leaves in their places."""
    return jax.tree.unflatten(jax.tree.structure(tree), list(named(tree)))


def unnamed(arrays: dict[str, Any], like: PyTree) -> PyTree:
    """The inverse of `named`, for a pytree of the same structure."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named(like)])
