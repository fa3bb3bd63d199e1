"""What a user compares: a curriculum and a learner under one name, as the paper names them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from epcx.errors import InputError, nearest

DEFAULT_LEARNER = "maddpg"
Budget = Literal["lineage", "total"]


@dataclass(frozen=True)
class Method:
    """How a population is trained.

    Without a learner of its own, a method goes with any; otherwise `options` are what its
    learner's config must have.
    """

    grows: bool = False  # stage by stage, instead of at one population from scratch
    evolves: bool = False  # with K > 1 sets of each role, mixed and selected
    learner: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


METHODS = {
    "epc": Method(grows=True, evolves=True),
    "vanilla-pc": Method(grows=True),
    "scratch": Method(),
    # The paper's baselines, from scratch:
    "att-maddpg": Method(learner="maddpg", options={"network": "attention"}),
    "maddpg": Method(learner="maddpg", options={"network": "mlp", "neighbours": None}),
    "mean-field": Method(learner="maddpg", options={"network": "mean-field", "neighbours": None}),
    # The mean-field baseline of Yang et al. (2018):
    "mean-field-local": Method(
        learner="maddpg", options={"network": "mean-field-local", "neighbours": None}
    ),
}
CURRICULA = ("epc", "vanilla-pc", "scratch")  # those that go with any learner
PAPER = ("epc", "vanilla-pc", "att-maddpg", "mean-field", "maddpg")  # those that it compares


def find(name: str) -> Method:
    if name not in METHODS:
        others = nearest(name, METHODS) or f": the methods are {', '.join(METHODS)}"
        raise InputError(f"unknown method {name!r}{others}")
    return METHODS[name]


def check_learner(name: str, learner: str) -> None:
    """Whether a learner goes with a method."""
    wanted = find(name).learner
    if wanted is not None and wanted != learner:
        raise InputError(
            f"learner {learner} does not go with method {name}, which has {wanted}: use --method "
            "epc, vanilla-pc or scratch"
        )
