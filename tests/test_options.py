"""Dataclasses as the command line: what is read, what is refused and how, and the help."""

import argparse
import importlib
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from epcx import options
from epcx.errors import InputError
from epcx.options import Flatten, HelpRequested, Positional


@dataclass(frozen=True)
class Execution:
    """Where it runs. It does not change what it does."""

    devices: int | None = None
    """How many devices; by default all."""

    minutes: float = 3.0
    """Between two checkpoints."""


@dataclass(frozen=True)
class Settings:
    """A game, a learner, and how long
    it trains."""

    game: Annotated[str, Positional("GAME")]
    """A game."""

    population: tuple[str, ...] = ()
    """One for each stage."""

    episodes: int = 50
    """Episodes per match, 100% of them."""

    learner: str = "maddpg"
    """The learner."""

    learner_config: Annotated[Any, Flatten] = None


@dataclass(frozen=True)
class Train:
    """Train agents for a game.

    They are kept as a run.
    """

    settings: Annotated[Settings, Flatten]

    preset: Literal["paper", "best", "quick", "smoke"] = "paper"
    """Where the defaults
    come from."""

    seed: "int | None" = None

    gamma: float = 0.95

    out: Path = Path("runs")
    """The folder."""

    title: str | None = None

    execution: Annotated[Execution, Flatten] = field(default_factory=Execution)

    json: bool = False
    """Print JSON."""

    progress: bool = True

    def run(self):
        if self.settings.game == "chess":
            raise InputError("unknown game 'chess'")
        print(f"trains {self.settings.game}")


@dataclass(frozen=True)
class Crossplay:
    """Let everybody play."""

    runs: Annotated[tuple[Path, ...], Positional("RUN")]
    levels: tuple[Literal[1, 2], ...] = (1,)
    no_cache: bool = False


@dataclass(frozen=True)
class Copy:
    """Copy a run."""

    source: Annotated[int, Positional("NUMBER")]
    out: Path
    label: Annotated[str | None, Positional("LABEL")] = None


@dataclass(frozen=True)
class ESConfig:
    sigma: float = 0.1
    """Size of the mutations."""

    episodes_per_step: int = 8


@dataclass(frozen=True)
class LargerESConfig(ESConfig):
    """Evolution strategies."""

    sigma: float = 0.2

    antithetic: bool = False
    """In pairs of opposite sign."""


LEARNER = {"learner_config": ESConfig}


def read(line, command=Train, **options_):
    return options.read(command, line.split(), **options_)


def build(line, command=Train, default=None, types=options.AS_DECLARED):
    return options.build(command, read(line, command, types=types), default, types)


def refusal(line, command=Train, **options_):
    with pytest.raises(InputError) as refused:
        read(line, command, **options_)
    return str(refused.value)


def help_text(capsys, *arguments, **options_):
    options.print_help(*arguments, **options_)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("", {}),
        ("--preset quick", {"preset": "quick"}),
        ("--seed 3", {"seed": 3}),
        ("--seed=3", {"seed": 3}),
        ("--seed -1", {"seed": -1}),
        ("--gamma 1", {"gamma": 1.0}),
        ("--gamma -1e-3", {"gamma": -0.001}),
        ("--gamma -inf", {"gamma": float("-inf")}),
        ("--out a/b", {"out": Path("a/b")}),
        ("--title=-x", {"title": "-x"}),
        ("--title=a=b", {"title": "a=b"}),
        ("--json", {"json": True}),
        ("--no-json", {"json": False}),
        ("--progress --no-progress", {"progress": False}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ("--devices 2 --json", {"execution": {"devices": 2}, "json": True}),
    ],
)
def test_read_returns_only_what_is_given(line, given):
    assert read(line + " grassland") == {"settings": {"game": "grassland"}, **given}


def test_tuple_option_takes_values_up_to_the_next_option():
    given = read("grassland --population 3-2 6-4 --json")
    assert given == {"settings": {"game": "grassland", "population": ("3-2", "6-4")}, "json": True}
    assert read("grassland --population")["settings"]["population"] == ()
    assert read("a --levels 2 1", Crossplay)["levels"] == (2, 1)


def test_positional_tuple_takes_values_between_options():
    assert read("a --no-cache b c", Crossplay) == {
        "runs": (Path("a"), Path("b"), Path("c")),
        "no_cache": True,
    }
    assert read("a --no-no-cache", Crossplay)["no_cache"] is False


def test_positionals_are_filled_in_order_and_may_have_defaults():
    assert build("3 --out x", Copy) == Copy(3, Path("x"))
    assert build("3 --out x best", Copy) == Copy(3, Path("x"), "best")


def test_words_after_two_dashes_are_no_options():
    assert read("--json -- --game--") == {"settings": {"game": "--game--"}, "json": True}
    assert read("-- --help")["settings"]["game"] == "--help"


def test_build_takes_the_rest_from_the_dataclass():
    assert build("grassland --episodes 7 --minutes 1") == Train(
        Settings("grassland", episodes=7), execution=Execution(minutes=1.0)
    )


def test_build_takes_the_rest_from_the_default():
    default = Train(Settings("grassland", ("3-2",), 9), "quick", 5, execution=Execution(4))
    assert build("grassland --seed 6 --minutes 1", default=default) == Train(
        Settings("grassland", ("3-2",), 9), "quick", 6, execution=Execution(4, 1.0)
    )


def test_nested_type_is_replaced_at_run_time():
    built = build("grassland --sigma 0.5", types=LEARNER)
    assert built.settings.learner_config == ESConfig(0.5)
    assert build("grassland", types=LEARNER).settings.learner_config == ESConfig()
    assert build("grassland").settings.learner_config is None
    assert refusal("grassland --sigma 0.5").startswith("unknown option --sigma")


def test_build_takes_nested_values_of_a_replaced_type_from_the_default():
    default = Train(Settings("grassland", learner_config=ESConfig(0.7, 2)))
    built = build("grassland --episodes-per-step 3", default=default, types=LEARNER)
    assert built.settings.learner_config == ESConfig(0.7, 3)
    other = {"learner_config": LargerESConfig}
    built = build("grassland --antithetic", default=default, types=other)
    assert built.settings.learner_config == LargerESConfig(antithetic=True)


def test_first_look_ignores_what_it_does_not_know():
    look = read("grassland --sigma 0.5 --learner my:ES --help", strict=False)
    assert look == {"settings": {"game": "grassland", "learner": "my:ES"}}
    assert read("--sigma 0.5 grassland", strict=False) == {}
    assert read("", strict=False) == {}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "grassland --episode 3",
            "unknown option --episode: did you mean --episodes? (epcx train --help tells more)",
        ),
        (
            "--devise=3 grassland",
            "unknown option --devise: did you mean --devices? (epcx train --help tells more)",
        ),
        ("grassland --foo 3", "unknown option --foo (epcx train --help tells more)"),
        ("grassland -x", "unknown option -x (epcx train --help tells more)"),
        ("--hlep", "unknown option --hlep: did you mean --help? (epcx train --help tells more)"),
        ("grassland --episodes many", "option --episodes takes a whole number, not 'many'"),
        ("grassland --episodes 1.5", "option --episodes takes a whole number, not '1.5'"),
        ("grassland --seed x", "option --seed takes a whole number, not 'x'"),
        ("grassland --gamma x", "option --gamma takes a number, not 'x'"),
        (
            "grassland --preset huge",
            "option --preset takes paper, best, quick or smoke, not 'huge'",
        ),
        ("grassland --seed", "option --seed needs a value"),
        ("grassland --seed --json", "option --seed needs a value"),
        ("grassland --title=-- --json", "option --title needs a value"),
        ("grassland --json=yes", "option --json takes no value"),
        ("grassland x", "unexpected argument 'x' (epcx train --help tells more)"),
        ("grassland -5", "unexpected argument '-5' (epcx train --help tells more)"),
        ("--seed 3", "train needs GAME (epcx train --help tells more)"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(line, sentence):
    assert refusal(line) == sentence


def test_abbreviated_option_is_refused():
    assert refusal("grassland --pre quick").startswith("unknown option --pre")


def test_missing_values_are_named():
    assert refusal("", Crossplay).startswith("crossplay needs RUN (")
    assert refusal("", Copy).startswith("copy needs NUMBER and --out (")


def test_bad_positional_and_tuple_values_are_named():
    assert refusal("x --out y", Copy) == "NUMBER takes a whole number, not 'x'"
    assert refusal("a --levels 1 3", Crossplay) == "option --levels takes 1 or 2, not '3'"


def test_options_of_a_replaced_type_are_checked_and_suggested():
    refused = refusal("grassland --sgima 1", types=LEARNER)
    assert refused.startswith("unknown option --sgima: did you mean --sigma?")
    refused = refusal("grassland --sigma big", types=LEARNER)
    assert refused == "option --sigma takes a number, not 'big'"


def test_options_of_the_same_name_are_an_error_of_the_program():
    command = make_dataclass("Clash", [("devices", int, 1)])
    with pytest.raises(argparse.ArgumentError, match="--devices"):
        read("grassland", types={"learner_config": command})


def test_unreadable_field_type_is_a_type_error():
    command = make_dataclass("Bad", [("table", dict, None)])
    with pytest.raises(TypeError, match=r"Bad\.table: .*dict.* cannot be read"):
        options.read(command, [])


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_request_carries_what_was_given(flag):
    for line in (f"{flag} grassland --preset quick", f"grassland --preset quick --foo {flag}"):
        with pytest.raises(HelpRequested) as requested:
            read(line)
        assert requested.value.given["preset"] == "quick"
    with pytest.raises(HelpRequested) as requested:
        read(f"--episodes {flag}")
    assert requested.value.given == {}


def test_help_shows_the_defaults_of_the_dataclass(capsys):
    text = " ".join(help_text(capsys, Train).split())
    assert text.startswith(
        "usage: epcx train GAME [options] Train agents for a game. They are kept as a run. "
        "arguments: GAME A game. options: --preset paper|best|quick|smoke "
        "Where the defaults come from. (default: paper) --seed INT --gamma FLOAT (default: 0.95) "
    )
    assert "--out PATH The folder. (default: runs)" in text
    assert "--json, --no-json Print JSON. (default: off)" in text
    assert "--progress, --no-progress (default: on)" in text
    assert "--population [TEXT ...] One for each stage. --episodes" in text
    assert "100% of them. (default: 50)" in text


def test_help_shows_the_defaults_of_an_instance(capsys):
    nested = LargerESConfig(0.9)
    default = Train(Settings("grassland", ("3-2", "6-4"), 9, learner_config=nested), "quick", 0)
    text = " ".join(help_text(capsys, Train, default).split())
    assert "come from. (default: quick)" in text
    assert "--seed INT (default: 0)" in text
    assert "One for each stage. (default: 3-2 6-4)" in text
    assert "Evolution strategies: --sigma FLOAT Size of the mutations. (default: 0.9)" in text


def test_help_shows_defaults_without_control_characters(capsys):
    text = help_text(capsys, Train, Train(Settings("grassland", ("\x1b[2J",))))
    assert "\x1b" not in text
    assert "(default: ?[2J)" in text


def test_help_has_a_group_for_each_nested_dataclass(capsys):
    lines = help_text(capsys, Train, types=LEARNER).splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "arguments:",
        "options:",
        "A game, a learner, and how long it trains:",
        "ESConfig:",
        "Where it runs:",
    ]


def test_help_fits_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = help_text(capsys, Train)
    assert max(map(len, text.splitlines())) <= 40
    assert "A game, a learner, and how long it\ntrains:\n" in text


def test_help_is_inherited_with_the_field(capsys):
    text = " ".join(help_text(capsys, LargerESConfig).split())
    assert "--sigma FLOAT Size of the mutations. (default: 0.2)" in text
    assert "--antithetic, --no-antithetic In pairs of opposite sign." in text


def test_help_of_another_module_with_postponed_annotations(capsys, tmp_path, monkeypatch):
    (tmp_path / "their_learner.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class TheirConfig:\n"
        "    width: int | None = 3\n"
        "    'Of the network.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    theirs = {"learner_config": importlib.import_module("their_learner").TheirConfig}
    text = " ".join(help_text(capsys, Train, types=theirs).split())
    assert "TheirConfig: --width INT Of the network. (default: 3)" in text
    assert build("grassland --width 4", types=theirs).settings.learner_config.width == 4


def test_command_without_source_has_options_but_no_help(capsys):
    command = make_dataclass("Nameless", [("width", int, 3)])
    assert build("--width 4", command) == command(4)
    assert "--width INT\n        (default: 3)" in help_text(capsys, command)


def test_commands_are_listed_with_their_sentences(capsys):
    about = {"train": "Train agents for a game", "crossplay": "Let everybody play, 100% of them"}
    options.print_commands(about, "Grow teams.")
    text = capsys.readouterr().out
    assert text.startswith("usage: epcx COMMAND [options]\n\nGrow teams.\n")
    assert "  train          Train agents for a game\n" in text
    assert "  crossplay      Let everybody play, 100% of them\n" in text
    assert text.splitlines()[-1].split()[:2] == ["-V,", "--version"]


def test_unknown_command_names_the_nearest_one():
    commands = ("train", "crossplay")
    options.check_command("train", commands)
    for name, sentence in {
        "trian": "unknown command 'trian': did you mean train?",
        "fly": "unknown command 'fly' (epcx --help tells more)",
        "--verison": ("unknown option --verison: did you mean --version? (epcx --help tells more)"),
    }.items():
        with pytest.raises(InputError) as refused:
            options.check_command(name, commands)
        assert str(refused.value) == sentence


def test_run_runs_the_command(capsys, monkeypatch):
    options.run(Train, ["grassland"])
    assert capsys.readouterr().out == "trains grassland\n"
    monkeypatch.setattr(sys, "argv", ["train.py", "food"])
    options.run(Train)
    assert capsys.readouterr().out == "trains food\n"


def test_run_prints_help(capsys):
    options.run(Train, ["--help"])
    assert capsys.readouterr().out.startswith("usage: epcx train GAME [options]\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["grassland", "--seed"], "option --seed needs a value"),
        (["chess"], "unknown game 'chess'"),
    ],
)
def test_run_ends_bad_input_with_exit_code_2(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as stopped:
        options.run(Train, arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"epcx train: {sentence}\n"


def test_program_of_its_own_is_called_by_its_file(tmp_path):
    program = tmp_path / "measure.py"
    program.write_text(
        "from dataclasses import dataclass\n"
        "from epcx import options\n"
        "@dataclass(frozen=True)\n"
        "class Benchmark:\n"
        "    seconds: float = 2.0\n"
        "options.run(Benchmark)\n"
    )
    ran = subprocess.run([sys.executable, program, "x"], capture_output=True, text=True)
    expected = "measure.py: unexpected argument 'x' (measure.py --help tells more)\n"
    assert (ran.returncode, ran.stderr) == (2, expected)


def test_import_needs_no_jax():
    code = "import sys, epcx.options; print('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "False\n"
