"""Settings in a file: below the command line, above the preset, and checked."""

import json
from dataclasses import replace

import pytest

import epcx
from epcx.cli import main
from epcx.errors import InputError
from epcx.presets import make_config
from epcx.runs.run import RunFolder

SMOKE = make_config("grassland", "vanilla-pc", "smoke", learner="matd3")


@pytest.fixture
def config_file(tmp_path):
    """The config.json of a run."""
    changed = replace(SMOKE, seed=7, learner_config=replace(SMOKE.learner_config, gamma=0.5))
    run = RunFolder.create(tmp_path / "run", changed.to_json(), {"epcx": epcx.__version__})
    return run.path / "config.json"


def planned(capsys, *words):
    main(["train", *map(str, words), "--engine", "ray", "--dry-run", "--json"])
    found = json.loads(capsys.readouterr().out)
    del found["plan"]
    return found


def test_config_of_a_run_gives_the_same_settings_again(config_file, capsys):
    run = RunFolder.open(config_file.parent)
    assert planned(capsys, "--config", config_file) == run.settings
    assert epcx.configure(config=config_file).to_json() == run.settings


def test_options_override_the_file(config_file, capsys):
    words = ("--config", config_file, "--seed", "3", "--gamma", "0.9", "--population", "1-1", "2-2")
    found = planned(capsys, *words)
    expected = dict(RunFolder.open(config_file.parent).settings)
    expected |= {"seed": 3, "population": ["1-1", "2-2"]}
    expected["learner_config"] = {**expected["learner_config"], "gamma": 0.9}
    assert found == expected
    same = epcx.configure(config=config_file, seed=3, gamma=0.9, population=["1-1", "2-2"])
    assert same.to_json() == expected


def test_game_on_the_command_line_overrides_the_file(config_file):
    assert epcx.configure("adversarial-battle", config=config_file).game == "adversarial-battle"


def test_settings_that_a_file_lacks_are_those_of_the_preset(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"game": "grassland", "sets": 3, "learner_config": {"gamma": 0.5}}')
    quick = make_config("grassland", preset="quick")
    expected = replace(quick, sets=3, learner_config=replace(quick.learner_config, gamma=0.5))
    assert epcx.configure(config=path, preset="quick") == expected
    assert epcx.configure(config=path).episodes == 100_000


def test_help_shows_the_settings_of_the_file(config_file, capsys):
    main(["train", "--config", str(config_file), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Fixes everything: the same seed gives the same weights. (default: 7)" in shown
    assert "--target-noise" in shown  # of MATD3


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "mine.json is damaged: it is not JSON"),
        ("[]", "mine.json is no config file: it is no object"),
        ("{}", "mine.json has no game: give one"),
        ('{"game": "grasland"}', "unknown game 'grasland': did you mean grassland?"),
        ('{"game": "grassland", "sed": 1}', "'sed' is unknown: did you mean seed?"),
        ('{"game": "grassland", "seed": "1"}', "seed is '1', not a whole number"),
        ('{"game": "grassland", "population": "3-2"}', "population is '3-2', not a list"),
        ('{"game": "grassland", "seed": -1}', "seed -1 is too small: a whole number from 0"),
        ('{"game": "grassland", "learner_config": 3}', "learner_config is no object"),
        (
            '{"game": "grassland", "learner_config": {"gama": 1}}',
            "'gama' in learner_config is unknown: did you mean gamma?",
        ),
        (
            '{"game": "grassland", "learner_config": {"gamma": "high"}}',
            "learner_config.gamma is 'high', not a number",
        ),
        ('{"game": "grassland", "hyper": {}}', "was written by epcx 0.1"),
        ('{"game": "grassland", "format": "epcx run 9"}', "has format 'epcx run 9'"),
    ],
)
def test_bad_file_is_refused_in_one_sentence(error_of, tmp_path, content, sentence):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert sentence in error_of("train", "--config", path)
    with pytest.raises(InputError):
        epcx.configure(config=path)


def test_file_that_cannot_be_read_is_refused(error_of, tmp_path):
    assert "there is no config file nowhere.json" in error_of("train", "--config", "nowhere.json")
    assert "it is not a regular file" in error_of("train", "--config", tmp_path)


def test_settings_of_another_learner_are_refused(error_of, config_file):
    message = error_of("train", "--config", config_file, "--learner", "mappo")
    assert "has settings of the learner matd3, which do not go with mappo" in message


def test_game_is_needed_without_a_file(error_of):
    assert "train needs GAME" in error_of("train")
    with pytest.raises(InputError, match="no game is given"):
        epcx.configure()
