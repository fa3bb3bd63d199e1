"""epcx grows large teams of agents by Evolutionary Population Curriculum."""

import importlib
from typing import TYPE_CHECKING, Any

from epcx.errors import InputError

if TYPE_CHECKING:
    from epcx import games
    from epcx.trained import load

__version__ = "0.1.0"
__all__ = ["InputError", "__version__", "games", "load"]


def __getattr__(name: str) -> Any:
    """`games` and `load` bring JAX, and are loaded when they are first used."""
    if name == "games":
        return importlib.import_module("epcx.games")
    if name == "load":
        return importlib.import_module("epcx.trained").load
    raise AttributeError(f"module 'epcx' has no attribute {name!r}")
