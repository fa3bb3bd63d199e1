"""The command line: what it shows, and one sentence with exit code 2 for whatever is wrong."""

import json
import os
import subprocess
import sys

import pytest

import epcx
from epcx import games
from epcx.cli import main
from epcx.reports import replay


def fails(capsys, *arguments):
    """The sentence that a wrong command line is answered with."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    message = capsys.readouterr().err.strip()
    assert "Traceback" not in message
    return message


def test_games_lists_every_game_role_and_stage(capsys):
    main(["games"])
    shown = capsys.readouterr().out
    for game in games.GAMES.values():
        assert game.name in shown
        assert all(role.name in shown for role in game.roles)
        assert all(stage in shown for stage in game.stages)


def test_games_as_json(capsys):
    main(["games", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [game["name"] for game in listed] == list(games.GAMES)
    assert listed[0]["roles"] == ["sheep", "wolf"]


@pytest.mark.parametrize("suffix", [".html", ".gif", ".png", ".json"])
def test_replay_writes_each_format(tmp_path, capsys, suffix):
    out = tmp_path / f"episode{suffix}"
    main(["replay", "grassland", "--population", "3-2", "--out", str(out)])
    assert out.stat().st_size > 1000
    assert f"wrote {out}" in capsys.readouterr().out


def test_a_saved_replay_can_be_shown_again(tmp_path):
    saved, page = tmp_path / "a.json", tmp_path / "a.html"
    main(["replay", "food-collection", "--population", "3", "--seed", "5", "--out", str(saved)])
    main(["replay", str(saved), "--title", "Third time <lucky>", "--out", str(page)])
    assert replay.load(saved).steps == 25
    assert "Third time &lt;lucky&gt;" in page.read_text()


def test_the_seed_fixes_the_episode(tmp_path):
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    for path, seed in zip(paths, ("1", "1", "2"), strict=True):
        main(["replay", "predator-prey", "--players", "random", "--seed", seed, "--out", str(path)])
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "chess"], "epcx: unknown game 'chess': the games are grassland, "),
        (["replay", "grassland", "--population", "0-2"], "epcx: population '0-2' is malformed"),
        (["replay", "grassland", "--population", "3"], "has 2 roles (sheep-wolf)"),
        (
            ["replay", "grassland", "--out", "film.avi"],
            "its name must end with .html, .gif, .png or .json",
        ),
        (["replay", "grassland", "--out", "no/such/folder/a.html"], "there is no folder"),
        (["replay", "grassland", "--seed", "-1"], "seed -1 is not a whole number"),
        (["replay", "grassland", "--population", "9" * 5000 + "-1"], "is malformed"),
        (["replay", "grassland", "--out", "x" * 300 + ".html"], "file name too long"),
        (["replay", "grassland", "--title", "\x1b[2J"], "title contains control characters"),
        (["replay", "missing.json"], "cannot read the replay missing.json: no such file"),
    ],
)
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    message = fails(capsys, *arguments)
    assert says in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_replay_file(capsys, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "is not valid JSON" in fails(capsys, "replay", str(broken))
    message = fails(capsys, "replay", str(broken), "--population", "3-2")
    assert "--population 3-2 does not go with" in message


@pytest.mark.parametrize(
    "arguments", [["fly"], ["replay"], ["replay", "grassland", "--players", "gods"], ["games", "x"]]
)
def test_unknown_words_end_with_exit_code_2(capsys, arguments):
    message = fails(capsys, *arguments)
    assert message.startswith("epcx: ")
    assert "\n" not in message


def test_a_recorded_replay_takes_no_options_of_playing(capsys, tmp_path):
    for option in (["--seed", "3"], ["--players", "random"], ["--population", "3-2"]):
        message = fails(capsys, "replay", str(tmp_path / "a.json"), *option)
        assert f"{option[0]} {option[1]} does not go with" in message


def test_without_arguments_it_helps(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 0
    assert "replay" in capsys.readouterr().out


def test_a_narrow_terminal_still_shows_everything(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    main(["games"])
    shown = capsys.readouterr().out
    assert "adversarial-battle" in shown
    assert "24-16" in shown


def run_module(*arguments, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", "epcx", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def test_output_that_cannot_be_written_is_said_in_one_sentence():
    with open("/dev/full", "w") as full:
        result = run_module("games", stdout=full)
    assert result.returncode == 1
    assert result.stderr == "epcx: cannot write the output: no space left on device\n"


def test_a_terminal_without_unicode():
    result = run_module("games", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "grassland" in result.stdout


def test_as_a_module():
    result = run_module("--version")
    assert result.stdout.strip() == f"epcx {epcx.__version__}"
