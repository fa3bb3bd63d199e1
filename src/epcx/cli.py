"""The entry point of `epcx`: reads the command line, and turns every failure into a sentence."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from epcx import __version__
from epcx.errors import InputError, Notice, RunError, reason

AS_USUAL = warnings.formatwarning


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
        stop("the device's memory is exhausted: use a smaller batch, replay or population", 1)
    except OSError as error:
        discard_output()
        stop(f"cannot write the output: {reason(error)}", 1)


def run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"epcx {__version__}")
        return
    # Imported late: JAX takes a second, in which an interrupt should be answered as at any time.
    import tyro

    from epcx.commands import Command, Train

    about = "Grow large teams of agents by Evolutionary Population Curriculum."
    with complaints():
        command = tyro.cli(Command, prog="epcx", description=about, args=arguments or ["--help"])
    if isinstance(command, Train):
        # Read again, now that it is known which preset the defaults come from.
        default = command.with_defaults()
        with complaints():
            command = tyro.cli(Train, prog="epcx train", args=arguments[1:], default=default)
    command.run()


@contextlib.contextmanager
def complaints() -> Iterator[None]:
    """Turns what tyro writes about bad options into one sentence."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            yield
    except SystemExit as stopped:
        if stopped.code:
            raise InputError(sentence(complaint.getvalue())) from None
        raise


def sentence(box: str) -> str:
    """The content of the box that tyro draws around an error, on one line."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│ ")
        if text.startswith(("╭", "╰")) or not text:
            continue
        if not text.strip("─"):
            parts.append([])
        else:
            parts[-1].append(text)
    sentences = [" ".join(part) for part in parts if part]
    rest = ("For full helptext", "Argument helptext")
    useful = [text for text in sentences if not text.startswith(rest)]
    return "; ".join(useful or sentences) + " (epcx --help tells more)"


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
    return AS_USUAL(message, category, filename, lineno, line)


def stop(message: str, code: int) -> None:
    print(f"epcx: {message}", file=sys.stderr)
    sys.exit(code)


def discard_output() -> None:
    """Keeps Python from failing again when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
