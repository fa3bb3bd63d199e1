"""Programs in C++, compiled for the CPU of this machine when they are first needed.

Compiled libraries are kept in the user's cache, by source, compiler and kind of CPU. Without a
compiler everything works as well, only slower. `CXX` names the compiler, and `EPCX_NATIVE=0` does
without.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import jax
from jaxlib import version as jaxlib_version

from epcx.errors import Notice
from epcx.runs.files import cache_folder

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-w")
FOR_THIS_CPU = ("-march=native", "-mcpu=native")  # compilers know one of them or both
PATIENCE = 300  # seconds, for a compiler

Command = tuple[str, ...]


def compiler() -> Command | None:
    """The one that is wanted, or the first that there is."""
    if os.environ.get("EPCX_NATIVE") == "0":
        return None
    if chosen := os.environ.get("CXX"):
        try:
            return tuple(shlex.split(chosen))
        except ValueError:  # a quote without its other half
            return (chosen,)
    return next(((name,) for name in COMPILERS if shutil.which(name)), None)


def version(found: Command) -> str:
    """Of a compiler that has been used, as it says itself."""
    said = re.search(r'define __VERSION__ "(.*)"', _known(found))
    return f"{shlex.join(found)} {said[1] if said else '?'}"


def load(source: Path, constants: Mapping[str, object]) -> ctypes.CDLL | None:
    """The library of a source file in which these constants are defined.

    None without a compiler. If it fails, that is no error, but something to be told.
    """
    found = compiler()
    if found is None:
        return None
    try:
        return _library(found, source, constants)
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        lines = said.strip().splitlines()
        why = next((line for line in lines if "error" in line), lines[0] if lines else "no reason")
        warnings.warn(
            f"networks are slower on this CPU, because {shlex.join(found)} could not compile "
            f"{source.name}, or what it made could not be used: {why} (EPCX_NATIVE=0 does without)",
            Notice,
            stacklevel=2,
        )
        return None


def _library(found: Command, source: Path, constants: Mapping[str, object]) -> ctypes.CDLL:
    defined = [f"-D{name}={value}" for name, value in constants.items()]
    command = *found, *FLAGS, *_tuned(found), *defined, f"-I{jax.ffi.include_dir()}"
    digest = hashlib.sha256(source.read_bytes())
    digest.update(_known(command).encode())
    digest.update(repr((command, jaxlib_version.__version__)).encode())
    name = f"{source.stem}-{digest.hexdigest()[:16]}.so"
    try:
        return _kept(cache_folder("native") / name, (*command, str(source)))
    except (OSError, RuntimeError):  # nobody's home, or nothing can be written there, or used
        with tempfile.TemporaryDirectory() as folder:
            return _kept(Path(folder) / name, (*command, str(source)))  # lives on when deleted


def _kept(library: Path, command: Command) -> ctypes.CDLL:
    """What was compiled before, or now; again if it was damaged."""
    if library.exists():
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(library))
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        _run(*command, "-o", str(made))
        os.replace(made, library)  # whole or not at all, whoever else makes it now
    return ctypes.CDLL(str(library))


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
    return subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        check=True,
        timeout=PATIENCE,
    ).stdout
