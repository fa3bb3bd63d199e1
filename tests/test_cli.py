"""The command line: what it shows, and one sentence with exit code 2 for whatever is wrong."""

import json
import os
import subprocess
import sys

import pytest

import epcx
from epcx import commands, games, learners, options
from epcx.cli import main
from epcx.errors import one_line
from epcx.reports import replay
from tests.processes import run_epcx

OTHER_LEARNER = "tests.execution.toy:RandomSearch"


def test_package_shows_its_public_names_and_exports_each():
    assert dir(epcx) == sorted(epcx.__all__)
    assert {"train", "resume", "load", "evaluate", "crossplay", "report"} < set(dir(epcx))
    for name in dir(epcx):
        assert getattr(epcx, name) is not None, name
    with pytest.raises(AttributeError, match="module 'epcx' has no attribute 'trian'"):
        _ = epcx.trian


def test_package_is_imported_without_jax():
    code = "import sys, epcx; dir(epcx); print('jax' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["trian"]])
def test_what_needs_no_jax_does_not_import_it(arguments):
    code = f"import sys; from epcx.cli import main; main({arguments})"
    check = "import atexit, sys; atexit.register(lambda: print('jax' in sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", f"{check}; {code}"], capture_output=True, text=True, check=False
    )
    assert shown.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", commands.MODULES)
def test_help_lists_the_first_sentence_of_every_command(name):
    about = " ".join(commands.find(name).__doc__.split())
    summary = commands.summaries()[name]
    assert about.startswith(f"{summary}.")
    assert summary[0].isupper()


def test_games_lists_every_game_role_and_stage(capsys):
    main(["games"])
    shown = capsys.readouterr().out
    for game in map(games.find, games.names()):
        assert game.name in shown
        assert all(role.name in shown for role in game.roles)
        assert all(stage in shown for stage in game.stages)


def test_games_as_json(capsys):
    main(["games", "--json"])
    listed = json.loads(capsys.readouterr().out)
    names = [game["name"] for game in listed]
    assert names == games.names()
    assert names[:4] == ["grassland", "adversarial-battle", "food-collection", "predator-prey"]
    assert listed[0]["roles"] == ["sheep", "wolf"]
    assert listed[0]["actions"] == [5, 5]


@pytest.mark.parametrize("suffix", [".html", ".gif", ".png", ".json"])
def test_replay_writes_each_format(tmp_path, capsys, suffix):
    out = tmp_path / f"episode{suffix}"
    main(["replay", "grassland", "--population", "3-2", "--out", str(out)])
    assert out.stat().st_size > 1000
    assert f"wrote {out}" in capsys.readouterr().out


def test_replay_reads_a_recorded_replay(tmp_path):
    saved, page = tmp_path / "a.json", tmp_path / "a.html"
    main(["replay", "food-collection", "--population", "3", "--seed", "5", "--out", str(saved)])
    main(["replay", str(saved), "--title", "Third time <lucky>", "--out", str(page)])
    assert replay.load(saved).steps == 25
    assert "Third time &lt;lucky&gt;" in page.read_text()


def test_replay_seed_fixes_the_episode(tmp_path):
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    for path, seed in zip(paths, ("1", "1", "2"), strict=True):
        main(["replay", "predator-prey", "--players", "random", "--seed", seed, "--out", str(path)])
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replay", "chess"], "epcx: unknown game 'chess': the games are grassland, "),
        (["replay", "grassland", "--population", "0-2"], "epcx: population '0-2' is malformed"),
        (["replay", "grassland", "--population", "3"], "has 2 roles (sheep-wolf)"),
        (
            ["replay", "grassland", "--out", "film.avi"],
            "its name must end with .html, .gif, .mp4, .png or .json",
        ),
        (["replay", "grassland", "--out", "no/such/folder/a.html"], "there is no folder"),
        (["replay", "grassland", "--seed", "-1"], "seed -1 is too small: a whole number"),
        (["replay", "grassland", "--population", "9" * 5000 + "-1"], "is too large: at most 10000"),
        (["evaluate", "x" * 300], ": file name too long"),
        (["evaluate", f"./{'x' * 300}/b"], ": file name too long"),
        (["replay", "x" * 5000], "x: file name too long"),
        (["train", "x" * 5000], "epcx: unknown game 'xxx"),
        (["train", "grassland", "--method", "x" * 5000], "epcx: unknown method 'xxx"),
        (["train", "grassland", "--learner", "x" * 5000], "epcx: unknown learner 'xxx"),
        (["x" * 5000], "epcx: unknown command 'xxx"),
        (["evaluate", "a\nb\x1b[2J"], "epcx: a?b?[2J is not a run"),
        (["train", "grassland", "--learning-rate", "1e-45"], "learning-rate 1e-45 is not a number"),
        (["train", "grassland", "--logit-penalty", "1e300"], "logit-penalty 1e+300 is not 0 or a"),
        (["replay", "grassland", "--out", "x" * 300 + ".html"], "file name too long"),
        (["replay", "grassland", "--out", "a/" * 300 + "b.html"], "at most 200 folders in one"),
        (
            ["train", "grassland", "--buffer-size", "9" * 400, "--dry-run"],
            "from 1 to 1000000000000",
        ),
        (
            ["train", "grassland", "--fitness-rounds", "9" * 99, "--dry-run"],
            "is too large: a whole number from 1 to 1000000000",
        ),
        (["replay", "grassland", "--title", "\x1b[2J"], "title contains control characters"),
        (["replay", "missing.json"], "cannot read the replay missing.json: no such file"),
        (["fly"], "epcx: unknown command 'fly' (epcx --help tells more)"),
        (["trian", "grassland"], "epcx: unknown command 'trian': did you mean train?"),
        (["--verison"], "epcx: unknown option --verison: did you mean --version?"),
        (["replay"], "epcx: replay needs GAME|RUN|FILE (epcx replay --help tells more)"),
        (
            ["replay", "grassland", "--players", "gods"],
            "epcx: option --players takes scripted or random, not 'gods'",
        ),
        (["train", "graslnad"], "epcx: unknown game 'graslnad': did you mean grassland?"),
        (["train", "grassland", "--method", "vanila-pc"], "did you mean vanilla-pc?"),
        (["train", "grassland", "--learner", "maddgp"], "did you mean maddpg?"),
        (
            ["train", "grassland", "--preset", "quik"],
            "takes paper, best, large, quick or smoke, not 'quik': did you mean quick?",
        ),
        (["train", "grassland", "--network", "atention"], "did you mean attention?"),
        (["train", "grassland", "--track", "tensorbord"], "did you mean tensorboard?"),
        (["completion", "bahs"], "SHELL takes bash, zsh or fish, not 'bahs': did you mean bash?"),
        (["games", "x"], "epcx: unexpected argument 'x' (epcx games --help tells more)"),
        (
            ["train", "grassland", "--batchsize", "3"],
            "epcx: unknown option --batchsize: did you mean --batch-size? "
            "(epcx train --help tells more)",
        ),
        (["train", "grassland", "--episodes", "1e3"], "--episodes takes a whole number, not '1e3'"),
        (["train", "--preset", "smoke"], "epcx: train needs GAME"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(error_of, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    message = error_of(*arguments)
    assert sentence in message
    assert len(message) < 420
    assert list(tmp_path.iterdir()) == []


def test_damaged_replay_file_is_refused(error_of, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "is not valid JSON" in error_of("replay", broken)


@pytest.mark.parametrize(
    "option", [("--seed", "3"), ("--players", "random"), ("--population", "3-2")]
)
def test_recorded_replay_takes_no_options_of_playing(error_of, tmp_path, option):
    message = error_of("replay", tmp_path / "a.json", *option)
    assert f"{option[0]} {option[1]} does not go with the recorded replay" in message


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_all_commands(capsys, arguments):
    main(arguments)
    shown = capsys.readouterr().out
    for command in ("games", "train", "resume", "evaluate", "crossplay", "report", "replay"):
        assert f"\n  {command} " in shown


def test_train_help_shows_the_defaults_of_the_preset(capsys):
    def help_text(*arguments):
        main(["train", "grassland", *arguments, "--help"])
        return " ".join(capsys.readouterr().out.split())

    quick = help_text("--preset", "quick")
    assert "one for each stage of a curriculum. (default: 2-1 4-2 8-4)" in quick
    assert "or of all. (default: 5000)" in quick
    assert "Transitions per update. (default: 128)" in quick
    scratch = help_text("--preset", "quick", "--method", "maddpg")
    assert "or of all. (default: 5000)" in scratch
    assert "as in Yang et al. 2018). (default: mlp)" in scratch
    assert "Transitions per update. (default: 1024)" in help_text()


@pytest.mark.parametrize(
    ("game", "defaults"),
    [
        ("grassland", ("or of all. (default: 100000)", "of a curriculum. (default: 50000)")),
        ("food-collection", ("or of all. (default: 50000)", "one stage to the next. (default: 3)")),
    ],
)
def test_train_help_shows_the_schedule_of_the_game(capsys, game, defaults):
    for words in ([game, "--help"], ["--help", game], ["--batch-size", "3", game, "-h"]):
        main(["train", *words])
        shown = " ".join(capsys.readouterr().out.split())
        assert all(default in shown for default in defaults), words


def test_train_help_shows_the_defaults_of_a_learner_and_its_preset(capsys):
    main(["train", "grassland", "--learner", "mappo", "--preset", "quick", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    quick = learners.MAPPO.presets["quick"]
    assert f"--num-envs INT {options.field_docs(type(quick))['num_envs']} (default: " in shown
    assert f"(default: {quick.num_envs})" in shown


def test_train_help_shows_the_options_of_the_learner(capsys):
    main(["train", "grassland", "--learner", OTHER_LEARNER, "--help"])
    shown = capsys.readouterr().out
    assert "--step FLOAT" in shown
    assert "--batch-size" not in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--learner nope",
            "unknown learner 'nope': the learners are maddpg, matd3, mappo, ippo, or",
        ),
        ("--learner nope:Learner", "there is no module 'nope'"),
        (
            f"--method att-maddpg --learner {OTHER_LEARNER}",
            f"learner {OTHER_LEARNER} does not go with method att-maddpg, which has maddpg: use",
        ),
        (
            "--method att-maddpg --network mlp",
            "network mlp does not go with method att-maddpg, which has attention",
        ),
        (
            "--network mlp",
            "method epc grows the population, but mlp networks are made for one population",
        ),
        ("--clip-per layer", "option --clip-per takes network or variable, not 'layer'"),
        (f"--learner {OTHER_LEARNER} --batch-size 3", "unknown option --batch-size"),
    ],
)
def test_learners_and_networks_that_do_not_go_with_the_method_are_refused(
    error_of, tmp_path, options, sentence
):
    out = tmp_path / "run"
    assert sentence in error_of("train", "food-collection", *options.split(), "--out", out)
    assert not out.exists()


def test_games_fit_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    main(["games"])
    shown = capsys.readouterr().out
    assert "adversarial-battle" in shown
    assert "24-16" in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_full_disk_is_reported_in_one_sentence():
    with open("/dev/full", "w") as full:
        result = run_epcx("games", stdout=full)
    assert result.returncode == 1
    assert result.stderr == "epcx: cannot write the output: no space left on device\n"


def test_failure_that_names_a_file_is_not_blamed_on_the_output(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "secrets\n.json")

    monkeypatch.setattr(games, "names", fail)
    with pytest.raises(SystemExit) as stopped:
        main(["games"])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "epcx: secrets?.json: permission denied\n"


@pytest.mark.parametrize("arguments", [["games", "--json"], ["games"], ["train", "--help"]])
def test_reader_that_has_gone_is_no_error(arguments):
    with broken_pipe() as pipe:
        result = run_epcx(*arguments, stdout=pipe)
    assert (result.returncode, result.stderr) == (0, "")


def test_job_that_cannot_show_its_progress_has_not_succeeded(tmp_path):
    with broken_pipe() as pipe:
        code = "import sys; from epcx.cli import main; sys.argv[1:] = ['games']; main()"
        result = subprocess.run([sys.executable, "-c", code], stdout=pipe, stderr=pipe)
    assert result.returncode == 141


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def test_terminal_without_unicode_gets_question_marks():
    result = run_epcx("games", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "grassland" in result.stdout
    assert "? sheep" in result.stdout


def test_version_as_a_module():
    result = run_epcx("--version")
    assert result.stdout.strip() == f"epcx {epcx.__version__}"


def test_messages_are_one_line_of_limited_length():
    assert one_line("a\nb\tc\u2028d\x1b") == "a?b?c?d?"
    assert one_line("Größe 3·2") == "Größe 3·2"
    short = one_line("begin " + "x" * 5000 + " end")
    assert short.startswith("begin x")
    assert short.endswith("x end")
    assert len(short) < 420
