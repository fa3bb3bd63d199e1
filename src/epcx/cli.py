"""The entry point of `epcx`: reads the command line, and turns every failure into a sentence."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from epcx import __version__
from epcx.errors import InputError, Notice, RunError, reason

DEFAULT_FORMAT = warnings.formatwarning


def main(arguments: Sequence[str] | None = None) -> None:
    """Bad input ends with one sentence and exit code 2, never with a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    warnings.formatwarning = format_warning
    try:
        run(arguments)
        sys.stdout.flush()
    except InputError as error:
        stop(str(error), 2)
    except KeyboardInterrupt:
        stop("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        discard_output()
        sys.exit(0)
    except RunError as error:
        stop(str(error), 1)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        stop("the device's memory is exhausted: use a smaller batch, buffer or population", 1)
    except OSError as error:
        discard_output()
        stop(f"cannot write the output: {reason(error)}", 1)


def run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"epcx {__version__}")
        return
    # Imported late: JAX takes a second, in which an interrupt should be answered as at any time.
    from epcx import options
    from epcx.commands import COMMANDS

    if not arguments or arguments[0] in options.HELP:
        about = "Grow large teams of agents by Evolutionary Population Curriculum."
        options.print_commands(COMMANDS, about)
        return
    from epcx.execution.devices import use_all_cores

    use_all_cores()  # before anything starts JAX's backend
    command = options.find_command(COMMANDS, arguments[0])
    words = arguments[1:]
    types = {}
    if hasattr(command, "types"):
        types = command.types(options.read(command, words, strict=False))
    default = getattr(command, "default", lambda given: None)
    try:
        given = options.read(command, words, types)
    except options.HelpRequested as request:
        options.print_help(command, default(request.given), types)
    else:
        options.build(command, given, default(given), types).run()


def format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Notices as sentences, and other warnings as usual."""
    if issubclass(category, Notice):
        return f"epcx: {message}\n"
    return DEFAULT_FORMAT(message, category, filename, lineno, line)


def stop(message: str, code: int) -> None:
    print(f"epcx: {message}", file=sys.stderr)
    sys.exit(code)


def discard_output() -> None:
    """Keeps Python from failing again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
