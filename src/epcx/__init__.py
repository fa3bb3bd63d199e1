"""epcx grows large teams of agents by Evolutionary Population Curriculum."""

import importlib
from typing import TYPE_CHECKING, Any

from epcx.errors import InputError, RunError

if TYPE_CHECKING:
    from epcx import games, learners
    from epcx.callbacks import Callback, NullCallback
    from epcx.config import TrainConfig
    from epcx.execution.execution_options import ExecutionOptions
    from epcx.library import (
        Run,
        configure,
        crossplay,
        evaluate,
        load,
        replay,
        report,
        resume,
        train,
    )

__version__ = "0.2.0"
# Loaded when they are first used, as they bring JAX.
_MODULES = {
    "epcx.callbacks": ("Callback", "NullCallback"),
    "epcx.config": ("TrainConfig",),
    "epcx.execution.execution_options": ("ExecutionOptions",),
    "epcx.library": (
        "Run",
        "configure",
        "crossplay",
        "evaluate",
        "load",
        "replay",
        "report",
        "resume",
        "train",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Callback",
    "ExecutionOptions",
    "InputError",
    "NullCallback",
    "Run",
    "RunError",
    "TrainConfig",
    "__version__",
    "configure",
    "crossplay",
    "evaluate",
    "games",
    "learners",
    "load",
    "replay",
    "report",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in ("games", "learners"):
        return importlib.import_module(f"epcx.{name}")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'epcx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
