"""What the hyperparameters of learners have in common: bounds, and one check of them."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from epcx.errors import InputError, choice, number, whole_number

Precision = Literal["float32", "tf32", "bf16"]
# Wide, but well within float32, in which 1e-45 is 0 and 1e39 infinite.
SMALLEST, LARGEST = 1e-12, 1e6
FLAT_NETWORKS = ("mlp", "mean-field", "mean-field-local")  # of one population
MAX_COUNT = 10**12  # more than any machine can hold


def check(
    config: object,
    counts: Collection[str],
    bounds: Mapping[str, tuple[float, float]],
    may_be_zero: Collection[str],
    choices: Mapping[str, Any],
) -> None:
    """Refuses values of a config that are not allowed, naming the option."""
    for name in counts:
        whole_number(option(name), getattr(config, name), 1, MAX_COUNT)
    for name, (low, high) in bounds.items():
        number(option(name), getattr(config, name), low, high, zero=name in may_be_zero)
    for name, kind in choices.items():
        choice(option(name), getattr(config, name), kind)


def check_neighbours(config: Any) -> None:
    """Refuses neighbourhoods of other than a positive number, and for networks without them."""
    if config.neighbours is None:
        return
    whole_number("neighbours", config.neighbours, 1, MAX_COUNT)
    if config.network in FLAT_NETWORKS:
        raise InputError(
            f"neighbours {config.neighbours} do not go with network {config.network}, which sees "
            "everybody: use network attention, relational or equivariant"
        )


def option(name: str) -> str:
    return name.replace("_", "-")
