"""How a match learns: MARL algorithms behind one contract, without evolution around them."""

from typing import Any

from epcx.games import Game
from epcx.learners import learner
from epcx.learners.learner import Learner, RingLearner, ScheduledLearner, ShardedLearner
from epcx.learners.maddpg import MADDPG, MATD3
from epcx.learners.maddpg_config import MADDPGConfig, MATD3Config
from epcx.learners.mappo import IPPO, MAPPO
from epcx.learners.mappo_config import MAPPOConfig
from epcx.registry import Registry, reference

REGISTRY = Registry("learner", Learner, "epcx.learners", learner.check)
find, names, register = REGISTRY.find, REGISTRY.names, REGISTRY.register
for built_in in (MADDPG, MATD3, MAPPO, IPPO):
    register(built_in)

__all__ = [
    "IPPO",
    "MADDPG",
    "MAPPO",
    "MATD3",
    "Learner",
    "MADDPGConfig",
    "MAPPOConfig",
    "MATD3Config",
    "RingLearner",
    "ScheduledLearner",
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
