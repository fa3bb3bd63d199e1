"""The hyperparameters of MADDPG."""

from dataclasses import dataclass
from typing import Any, Literal

from epcx.errors import InputError
from epcx.learners.hyperparameters import LARGEST, SMALLEST, Precision, check, check_neighbours

Network = Literal[
    "attention",
    "attention-separate",
    "relational",
    "equivariant",
    "mlp",
    "mean-field",
    "mean-field-local",
]
Clipping = Literal["network", "variable"]
BOUNDS = {
    "learning_rate": (SMALLEST, 1.0),
    "gamma": (SMALLEST, 1.0),
    "tau": (SMALLEST, 1.0),
    "max_grad_norm": (SMALLEST, LARGEST),
    "logit_penalty": (SMALLEST, LARGEST),  # or 0
    "target_noise": (SMALLEST, LARGEST),  # or 0
}
COUNTS = (
    "batch_size",
    "buffer_size",
    "num_envs",
    "steps_per_update",
    "learning_starts",
    "policy_delay",
)
MAY_BE_ZERO = ("logit_penalty", "target_noise")


@dataclass(frozen=True)
class MADDPGConfig:
    """Options of MADDPG; the defaults are the paper's (appendix B) and the MADDPG paper's."""

    network: Network = "attention"
    """attention (population-invariant, figure 1 of the paper), attention-separate (the critic
    attends to teammates and to opponents with weights of their own), relational (population-
    invariant; all that an agent sees attends to each other), equivariant (relational, in a frame of
    the agent's own, so that mirrored and turned worlds are the same), mlp (MADDPG's own),
    mean-field (an MLP critic of all observations and the mean action of the others, as in the
    authors' code) or mean-field-local (of the own observation instead, as in Yang et al. 2018)."""

    neighbours: int | None = None
    """See only the nearest living entities of each type, and let critics attend only to the nearest
    living agents of each group: this many. By default everybody; not for flat networks."""

    learning_rate: float = 0.01
    """Of Adam, for policies and critics; from 1e-12 to 1."""

    anneal: bool = False
    """Lower the learning rate linearly to zero over each stage."""

    difference_rewards: bool = False
    """Learn from the rewards that a team would lose without the agent, instead of its own; for
    games that define them."""

    gamma: float = 0.95
    """Discount factor, from 1e-12 to 1."""

    tau: float = 0.01
    """Rate at which the target networks follow (Polyak averaging), from 1e-12 to 1."""

    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm, from 1e-12 to 1e6."""

    clip_per: Clipping = "network"
    """What the norm is of: all gradients of a network, or each variable's, as in the authors'
    code."""

    logit_penalty: float = 0.001
    """Weight of the mean squared logit in the policy loss: 0, or from 1e-12 to 1e6."""

    batch_size: int = 1024
    """Transitions per update."""

    buffer_size: int = 1_000_000
    """Transitions in the replay buffer."""

    num_envs: int = 25
    """Worlds played in parallel."""

    steps_per_update: int = 4
    """Steps of all worlds between two updates."""

    learning_starts: int = 25_600
    """Transitions collected before the first update."""

    batch_per_agent: bool = False
    """Draw a batch for every agent, as the authors do, instead of one for all of them."""

    twin_critics: bool = False
    """Two critics per agent: targets take the lower value of both, the policy follows the first."""

    policy_delay: int = 1
    """Updates of the critics for each of the policies and all target networks."""

    target_noise: float = 0.0
    """Deviation of the noise on the logits of target policies: 0, or from 1e-12 to 1e6; at most
    2.5 times as much is added."""

    precision: Precision = "bf16"
    """Of matrix products on a GPU, in the attention networks: float32, tf32 or bf16."""

    def __post_init__(self) -> None:
        choices = {"network": Network, "clip_per": Clipping, "precision": Precision}
        check(self, COUNTS, BOUNDS, MAY_BE_ZERO, choices)
        check_neighbours(self)

    @property
    def samples_per_update(self) -> int:
        return self.num_envs * self.steps_per_update

    @property
    def warmup_steps(self) -> int:
        """Steps of all worlds before the first update."""
        return -(-self.learning_starts // self.num_envs)

    def updates(self, episodes: int, horizon: int) -> int:
        """The updates that fit into a number of episodes; the first ones only fill the buffer."""
        if self.batch_size > self.buffer_size:
            raise InputError(
                f"batch-size {self.batch_size} is larger than buffer-size {self.buffer_size}: use "
                "a smaller batch or a larger buffer"
            )
        samples = episodes * horizon - self.warmup_steps * self.num_envs
        if samples < self.samples_per_update:
            needed = -(-(self.warmup_steps * self.num_envs + self.samples_per_update) // horizon)
            raise InputError(
                f"episodes {episodes} end before the first update: use at least {needed}, or a "
                "smaller learning-starts"
            )
        return samples // self.samples_per_update

    def episodes(self, updates: int, horizon: int) -> int:
        """The episodes played after a number of updates, those before the first included."""
        return self.steps(updates) * self.num_envs // horizon

    def steps(self, updates: int) -> int:
        """Steps of all worlds after a number of updates."""
        return self.warmup_steps + updates * self.steps_per_update


@dataclass(frozen=True)
class MATD3Config(MADDPGConfig):
    """Options of MATD3: MADDPG with the three changes of TD3, and its rate of target networks."""

    tau: float = 0.005
    twin_critics: bool = True
    policy_delay: int = 2
    target_noise: float = 0.2


DIFFERENCES: dict[str, dict[str, Any]] = {  # of presets from the defaults
    "best": {"learning_rate": 0.003},
    "large": {"learning_rate": 0.003, "neighbours": 12, "buffer_size": 250_000},
    "quick": {
        "learning_rate": 0.005,
        "batch_size": 128,
        "buffer_size": 100_000,
        "steps_per_update": 2,
        "learning_starts": 2_500,
    },
    "smoke": {
        "batch_size": 16,
        "buffer_size": 400,
        "learning_starts": 100,
        "num_envs": 4,
        "steps_per_update": 5,
    },
}
PRESETS = {name: MADDPGConfig(**some) for name, some in DIFFERENCES.items()}
MATD3_PRESETS = {name: MATD3Config(**some) for name, some in DIFFERENCES.items()}
