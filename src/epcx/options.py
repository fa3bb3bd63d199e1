"""Dataclasses as the command line: fields are options, the string below a field is its help."""

import argparse
import ast
import functools
import inspect
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from epcx.errors import InputError, nearest, one_line

T = TypeVar("T")
Types = Mapping[str, type]

AS_DECLARED: Types = {}
METAVARS = {str: "TEXT", int: "INT", float: "FLOAT", Path: "PATH"}
ALLOWED = {int: "a whole number", float: "a number"}
HELP = ("-h", "--help")
MAX_DEPTH = 200  # folders in one another, which Python makes by recursion
NEGATIVE_NUMBER = re.compile(r"-(\.?\d|inf$)")


@dataclass(frozen=True)
class Positional:
    """Makes a field an argument without a name: `Annotated[str, Positional("GAME")]`."""

    metavar: str


class Flatten:
    """Makes the fields of a nested dataclass options: `Annotated[Execution, Flatten]`."""


class HelpRequested(Exception):  # noqa: N818
    """Help was asked for; `given` is what else could be read from the command line."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__("help was requested")
        self.given = given


@dataclass(frozen=True)
class Option:
    """A field of the command, or of a dataclass nested in it."""

    owner: type
    path: tuple[str, ...]  # the names of the fields that lead from the command to this one
    kind: Any  # str, int, float, bool, Path or Literal[...]
    many: bool
    positional: str | None  # its metavar
    default: Any

    @property
    def flags(self) -> list[str]:
        name = self.path[-1].replace("_", "-")
        return [f"--{name}", f"--no-{name}"] if self.kind is bool else [f"--{name}"]

    @property
    def label(self) -> str:
        return self.positional or self.flags[0]

    @property
    def help(self) -> str:
        about, default = field_docs(self.owner).get(self.path[-1], ""), self.default
        if self.positional or default is MISSING or default is None or default == ():
            return about  # which tells what happens without a value
        if isinstance(default, bool):
            default = "on" if default else "off"
        values = default if isinstance(default, tuple) else (default,)
        return f"{about} (default: {one_line(' '.join(map(str, values)))})".lstrip()

    def convert(self, texts: Sequence[str]) -> Any:
        values = [self.convert_one(text) for text in texts]
        return tuple(values) if self.many else values[0]

    def convert_one(self, text: str) -> Any:
        choices = {str(choice): choice for choice in get_args(self.kind)}
        name = self.positional or f"option {self.label}"
        if self.kind is Path and text.count("/") > MAX_DEPTH:
            raise InputError(f"{name} takes at most {MAX_DEPTH} folders in one another: {text}")
        try:
            return choices[text] if choices else self.kind(text)
        except (KeyError, ValueError):
            *most, last = choices or [ALLOWED[self.kind]]
            allowed = f"{', '.join(most)} or {last}" if most else last
            meant = nearest(text, choices)
            raise InputError(f"{name} takes {allowed}, not {text!r}{meant}") from None


class Toggle(argparse.Action):
    """`--json` or `--no-json`: argparse's own cannot tell `--no-cache` from not `--cache`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


def read(
    command: type,
    arguments: Sequence[str],
    types: Types = AS_DECLARED,
    default: Any = None,
    strict: bool = True,
) -> dict[str, Any]:
    """The options that stand on the command line, those of nested dataclasses in nested dicts.

    `types` replaces the types of nested dataclasses, by the names of their fields; what `default`
    has need not be given. Without `strict` nothing is refused: for a first look at the options
    that decide about `types` and `default`.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words = [word for word in arguments[:end] if word not in HELP]
    help_requested = len(words) < end
    found: dict[tuple[str, ...], Any] = {}
    try:
        read_into(found, command, types, default, words, arguments[end + 1 :])
    except InputError:
        if strict and not help_requested:
            raise
    given: dict[str, Any] = {}
    for (*parents, name), value in found.items():
        place = given
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    if strict and help_requested:
        raise HelpRequested(given)
    return given


def read_into(
    found: dict[tuple[str, ...], Any],
    command: type,
    types: Types,
    default: Any,
    words: Sequence[str],
    verbatim: Sequence[str],
) -> None:
    """Collects values by the paths of their options; `verbatim` words are never options."""
    options = list(options_of(command, types, default))
    named = [option for option in options if not option.positional]
    parser = parser_of(command, named)
    try:
        values, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        flag, *others = str(error.argument_name).split("/")  # only flags without value have others
        raise InputError(f"option {flag} {'takes no' if others else 'needs a'} value") from None
    for option in named:
        value = getattr(values, ".".join(option.path))
        if value == [] and not option.many:  # argparse drops the value of --name=--
            raise InputError(f"option {option.label} needs a value")
        if value is not None:
            found[option.path] = value if option.kind is bool else option.convert(value)
    unknown = [word for word in rest if re.match("-.", word) and not NEGATIVE_NUMBER.match(word)]
    # What follows an unknown option may be its value, and is no positional.
    rest = rest[: rest.index(unknown[0])] if unknown else [*rest, *verbatim]
    for option in options:
        if option.positional and rest:
            taken = len(rest) if option.many else 1
            found[option.path], rest = option.convert(rest[:taken]), rest[taken:]
    more = f"({name_of(command)} --help tells more)"
    if unknown:
        name, flags = unknown[0].partition("=")[0], [flag for o in named for flag in o.flags]
        raise InputError(f"unknown option {name}{nearest(name, [*flags, *HELP])} {more}")
    if rest:
        raise InputError(f"unexpected argument {rest[0]!r} {more}")
    missing = [o.label for o in options if o.default is MISSING and o.path not in found]
    if missing:
        name = name_of(command).removeprefix("epcx ")
        raise InputError(f"{name} needs {' and '.join(missing)} {more}")


def build(
    command: type[T], given: Mapping[str, Any], default: T | None = None, types: Types = AS_DECLARED
) -> T:
    """The command with what is `given`, and all else as in `default` or in the dataclass."""
    values = dict(given)
    for name, kind, mark, value in fields_of(command, types, default):
        if mark is Flatten:
            values[name] = build(kind, given.get(name, {}), value, types)
    if default is None:
        return command(**values)
    return replace(default, **values)  # type: ignore[type-var]


def fields_of(command: Any, types: Types, default: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, type, mark and default of each field; None for a nested dataclass without default."""
    hints = get_type_hints(command, include_extras=True)
    for field in fields(command):
        hint, mark = hints[field.name], None
        value = field.default if field.default_factory is MISSING else field.default_factory()
        if default is not None:
            value = getattr(default, field.name)
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
            mark = next((m for m in marks if m is Flatten or isinstance(m, Positional)), None)
        if mark is Flatten:
            hint = types.get(field.name, type(value) if is_dataclass(value) else hint)
            value = value if type(value) is hint else None
        if field.init and (mark is not Flatten or is_dataclass(hint)):
            yield field.name, hint, mark, value


def options_of(
    command: type, types: Types, default: Any = None, path: tuple[str, ...] = ()
) -> Iterator[Option]:
    for name, hint, mark, value in fields_of(command, types, default):
        if mark is Flatten:
            yield from options_of(hint, types, value, (*path, name))
            continue
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kind, *others = (part for part in parts if part is not NoneType)
        many = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
        kind = get_args(kind)[0] if many else kind
        if others or not (kind in METAVARS or kind is bool or get_origin(kind) is Literal):
            raise TypeError(f"{command.__name__}.{name}: {hint} cannot be read from a command line")
        yield Option(command, (*path, name), kind, many, mark and mark.metavar, value)


def parser_of(command: type, options: Sequence[Option]) -> argparse.ArgumentParser:
    """With one group of options for the command, and one for each dataclass nested in it."""
    words = [option.positional + " ..." * option.many for option in options if option.positional]
    parser = plain_parser([name_of(command), *words, "[options]"], doc_of(command), 8)
    arguments = parser.add_argument_group("arguments")
    groups = {command: parser.add_argument_group("options")}
    for option in options:
        if option.owner not in groups:
            title = first_sentence(doc_of(option.owner)) or option.owner.__name__
            title = textwrap.fill(title, shutil.get_terminal_size().columns - 3)
            groups[option.owner] = parser.add_argument_group(title)
        how: dict[str, Any] = {"nargs": 0, "action": Toggle}
        if option.kind is not bool:
            metavar = METAVARS.get(option.kind) or "|".join(map(str, get_args(option.kind)))
            metavar = option.positional or metavar
            how = {"nargs": "*" if option.many else 1, "metavar": metavar}
        text, dest = option.help.replace("%", "%%"), ".".join(option.path)
        if option.positional:
            arguments.add_argument(dest, help=text, **how)
        else:
            groups[option.owner].add_argument(*option.flags, dest=dest, help=text, **how)
    groups[command].add_argument(*HELP, action="help", help="Show this help.")
    return parser


def plain_parser(usage: Sequence[str], about: str, column: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage=" ".join(usage),
        description=about,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=column),
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser._negative_number_matcher = NEGATIVE_NUMBER  # argparse's own does not know -1e-3
    return parser


def print_help(command: type, default: Any = None, types: Types = AS_DECLARED) -> None:
    """All options with their defaults: those of `default`, or of the dataclass."""
    parser_of(command, list(options_of(command, types, default))).print_help()


def print_commands(commands: Mapping[str, str], about: str) -> None:
    """All commands, each with a sentence about it."""
    parser = plain_parser(["epcx", "COMMAND", "[options]"], about, 24)
    group = parser.add_argument_group("commands")
    for name, sentence in commands.items():
        group.add_argument(name, help=sentence.replace("%", "%%"))
    group = parser.add_argument_group("options")
    group.add_argument(*HELP, action="help", help="Show this help, or that of a command.")
    group.add_argument("-V", "--version", action="version", help="Show the version.")
    parser.print_help()


def check_command(name: str, known: Iterable[str]) -> None:
    """Refuses what is not the name of a command."""
    more = " (epcx --help tells more)"
    if name.startswith("-"):
        raise InputError(f"unknown option {name}{nearest(name, [*HELP, '--version'])}{more}")
    if name not in known:
        raise InputError(f"unknown command {name!r}{nearest(name, known) or more}")


def run(command: type[Any], arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and runs the command: for programs with only one."""
    try:
        build(command, read(command, sys.argv[1:] if arguments is None else arguments)).run()
    except HelpRequested:
        print_help(command)
    except InputError as error:
        print(f"{name_of(command)}: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def name_of(command: type) -> str:
    """`epcx train` for the class Train; the name of the file for a program of its own."""
    if command.__module__ == "__main__":
        return Path(sys.argv[0]).name
    return f"epcx {command.__name__.lower()}"


def doc_of(owner: type) -> str:
    """The docstring, but not the signature that a dataclass without one has in its place."""
    doc = owner.__doc__ or ""
    return "" if doc.startswith(f"{owner.__name__}(") else inspect.cleandoc(doc)


def first_sentence(doc: str) -> str:
    sentence = re.split(r"\.\s+(?=[A-Z])|\n\s*\n", doc)[0]
    return " ".join(sentence.split()).rstrip(".")


@functools.cache
def field_docs(owner: type) -> dict[str, str]:
    """The strings below the fields of a class and its bases, where their source can be read."""
    docs = {}
    for base in reversed(owner.__mro__):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):
            continue
        for field, below in itertools.pairwise(getattr(definition, "body", ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(doc))):
                    docs[name] = " ".join(doc.split())
    return docs
