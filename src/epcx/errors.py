"""The exceptions that users see as a sentence instead of a traceback."""

import difflib
import operator
from collections.abc import Iterable
from typing import Any, get_args

MAX_SEED = 2**32 - 1  # JAX wraps larger ones around in silence
MAX_MESSAGE = 400  # characters: more are of no use to anybody


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
    allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
    if number is None:
        raise InputError(f"{name} {value!r} is not a whole number {allowed}")
    if number < low or (high is not None and number > high):
        fault = "small" if number < low else "large"
        raise InputError(f"{name} {value!r} is too {fault}: a whole number {allowed} is needed")
    return number


def choice(name: str, value: Any, kind: Any) -> None:
    """Refuses what is not one of the values of a `Literal`."""
    known = get_args(kind)
    if value not in known:
        others = nearest(str(value), known) or f": there are {', '.join(known)}"
        raise InputError(f"unknown {name} {value!r}{others}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a complaint about a name: which one may be meant, if any is like it."""
    bare = {other.lstrip("-"): other for other in known}
    near = difflib.get_close_matches(name.lstrip("-"), bare, 1)
    return f": did you mean {bare[near[0]]}?" if near else ""


def number(name: str, value: Any, low: float, high: float, zero: bool = False) -> None:
    """Refuses what is not a number from `low` to `high`, nor 0 where that is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} {value!r} is not a number")
    if not (low <= value <= high or (zero and value == 0)):
        raise InputError(
            f"{name} {value!r} is not {'0 or ' * zero}a number from {low:g} to {high:g}"
        )


def printable(text: object) -> str:
    """A text in one line, without control characters: names of files may have any."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def one_line(message: object) -> str:
    """A printable message, shortened in the middle if it is very long."""
    text = printable(message)
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]} ... {text[-half:]}"
