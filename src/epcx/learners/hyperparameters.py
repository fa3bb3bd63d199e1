"""The numbers that MADDPG learns by."""

import math
from dataclasses import dataclass

from epcx.agents.kernels import PRECISIONS
from epcx.errors import InputError, whole_number


@dataclass(frozen=True)
class Hyperparameters:
    """As in the paper (appendix B) and the MADDPG paper."""

    learning_rate: float = 0.01
    """Of Adam, for policies and critics."""

    discount: float = 0.95
    """Gamma: what a reward is worth a step later."""

    target_rate: float = 0.01
    """Tau: how fast the target networks follow."""

    gradient_norm: float = 0.5
    """Gradients are clipped to this norm, per network."""

    logit_penalty: float = 0.001
    """Weight of the mean squared logit in the policy's loss."""

    batch: int = 1024
    """Transitions per update."""

    replay: int = 1_000_000
    """Transitions that are kept."""

    worlds: int = 25
    """Worlds played in parallel."""

    steps_per_update: int = 4
    """Steps of all worlds between two updates."""

    warm_up: int = 25_600
    """Transitions played before the first update."""

    draw_per_agent: bool = False
    """Draw a batch for every agent, as the authors do, instead of one for all of them."""

    precision: str = "bf16"
    """Of products on a GPU, in the attention networks: float32, tf32 or bf16."""

    def __post_init__(self) -> None:
        for name in ("batch", "replay", "worlds", "steps_per_update", "warm_up"):
            whole_number(option(name), getattr(self, name), 1)
        limits = {
            "learning_rate": 1.0,
            "discount": 1.0,
            "target_rate": 1.0,
            "gradient_norm": math.inf,
        }
        for name, high in limits.items():
            value = getattr(self, name)
            if not 0 < value <= high or value == math.inf:
                allowed = "above 0" if high == math.inf else f"above 0, up to {high:g}"
                raise InputError(f"{option(name)} {value} is not a number {allowed}")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"unknown precision {self.precision!r}: there are {', '.join(PRECISIONS)}"
            )
        if not 0 <= self.logit_penalty < math.inf:
            raise InputError(
                f"{option('logit_penalty')} {self.logit_penalty} is negative or no number"
            )

    @property
    def samples_per_update(self) -> int:
        return self.worlds * self.steps_per_update

    @property
    def warm_up_steps(self) -> int:
        """Steps of all worlds before the first update."""
        return -(-self.warm_up // self.worlds)

    def updates(self, episodes: int, horizon: int) -> int:
        """The updates that fit into a number of episodes, of which the first only warm up."""
        if self.batch > self.replay:
            raise InputError(
                f"batch {self.batch} is larger than replay {self.replay}: use a smaller batch or a "
                "larger replay"
            )
        samples = episodes * horizon - self.warm_up_steps * self.worlds
        if samples < self.samples_per_update:
            needed = -(-(self.warm_up_steps * self.worlds + self.samples_per_update) // horizon)
            raise InputError(
                f"episodes {episodes} end before the first update: use at least {needed}, or a "
                "smaller warm-up"
            )
        return samples // self.samples_per_update

    def episodes(self, updates: int, horizon: int) -> int:
        """The episodes played after a number of updates, the warm-up included."""
        steps = self.warm_up_steps + updates * self.steps_per_update
        return steps * self.worlds // horizon


def option(name: str) -> str:
    return name.replace("_", "-")
