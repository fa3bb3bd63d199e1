"""Completions, asked for as bash does when somebody presses Tab."""

import subprocess

import pytest

from epcx import commands, completion, learners, options
from epcx.commands.train import Train

PRESS_TAB = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p epcx | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "epcx.bash"
    path.write_text(completion.script("bash"))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tr", {"train"}),
        ("re", {"resume", "report", "reproduce", "replay"}),
        ("", {*commands.MODULES, "-h", "--help", "--version"}),
        ("train gr", {"grassland"}),
        ("train --seed 3 food", {"food-collection"}),
        ("train grassland --pre", {"--preset", "--precision"}),
        ("train grassland --preset ", {"paper", "best", "large", "quick", "smoke"}),
        ("train grassland --method vanilla", {"vanilla-pc"}),
        ("train grassland --learner ma", {"maddpg", "matd3", "mappo"}),
        ("train grassland --minib", {"--minibatches"}),  # of MAPPO
        ("train grassland --network m", {"mlp", "mean-field", "mean-field-local"}),
        ("train grassland --track wandb ten", {"tensorboard"}),
        ("train grassland --seed ", set()),
        ("train grassland --no-js", {"--no-json"}),
        ("train --config conf", {"config.json"}),
        ("evaluate ru", {"run", "rules"}),
        ("replay pred", {"predator-prey"}),
        ("replay run --players ", {"scripted", "random"}),
        ("completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_offers_what_fits(script, tmp_path, words, offered):
    for name in ("run", "rules"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.json").touch()
    line = ["epcx", *words.split(" ")]
    shown = subprocess.run(
        ["bash", "-c", PRESS_TAB, "bash", script, *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    assert set(shown.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_all_commands_and_options(shell):
    text = completion.script(shell)
    flag = "--{}[" if shell == "zsh" else " -l {} "
    for command in commands.MODULES:
        assert command in text
    for option in options.options_of(Train, {"learner_config": learners.MAPPOConfig}):
        if not option.positional:
            assert flag.format(option.flags[0][2:]) in text


def test_words_that_a_shell_would_execute_are_left_out(monkeypatch):
    monkeypatch.setattr(completion.games, "names", lambda: ["chess", "$(reboot)", "a b"])
    (game, *_) = completion.completions("train", completion.value_words())
    assert game.words == ("chess",)
