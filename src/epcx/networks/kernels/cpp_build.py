"""Compiles C++ for the CPU of this machine when it is first needed.

Compiled libraries are kept in the user's cache, keyed by source, compiler and kind of CPU, each
with its checksum; a folder that others may write to is not used. Without a compiler networks are
slower, and otherwise the same. `CXX` names the compiler, and `EPCX_CPU_KERNELS=0` turns the kernels
off.
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

from epcx.cache import UnsafeFolderError, private_folder
from epcx.errors import Notice

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-w")
FOR_THIS_CPU = ("-march=native", "-mcpu=native")  # compilers know one of them or both
TIMEOUT = 300  # seconds, for a compiler

Command = tuple[str, ...]


def compiler() -> Command | None:
    """The compiler that $CXX names, or the first that is installed."""
    if os.environ.get("EPCX_CPU_KERNELS") == "0":
        return None
    if chosen := os.environ.get("CXX"):
        try:
            return tuple(shlex.split(chosen))
        except ValueError:  # an unbalanced quote
            return (chosen,)
    return next(((name,) for name in COMPILERS if shutil.which(name)), None)


def version() -> str | None:
    """Name and version of the compiler, such as `c++ 12.2.0`; None if there is none that runs."""
    command = compiler()
    if command is None:
        return None
    try:
        macros = _predefined_macros(command)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'define __VERSION__ "(.*)"', macros)
    return f"{shlex.join(command)} {found[1] if found else '?'}"


def load(source: Path, constants: Mapping[str, object]) -> ctypes.CDLL | None:
    """The library compiled from a source file with these macros defined.

    None without a compiler; None and a warning if it fails.
    """
    command = compiler()
    if command is None:
        return None
    try:
        return _library(command, source, constants)
    except (OSError, subprocess.SubprocessError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        lines = output.strip().splitlines()
        why = next((line for line in lines if "error" in line), lines[0] if lines else "no reason")
        warnings.warn(
            f"networks are slower on this CPU: {shlex.join(command)} could not compile "
            f"{source.name}, or the library could not be loaded: {why} "
            "(EPCX_CPU_KERNELS=0 turns the kernels off)",
            Notice,
            stacklevel=2,
        )
        return None


def _library(compiler: Command, source: Path, constants: Mapping[str, object]) -> ctypes.CDLL:
    macros = [f"-D{name}={value}" for name, value in constants.items()]
    command = *compiler, *FLAGS, *_cpu_flags(compiler), *macros, f"-I{jax.ffi.include_dir()}"
    digest = hashlib.sha256(source.read_bytes())
    digest.update(_predefined_macros(command).encode())
    digest.update(repr((command, jaxlib_version.__version__)).encode())
    name = f"{source.stem}-{digest.hexdigest()[:16]}.so"
    command = *command, str(source)
    try:
        return _cached(private_folder("cpu-kernels") / name, command)
    except UnsafeFolderError as error:
        warnings.warn(
            f"{error}: the CPU kernels are compiled in every process, until it is removed or "
            "$XDG_CACHE_HOME names another folder",
            Notice,
            stacklevel=3,
        )
    except (OSError, RuntimeError):  # no home folder, or one that cannot be written or loaded from
        pass
    with tempfile.TemporaryDirectory() as folder:
        return _cached(Path(folder) / name, command)  # survives its deletion


def _cached(library: Path, command: Command) -> ctypes.CDLL:
    """The library, compiled now if it is missing or damaged."""
    if _intact(library):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(library))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        compiled, checksum = Path(scratch) / "library", Path(scratch) / "checksum"
        _run(*command, "-o", str(compiled))
        checksum.write_text(_checksum(compiled))
        # Each is atomic, also if other processes compile it now; in between it counts as damaged.
        os.replace(compiled, library)
        os.replace(checksum, _checksum_file(library))
    return ctypes.CDLL(str(library))


def _intact(library: Path) -> bool:
    """Loading a truncated library would kill the process."""
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except (OSError, ValueError):
        return False


def _checksum_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


@functools.cache
def _cpu_flags(compiler: Command) -> Command:
    for flag in FOR_THIS_CPU:
        try:
            _predefined_macros((*compiler, flag))
            return (flag,)
        except subprocess.SubprocessError:
            continue
    return ()


@functools.cache
def _predefined_macros(command: Command) -> str:
    """They tell the compiler's version, and what the CPU can do."""
    return _run(*command, "-E", "-dM", "-x", "c++", os.devnull)


def _run(*command: str) -> str:
    return subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        check=True,
        timeout=TIMEOUT,
    ).stdout
