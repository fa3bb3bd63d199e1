"""Ctrl-C and termination as a request that is met between two chunks of work."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# SIGTERM may come twice at once: to all processes of a job, and from one that passes it on.
REPEAT_SECONDS = 3.0


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends work as Ctrl-C does, but with another exit code."""


class Interrupts:
    """Inside `with`, the first signal is only noted, and `check` raises; the second is not.

    SIGUSR1, which batch systems send before a time limit, asks for a checkpoint.
    """

    def __init__(self) -> None:
        self.noted: int | None = None  # the first signal
        self.asked = False
        self.may_raise = True
        self.when = 0.0  # of the first signal
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
            self.before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self.ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @contextmanager
    def only_noted(self) -> Iterator[None]:
        """Within, the second signal does not raise either."""
        self.may_raise = False
        try:
            yield
        finally:
            self.may_raise = True

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is None:
            self.noted, self.when = number, time.monotonic()
            # Not through `print`: the signal may have come in the middle of one.
            os.write(2, b"\nstopping after this chunk; once more to stop at once\n")
        elif self.may_raise and not self.is_echo(number):
            self.check()

    def is_echo(self, number: int) -> bool:
        """Whether this is the first signal again, as somebody else has passed it on."""
        again = number == self.noted == signal.SIGTERM
        return again and time.monotonic() - self.when < REPEAT_SECONDS

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def check(self) -> None:
        if self.noted is not None:
            raise Terminated if self.noted == signal.SIGTERM else KeyboardInterrupt
