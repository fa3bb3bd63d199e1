"""Signals to the command: one sentence and an exit code, at any time.

Importing JAX and setting up its devices takes seconds. A KeyboardInterrupt in the middle of that
is lost in C++ or crashes the process, so that the process is left at once instead.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# Frames of code in which no exception may be raised: imports, and the set-up of JAX's devices.
FRAGILE = ("<frozen importlib", "xla_bridge.py")

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
GRACE = 3.0  # seconds for a KeyboardInterrupt to end the command

PARENT = "EPCX_PARENT"  # the process without which this one is to end

_may_raise = False
_leaving = threading.Lock()


def handle_signals() -> None:
    """From now on signals are answered in one sentence; to be called before heavy imports."""
    sys.unraisablehook = _unraisable
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    for number, handler in ((signal.SIGINT, _interrupted), (signal.SIGTERM, _terminated)):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and scripts ask for
            signal.signal(number, handler)
    if parent := os.environ.pop(PARENT, ""):
        end_with(int(parent))


def end_with(parent: int) -> None:
    """Has Linux send SIGTERM to this process when its parent is gone, however it ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # gone already
            leave("terminated", 143)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt, so that work can be cleaned up."""
    global _may_raise
    _may_raise = True
    try:
        yield
    finally:
        _may_raise = False


def leave(sentence: str, code: int) -> NoReturn:
    """Ends the process without waiting for other threads, some of which may be compiling."""
    if not _leaving.acquire(blocking=False):
        time.sleep(GRACE)  # another thread is about to end the process
        os._exit(code)
    try:
        show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
        # Not through `print`: the signal may have come in the middle of one.
        os.write(2, f"{show_cursor}epcx: {sentence}\n".encode())
    finally:
        os._exit(code)


def _watch(reader: int) -> None:
    """Answers signals while the main thread is inside a compiled program, which may take minutes.

    Python calls handlers between two of its own instructions only. Trainings have a handler of
    their own, and end by themselves.
    """
    while signals := os.read(reader, 1):
        (number,) = signals
        if number == signal.SIGTERM and signal.getsignal(number) is _terminated:
            leave("terminated", 143)
        if number == signal.SIGINT and signal.getsignal(number) is _interrupted:
            time.sleep(GRACE)
            leave("interrupted", 130)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if not _may_raise or _fragile(frame):
        leave("interrupted", 130)
    raise KeyboardInterrupt


def _terminated(number: int, frame: FrameType | None) -> None:
    leave("terminated", 143)


def _fragile(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(FRAGILE[0]) or name.endswith(FRAGILE[1]):
            return True
        frame = frame.f_back
    return False


def _unraisable(failure: "sys.UnraisableHookArgs") -> None:
    """A KeyboardInterrupt in a callback, which Python would print and forget."""
    if isinstance(failure.exc_value, KeyboardInterrupt):
        leave("interrupted", 130)
    sys.__unraisablehook__(failure)
