"""How a match learns: MARL algorithms behind one contract, without evolution around them."""

from typing import Any

from epcx.games import Game
from epcx.learners import learner
from epcx.learners.learner import Learner, RingLearner, ShardedLearner
from epcx.learners.maddpg import MADDPG
from epcx.learners.maddpg_config import MADDPGConfig
from epcx.registry import Registry, reference

REGISTRY = Registry("learner", Learner, "epcx.learners", learner.check)
find, names, register = REGISTRY.find, REGISTRY.names, REGISTRY.register
register(MADDPG)

__all__ = [
    "MADDPG",
    "Learner",
    "MADDPGConfig",
    "RingLearner",
    "ShardedLearner",
    "find",
    "full_name",
    "make",
    "names",
    "register",
]


def make(name: str | type[Learner], game: Game, config: Any = None) -> Learner:
    """The learner `name` (or "package.module:Class", or a class) for a game."""
    cls: Any = find(name)
    return cls(game, cls.Config() if config is None else config)


def full_name(cls: type[Learner]) -> str:
    """What configs call a learner: its name if it comes with epcx, else module:Class."""
    return cls.name if cls.__module__.startswith("epcx.learners.") else reference(cls)
