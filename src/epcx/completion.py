"""Scripts that complete command lines in shells, made from the options of all commands."""

import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from epcx import commands, games, learners, methods
from epcx.errors import InputError
from epcx.options import HELP, Option, field_docs, first_sentence, options_of

Shell = Literal["bash", "zsh", "fish"]
WIDTH = 70  # of what is shown about an option
FILE_NAMES = ("source", "players", "init_from")  # fields that can name files among others


@dataclass(frozen=True)
class Completion:
    """An option, or a positional argument if it has no flags."""

    flags: tuple[str, ...]
    about: str
    takes_value: bool
    many: bool = False
    words: tuple[str, ...] = ()  # that its value can be
    files: bool = False  # whether its value can be a file


def script(shell: Shell) -> str:
    words = value_words()
    known = {name: completions(name, words) for name in commands.MODULES}
    return SCRIPTS[shell](known, commands.summaries())


def value_words() -> dict[str, list[str]]:
    """What fields can be that take any text, by their names."""
    known = {"game": games.names(), "method": list(methods.METHODS), "learner": learners.names()}
    return {**known, "source": known["game"], "methods": known["method"]}


def completions(command: str, words: Mapping[str, list[str]]) -> list[Completion]:
    """Of a command, with the options of all learners where it has some of a learner's."""
    cls = commands.find(command)
    configs = [config_of(name) for name in words["learner"]] if hasattr(cls, "types") else [None]
    found: dict[tuple[str, ...], Completion] = {}
    for config in configs:
        for option in options_of(cls, {"learner_config": config} if config else {}):
            item = completion(option, words)
            others = found[item.flags].words if item.flags in found else ()
            found[item.flags] = replace(item, words=tuple(dict.fromkeys(others + item.words)))
    return [*found.values(), Completion(HELP, "Show this help", takes_value=False)]


def config_of(learner: str) -> type | None:
    """One that cannot be imported has no options here."""
    try:
        return learners.find(learner).Config
    except InputError:
        return None


def completion(option: Option, known: Mapping[str, list[str]]) -> Completion:
    name = option.path[-1]
    about = first_sentence(field_docs(option.owner).get(name, ""))
    words = tuple(map(str, get_args(option.kind))) or tuple(known.get(name, ()))
    return Completion(
        () if option.positional else tuple(option.flags),
        textwrap.shorten(about, WIDTH, placeholder=" ..."),
        takes_value=option.kind is not bool,
        many=option.many,
        words=tuple(word for word in words if re.fullmatch(r"[\w.:-]+", word)),
        files=option.kind is Path or (option.kind is str and name in FILE_NAMES),
    )


Known = dict[str, list[Completion]]


def bash(known: Known, summaries: dict[str, str]) -> str:
    def guess(item: Completion) -> str:
        files = ' $(compgen -f -- "$word")' * item.files
        return f'COMPREPLY=($(compgen -W "{" ".join(item.words)}" -- "$word"){files})'

    values, silent, flags, places, many = [], [], [], [], []
    for command, items in known.items():
        for item in items:
            pattern = "|".join(f'"{command} {flag}"' for flag in item.flags)
            if not item.flags:
                places.append(f"        {command}) {guess(item)} ;;")
            elif item.takes_value and not (item.words or item.files):
                silent.append(pattern)
            elif item.takes_value:
                values.append(f"        {pattern}) {guess(item)}; return ;;")
            if item.flags and item.many:
                many.append(pattern)
        every = " ".join(flag for item in items for flag in item.flags)
        flags.append(f'        {command}) COMPREPLY=($(compgen -W "{every}" -- "$word")) ;;')
    lines = """
        # Completions of epcx for bash.
        _epcx() {
            local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} option= i
            COMPREPLY=()
            if [ "$COMP_CWORD" = 1 ]; then
                COMPREPLY=($(compgen -W "@commands" -- "$word"))
                return
            fi
            for ((i = COMP_CWORD - 1; i > 1; i--)); do
                case "${COMP_WORDS[i]}" in -*) option=${COMP_WORDS[i]}; break ;; esac
            done
            case "$command $option" in
                @many) ;;
                *) [ "$i" = $((COMP_CWORD - 1)) ] || option= ;;
            esac
            if [[ $word == -* ]]; then
                case "$command" in
        @flags
                esac
                return
            fi
            case "$command $option" in
        @values
                @silent) return ;;
            esac
            case "$command" in
        @places
            esac
        }
        complete -o filenames -F _epcx epcx
        """
    parts = {
        "@commands": " ".join([*summaries, *HELP, "--version"]),
        "@many": "|".join(many),
        "@flags": "\n".join(f"    {line}" for line in flags),
        "@values": "\n".join(values),
        "@silent": "|".join(silent),
        "@places": "\n".join(places),
    }
    return fill(lines, parts)


def zsh(known: Known, summaries: dict[str, str]) -> str:
    def spec(item: Completion) -> str:
        words = " ".join(item.words)
        value = f"_alternative 'word:value:({words})' 'file:file:_files'"
        if not (item.words and item.files):
            value = f"({words})" if item.words else "_files" if item.files else ""
        value = ":value:" + value
        if not item.flags:
            return shlex.quote("*" * item.many + value)
        about = "".join(f"\\{c}" if c in "[]:\\" else c for c in item.about)
        taken = (":*-*" * item.many + value) if item.takes_value else ""
        return " ".join(shlex.quote(f"{flag}[{about}]{taken}") for flag in item.flags)

    lines = """
        #compdef epcx
        # Completions of epcx for zsh.
        _epcx() {
            local -a commands=(
        @commands
            )
            if (( CURRENT == 2 )); then
                _describe command commands
                return
            fi
            shift words
            (( CURRENT-- ))
            case $words[1] in
        @cases
            esac
        }
        compdef _epcx epcx
        """
    names = [f"        {shlex.quote(f'{name}:{about}')}" for name, about in summaries.items()]
    cases = []
    for command, items in known.items():
        cases.append(f"        {command}) _arguments \\")
        cases += [f"            {spec(item)} \\" for item in items]
        cases.append("            ;;")
    return fill(lines, {"@commands": "\n".join(names), "@cases": "\n".join(cases)})


def fish(known: Known, summaries: dict[str, str]) -> str:
    lines = ["# Completions of epcx for fish.", "complete -c epcx -f"]
    for name, about in summaries.items():
        lines.append(f"complete -c epcx -n __fish_use_subcommand -a {name} -d {quoted(about)}")
    for command, items in known.items():
        begin = f"complete -c epcx -n '__fish_seen_subcommand_from {command}'"
        for item in items:
            how = f" -a {quoted(' '.join(item.words))}" if item.words else ""
            how += " -F" if item.files else ""
            if not item.flags:
                lines.append(begin + how)
                continue
            how += f" -d {quoted(item.about)}"
            value = (" -r" if item.files else " -x") if item.takes_value else ""
            for flag in item.flags:
                kind = "-l" if flag.startswith("--") else "-s"
                lines.append(f"{begin} {kind} {flag.lstrip('-')}{value}{how}")
    return "\n".join(lines) + "\n"


SCRIPTS: dict[str, Callable[[Known, dict[str, str]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}


def quoted(text: str) -> str:
    """As fish quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def fill(template: str, parts: dict[str, str]) -> str:
    text = textwrap.dedent(template).lstrip("\n").rstrip(" ")
    for name, part in parts.items():
        text = text.replace(name, part)
    return text
