"""What `epcx` can do: one dataclass per command, whose fields are its options."""

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epcx.options import Types, first_sentence, read

# The modules of the commands are imported when a command is used: they bring JAX.
MODULES = {
    "games": "show",
    "train": "train",
    "resume": "train",
    "lineage": "show",
    "evaluate": "compare",
    "crossplay": "compare",
    "report": "compare",
    "reproduce": "compare",
    "replay": "show",
    "digest": "show",
    "publish": "share",
    "teams": "share",
    "export": "share",
    "completion": "completion",
}


def find(name: str) -> type[Any]:
    """The dataclass of a command."""
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    return getattr(module, name.capitalize())


def summaries() -> dict[str, str]:
    """The first sentence about every command, read from the sources of their modules."""
    docs: dict[str, str] = {}
    for module in dict.fromkeys(MODULES.values()):
        source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        for part in ast.parse(source).body:
            if isinstance(part, ast.ClassDef):
                docs[part.name.lower()] = ast.get_docstring(part) or ""
    return {name: first_sentence(docs[name]) for name in MODULES}


def context(command: type[Any], words: Sequence[str]) -> tuple[Types, Any]:
    """What the rest of a command line depends on: the types of nested options, and defaults."""
    types: Types = {}
    default = None
    if hasattr(command, "types"):
        types = command.types(read(command, words, strict=False))
    if hasattr(command, "default"):
        default = command.default(read(command, words, types, strict=False))
    return types, default
