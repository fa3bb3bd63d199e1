"""The hyperparameters of MAPPO and IPPO."""

from dataclasses import dataclass, replace
from typing import Literal

from epcx.errors import InputError
from epcx.learners.hyperparameters import LARGEST, SMALLEST, Precision, check, check_neighbours

Network = Literal["attention", "relational", "equivariant", "mlp"]
BOUNDS = {
    "learning_rate": (SMALLEST, 1.0),
    "gamma": (SMALLEST, 1.0),
    "gae_lambda": (SMALLEST, 1.0),  # or 0
    "clip": (SMALLEST, LARGEST),
    "entropy": (SMALLEST, LARGEST),  # or 0
    "scripted_opponents": (SMALLEST, 1.0),  # or 0
    "max_grad_norm": (SMALLEST, LARGEST),
}
COUNTS = ("num_envs", "epochs", "minibatches")
MAY_BE_ZERO = ("gae_lambda", "entropy", "scripted_opponents")


@dataclass(frozen=True)
class MAPPOConfig:
    """Options of proximal policy optimisation (PPO)."""

    network: Network = "attention"
    """attention (population-invariant, as the paper's), relational (all that an agent sees attends
    to each other), equivariant (relational, in a frame of the agent's own, so that mirrored and
    turned worlds are the same) or mlp (of flat observations)."""

    neighbours: int | None = None
    """See only the nearest living entities of each type, and let critics attend only to the nearest
    living agents of each group: this many. By default everybody; not for flat networks."""

    learning_rate: float = 0.002
    """Of Adam, for policies and critics; from 1e-12 to 1."""

    anneal: bool = True
    """Lower the learning rate linearly to zero over each stage."""

    difference_rewards: bool = False
    """Learn from the rewards that a team would lose without the agent, instead of its own; for
    games that define them."""

    scripted_opponents: float = 0.0
    """Share of the worlds in which one role, each in turn, is played by the scripted players of the
    game, and only the others learn: 0, or from 1e-12 to 1. In games of one role nothing changes."""

    gamma: float = 0.95
    """Discount factor, from 1e-12 to 1."""

    gae_lambda: float = 0.95
    """Of generalised advantage estimation: 0, or from 1e-12 to 1."""

    clip: float = 0.2
    """How far the ratio of new to old probabilities may move from 1; from 1e-12 to 1e6."""

    entropy: float = 0.01
    """Weight of the entropy bonus: 0, or from 1e-12 to 1e6."""

    max_grad_norm: float = 0.5
    """Gradients of a network are clipped to this norm, from 1e-12 to 1e6."""

    num_envs: int = 64
    """Worlds played in parallel; every update plays an episode in each."""

    epochs: int = 4
    """Passes over the samples of an update."""

    minibatches: int = 4
    """Steps of the optimiser in each pass."""

    precision: Precision = "bf16"
    """Of matrix products on a GPU, in the attention networks: float32, tf32 or bf16."""

    def __post_init__(self) -> None:
        choices = {"network": Network, "precision": Precision}
        check(self, COUNTS, BOUNDS, MAY_BE_ZERO, choices)
        check_neighbours(self)

    def updates(self, episodes: int) -> int:
        if episodes < self.num_envs:
            raise InputError(
                f"episodes {episodes} end before the first update: use at least {self.num_envs}, "
                "or a smaller num-envs"
            )
        return episodes // self.num_envs


BEST = MAPPOConfig(
    network="equivariant",
    neighbours=10,
    learning_rate=0.0007,
    difference_rewards=True,
    scripted_opponents=0.25,
    gae_lambda=0.8,
    num_envs=64,
)
PRESETS = {
    "best": BEST,
    "large": replace(BEST, neighbours=8),
    "quick": MAPPOConfig(num_envs=16),
    "smoke": MAPPOConfig(num_envs=4, epochs=2, minibatches=2),
}
