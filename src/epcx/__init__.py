"""epcx grows large teams of agents by Evolutionary Population Curriculum."""

import importlib
from typing import TYPE_CHECKING, Any

from epcx.errors import InputError

if TYPE_CHECKING:
    from epcx import games

__version__ = "0.1.0"
__all__ = ["InputError", "__version__", "games"]


def __getattr__(name: str) -> Any:
    """`epcx.games` brings JAX, and is loaded when it is first used."""
    if name == "games":
        return importlib.import_module("epcx.games")
    raise AttributeError(f"module 'epcx' has no attribute {name!r}")
