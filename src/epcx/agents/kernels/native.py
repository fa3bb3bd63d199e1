"""Programs in C++, compiled for the CPU of this machine when they are first needed.

Compiled libraries are kept in the user's cache, by source, compiler and kind of CPU. Without a
compiler everything works as well, only slower. `CXX` names the compiler, and `EPCX_NATIVE=0` does
without.
"""

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import jax

from epcx.runs.files import cache_folder

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-w")
FOR_THIS_CPU = ("-march=native", "-mcpu=native")  # compilers know one of them or both

Command = tuple[str, ...]


def compiler() -> Command | None:
    """The one that is wanted, or the first that there is."""
    if os.environ.get("EPCX_NATIVE") == "0":
        return None
    if chosen := os.environ.get("CXX"):
        return tuple(shlex.split(chosen))
    return next(((name,) for name in COMPILERS if shutil.which(name)), None)


def load(source: Path, constants: Mapping[str, object]) -> ctypes.CDLL | None:
    """The library of a source file in which these constants are defined.

    None without a compiler. If it fails, that is no error, but something to be told.
    """
    found = compiler()
    if found is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(found, source, constants)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        why = next((line for line in lines if "error" in line), lines[0] if lines else "no reason")
        warnings.warn(
            f"networks are slower on this CPU, because {shlex.join(found)} could not compile "
            f"{source.name}: {why} (EPCX_NATIVE=0 does without it)",
            stacklevel=2,
        )
        return None


def _compiled(found: Command, source: Path, constants: Mapping[str, object]) -> Path:
    """The path of the library."""
    defined = [f"-D{name}={value}" for name, value in constants.items()]
    command = *found, *FLAGS, *_tuned(found), *defined, f"-I{jax.ffi.include_dir()}"
    digest = hashlib.sha256(source.read_bytes())
    digest.update(_known(command).encode())
    digest.update(repr((command, version("jaxlib"))).encode())
    folder = cache_folder("native")
    library = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            _run(*command, "-o", str(made), str(source))
            os.replace(made, library)  # whole or not at all, whoever else makes it now
    return library


@functools.cache
def _tuned(found: Command) -> Command:
    for flag in FOR_THIS_CPU:
        try:
            _known((*found, flag))
            return (flag,)
        except subprocess.SubprocessError:
            continue
    return ()


@functools.cache
def _known(command: Command) -> str:
    """What a compiler defines by itself: its version, and what the CPU can do."""
    return _run(*command, "-E", "-dM", "-x", "c++", os.devnull)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
