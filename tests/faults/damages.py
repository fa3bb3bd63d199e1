"""What can happen to a file or a folder of a run: cut off, changed, replaced, rewritten."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from epcx.runs.checkpoint import SEGMENTS
from epcx.runs.run import AGENTS, DIGESTS
from tests.faults.odd_values import FOLDER_NAMES, IN_JSON

JSON = (".json", ".jsonl")
Damage = Callable[[random.Random, Path], str]


def damage_file(rng: random.Random, path: Path) -> str:
    """Damages a file in a random way; what was done, in words."""
    ways = [*BYTES, *REPLACED]
    if path.suffix in JSON and path.stat().st_size:
        ways += [rewrite_json] * 2 * len(ways)
    elif AGENTS in path.parts:
        ways += [rewrite_weights] * (len(ways) // 2)
    return rng.choice(ways)(rng, path)


def damage_folder(rng: random.Random, path: Path) -> str:
    return rng.choice(FOLDERS)(rng, path)


def files_of(run: Path, only_json: bool = False) -> list[Path]:
    """In the same order for equal runs: those that have random names by their age."""

    def order(path: Path) -> tuple[Path, str | int]:
        by_age = path.parent.name == SEGMENTS
        return path.parent, path.stat().st_mtime_ns if by_age else path.name

    files = [path for path in run.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted((path for path in files if not only_json or path.suffix in JSON), key=order)


# Bytes


def truncate(rng: random.Random, path: Path) -> str:
    size = rng.randrange(max(1, path.stat().st_size))
    os.truncate(path, size)
    return f"cut off after {size} bytes"


def flip_bit(rng: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes() or b"\0")
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} changed"


def overwrite(rng: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    at, noise = rng.randrange(len(content) + 1), rng.randbytes(rng.choice((1, 8, 1000)))
    content[at : at + len(noise)] = noise
    path.write_bytes(content)
    return f"{len(noise)} random bytes from byte {at}"


def fill_with_noise(rng: random.Random, path: Path) -> str:
    path.write_bytes(rng.randbytes(rng.randrange(2000)))
    return "random bytes"


def append(rng: random.Random, path: Path) -> str:
    with open(path, "ab") as file:
        file.write(rng.choice((b"\0", b"\n", b"{", b"}", b"[]", b"null\n", rng.randbytes(50))))
    return "bytes appended"


def empty(rng: random.Random, path: Path) -> str:
    path.write_bytes(b"")
    return "emptied"


BYTES: list[Damage] = [truncate, flip_bit, overwrite, fill_with_noise, append, empty]

# Something else in its place


def delete(rng: random.Random, path: Path) -> str:
    path.unlink()
    return "deleted"


def swap(rng: random.Random, path: Path) -> str:
    """With another file of the run, mostly one of the same kind."""
    others = [other for other in files_of(root_of(path)) if other != path] or [path]
    alike = [other for other in others if other.suffix == path.suffix and rng.random() < 0.8]
    other = rng.choice(alike or others)
    content = path.read_bytes()
    shutil.copyfile(other, path) if other != path else None
    other.write_bytes(content)
    return f"swapped with {other.relative_to(root_of(path))}"


def pipe(rng: random.Random, path: Path) -> str:
    path.unlink()
    os.mkfifo(path)
    return "a pipe"


def folder(rng: random.Random, path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def link(rng: random.Random, path: Path) -> str:
    path.unlink()
    target = rng.choice(("/dev/zero", "nowhere", path.name, "/dev/null", "/proc/self/mem", "."))
    path.symlink_to(target)
    return f"a link to {target}"


def oversize(rng: random.Random, path: Path) -> str:
    os.truncate(path, 2**40)
    return "a terabyte of zeros"


REPLACED: list[Damage] = [delete, swap, swap, pipe, folder, link, link, oversize]

# What is still JSON, or weights


def rewrite_json(rng: random.Random, path: Path) -> str:
    """One value anywhere in it is replaced, removed, doubled or renamed."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    content = {"": json.loads(lines[number])}
    holder, key = rng.choice(list(places(content)))
    done = change(rng, holder, key)
    lines[number] = json.dumps(content[""]) if "" in content else ""
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"{key!r} in line {number + 1} {done}" if path.suffix == ".jsonl" else f"{key!r} {done}"


def change(rng: random.Random, holder: Any, key: Any) -> str:
    way = rng.choice(("replaced",) * 6 + ("removed", "doubled", "renamed"))
    if way == "removed":
        del holder[key]
    elif way == "doubled" and isinstance(holder, list):
        holder.append(holder[key])
    elif way == "renamed" and isinstance(holder, dict) and key:
        holder[rng.choice(("x", "", "\x1b[2J", f"{key} "))] = holder.pop(key)
    else:
        holder[key] = value = rng.choice(IN_JSON)
        return f"is {ascii(value)[:40]}"
    return way


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in it, as what holds it and its key or number there."""
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places(content[key])


def rewrite_weights(rng: random.Random, path: Path) -> str:
    """Other arrays, in a run of an earlier version: such runs have no checksums."""
    (root_of(path) / DIGESTS).unlink()
    arrays = load_file(path)
    with safe_open(path, "np") as found:
        metadata = found.metadata()
    name = rng.choice(sorted(arrays))
    way = rng.choice(sorted(ARRAYS))
    arrays |= {name: ARRAYS[way](arrays[name])}
    if way == "removed":
        del arrays[name]
    if rng.random() < 0.2:
        metadata[rng.choice(sorted(metadata))] = "x\x1b[2J"
    save_file(arrays, path, metadata)
    return f"{name} {way}, no checksums"


ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "removed": lambda x: x,
    "a number": lambda x: np.array(1, x.dtype),
    "without agents": lambda x: x[:0],
    "with an agent more": lambda x: np.concatenate([x, x[:1]]),
    "transposed": lambda x: np.ascontiguousarray(x.T),
    "of another type": lambda x: x.astype(np.int64),
    "of complex numbers": lambda x: x.astype(np.complex64),
    "not a number": lambda x: x * np.float32(np.nan),
    "infinite": lambda x: x + np.float32(np.inf),
    "huge": lambda x: x * np.float32(1e30),
    "with many axes": lambda x: x.reshape(*x.shape, *[1] * (60 - x.ndim)),
}

# Folders


def remove(rng: random.Random, path: Path) -> str:
    shutil.rmtree(path)
    return "removed"


def file(rng: random.Random, path: Path) -> str:
    shutil.rmtree(path)
    path.write_text("")
    return "a file"


def rename(rng: random.Random, path: Path) -> str:
    new = elsewhere(rng, path)
    if new.exists():
        shutil.rmtree(new)
    path.rename(new)
    return f"now called {new.name!a}"


def copy(rng: random.Random, path: Path) -> str:
    new = elsewhere(rng, path)
    shutil.copytree(path, new, dirs_exist_ok=True)
    return f"also as {new.name!a}"


def link_up(rng: random.Random, path: Path) -> str:
    target = rng.choice(("..", ".", "../..", "nowhere"))
    free = [name for name in FOLDER_NAMES if not (path / name).exists()]
    (path / rng.choice(free)).symlink_to(target)
    return f"with a link to {target}"


def elsewhere(rng: random.Random, path: Path) -> Path:
    return path.parent / rng.choice([name for name in FOLDER_NAMES if name != path.name])


FOLDERS: list[Damage] = [remove, file, rename, rename, copy, copy, link_up]


def root_of(path: Path) -> Path:
    """The folder of the run that a file is in, or the folder of another file."""
    above = [folder for folder in path.parents if (folder / "config.json").exists()]
    return above[0] if above else path.parent
