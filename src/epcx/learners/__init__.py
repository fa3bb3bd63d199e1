"""How a match learns: the methods that train one, without evolution around them."""

from epcx.agents.agent import ARCHITECTURES
from epcx.errors import InputError
from epcx.games import Game
from epcx.learners.hyperparameters import Hyperparameters
from epcx.learners.learner import Learner
from epcx.learners.maddpg import MADDPG

METHODS = {"att-maddpg": "attention", "maddpg": "mlp", "mean-field": "mean-field"}

__all__ = ["MADDPG", "METHODS", "Hyperparameters", "Learner", "make"]


def make(method: str, game: Game, hyper: Hyperparameters | None = None) -> MADDPG:
    """The learner behind a method."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}: the methods are {', '.join(METHODS)}")
    return MADDPG(game, ARCHITECTURES[METHODS[method]], hyper or Hyperparameters())
