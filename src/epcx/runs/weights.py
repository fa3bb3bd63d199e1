"""Weights as safetensors: one file per agent set, with what it belongs to in its metadata."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from epcx.errors import InputError
from epcx.runs.files import MAX_WEIGHTS, check_file
from epcx.runs.quantisation import dequantised

FORMAT = "epcx agent set 1"


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
