"""The entry point of `epcx`: reads the command line, and turns every failure into a sentence."""

import contextlib
import errno
import io
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from epcx import __version__, commands, options, startup
from epcx.errors import InputError, Notice, RunError, one_line, reason
from epcx.interrupts import Terminated

DEFAULT_FORMAT = warnings.formatwarning
INTERRUPTED, TERMINATED = 130, 143  # exit codes of shells: 128 and the number of the signal
BROKEN_PIPE = 141
# What the system says of paths that are wrong, whatever is on the disk.
BAD_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this process, or another one that is run within it."""
    if arguments is not None:
        answer(arguments)
        return
    startup.handle_signals()
    try:
        answer(sys.argv[1:])
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            os._exit(end.code)  # waits for no thread, some of which may be compiling
        raise


def answer(arguments: Sequence[str]) -> None:
    """Bad input ends with one sentence and exit code 2, never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks
    warnings.formatwarning = format_warning
    try:
        run(list(arguments))
        sys.stdout.flush()
    except InputError as error:
        stop(error, 2)
    except Terminated:
        stop("terminated", TERMINATED)
    except KeyboardInterrupt:
        stop("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        end_without_reader()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # which is what Rich makes of it
            raise
        end_without_reader()
    except RunError as error:
        stop(error, 1)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        stop("the device's memory is exhausted: use a smaller batch, buffer or population", 1)
    except OSError as error:
        if error.filename is not None:
            stop(f"{error.filename}: {reason(error)}", 2 if error.errno in BAD_PATH else 1)
        discard_output()
        stop(f"cannot write the output: {reason(error)}", 1)


def run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"epcx {__version__}")
        return
    if not arguments or arguments[0] in options.HELP:
        about = "Grow large teams of agents by Evolutionary Population Curriculum."
        options.print_commands(commands.summaries(), about)
        return
    name, *words = arguments
    options.check_command(name, commands.MODULES)
    # Imported late: JAX takes a second, in which an interrupt should be answered as at any time.
    command = commands.find(name)
    from epcx.execution.devices import use_all_cores

    use_all_cores()  # before anything starts JAX's backend
    types, default = commands.context(command, words)
    try:
        given = options.read(command, words, types, default)
    except options.HelpRequested:
        options.print_help(command, default, types)
    else:
        task = options.build(command, given, default, types)
        with startup.interruptible():
            task.run()


def format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Notices as sentences, and other warnings as usual."""
    if issubclass(category, Notice):
        return f"epcx: {one_line(message)}\n"
    return DEFAULT_FORMAT(message, category, filename, lineno, line)


def stop(message: object, code: int) -> NoReturn:
    """Ends with one line, whatever names and paths the message holds."""
    print(f"epcx: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


def end_without_reader() -> NoReturn:
    """All is well if nobody reads results on; a job that cannot report progress was cut short."""
    discard_output()
    progress = select.poll()
    progress.register(2, 0)  # errors are always reported
    sys.exit(BROKEN_PIPE if progress.poll(0) else 0)


def discard_output() -> None:
    """Keeps Python from failing again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
