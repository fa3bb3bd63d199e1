"""The exceptions that users see as a sentence instead of a traceback."""

import operator
from typing import Any

MAX_SEED = 2**32 - 1  # JAX wraps larger ones around in silence


class InputError(ValueError):
    """Bad input: the message is one sentence that names the value and what is allowed."""


class RunError(RuntimeError):
    """A job that cannot continue: the message is a sentence with the cause and the remedy."""


class Notice(UserWarning):
    """A warning for users, printed as a sentence."""


def reason(error: OSError) -> str:
    """Why the system refused, in lower case for the middle of a sentence."""
    return (error.strerror or str(error)).lower()


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int, if it is a whole number from `low` to `high`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InputError(f"{name} {value!r} is not a whole number {allowed}")
    return number
