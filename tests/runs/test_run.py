"""Run folders: nothing is overwritten, weights round-trip, and damage is reported."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import epcx
from epcx import games, teams
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError
from epcx.runs import provenance
from epcx.runs.run import RunFolder
from epcx.runs.weights import load_weights

GAME = games.make("grassland", "2-1")
CONFIG = TrainConfig("grassland", "att-maddpg", population=("2-1",), episodes=2000, matches=2)


@pytest.fixture(scope="module")
def learner():
    return CONFIG.make_learner(GAME)


@pytest.fixture(scope="module")
def agents(learner):
    """Of two matches."""
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.device_get(jax.jit(jax.vmap(learner.init))(keys))


@pytest.fixture
def run(tmp_path, learner, agents):
    folder = tmp_path / "runs" / "first"
    run = RunFolder.create(folder, CONFIG.to_json(), provenance.describe())
    save_agents(run, learner, agents)
    yield run
    run.unlock()


def save_agents(run, learner, agents):
    """All matches, as the sets that a stage has kept."""
    stage = str(learner.game.population)
    for match in range(len(jax.tree.leaves(agents)[0])):
        for role, members in learner.game.members.items():
            chosen = jax.tree.map(lambda x, m=match, s=members: x[m, s], agents)
            metadata = teams.weights_metadata(learner, role)
            run.save_agents(stage, match, role, chosen, metadata)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def test_saved_agents_are_loaded_unchanged(run, learner, agents):
    like = jax.eval_shape(learner.init, jax.random.key(0))
    for match in range(2):
        for role, members in GAME.members.items():
            path = run.weights("2-1", match, role)
            found = load_weights(path, like, teams.weights_metadata(learner, role))
            for a, b in zip(leaves(found), leaves(agents), strict=True):
                np.testing.assert_array_equal(a, b[match, members])


def test_agents_fill_several_seats_of_a_larger_population(run, agents):
    team = teams.open_team(run, "5-2")
    assert team.stage == "2-1"
    players = [team.players[role].agents for role in ("sheep", "wolf")]
    found = jax.tree.map(lambda *x: np.concatenate(x), *players)
    for a, b in zip(leaves(found), leaves(agents.policy), strict=True):
        np.testing.assert_array_equal(a, b[0][[0, 1, 0, 1, 0, 2, 2]])


def test_config_holds_format_settings_and_provenance(run):
    config = json.loads((run.path / "config.json").read_text())
    assert config["format"] == "epcx run 2"
    assert config["game"] == "grassland"
    assert config["learner"] == "maddpg"
    assert config["population"] == ["2-1"]
    assert config["learner_config"]["learning_rate"] == 0.01
    assert config["provenance"]["jax"] == jax.__version__
    assert config["provenance"]["epcx"] == epcx.__version__
    assert {"commit", "python", "date", "device"} <= config["provenance"].keys()


def test_opened_run_has_the_settings_it_was_created_with(run):
    opened = RunFolder.open(run.path)
    assert opened.settings == run.settings == json.loads(json.dumps(CONFIG.to_json()))
    assert opened.provenance == run.provenance
    assert TrainConfig.of(opened) == CONFIG
    with pytest.raises(InputError, match=r"config.json is damaged: it has no 'colour'"):
        opened.setting("colour")


def test_create_refuses_an_existing_folder_and_leaves_it_unchanged(run):
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(run.path, {}, {})
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.parametrize("left", [(), ("lock",), ("lock", ".1234.tmp")])
def test_create_uses_the_folder_that_a_failed_start_has_left(tmp_path, left):
    for name in left:
        (tmp_path / name).touch()
    run = RunFolder.create(tmp_path, {}, {})
    assert RunFolder.open(tmp_path).config == run.config
    (tmp_path / "config.json").rename(tmp_path / "mine.txt")
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(tmp_path, {}, {})


def test_create_waits_for_no_other_process(tmp_path):
    run = RunFolder.create(tmp_path / "run", {}, {})
    (run.path / "config.json").unlink()  # as if it were about to be written
    with pytest.raises(InputError, match="in use by another process"):
        RunFolder.create(run.path, {}, {})


def test_metrics_are_json_lines_with_null_for_nan(run):
    run.append_metrics(
        [{"population": "2-1", "match": 0, "episodes": 4, "reward/sheep": float("nan")}]
    )
    run.append_metrics([{"population": "2-1", "match": 1, "episodes": 4, "reward/sheep": 1.5}])
    assert [row["reward/sheep"] for row in run.metrics()] == [None, 1.5]


def test_truncate_metrics_drops_later_lines(run):
    run.append_metrics([{"population": "2-1", "match": 0, "episodes": 4}])
    size = run.metrics_size()
    run.append_metrics([{"population": "2-1", "match": 0, "episodes": 8}])
    run.truncate_metrics(size)
    assert [row["episodes"] for row in run.metrics()] == [4]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "is not a run: it has no config.json"),
        ("{", "config.json is damaged: it is not JSON"),
        ("[]", "config.json is damaged: it holds no settings"),
        ("{}", "has format None, but this version reads 'epcx run 2'"),
        ('{"format": "epcx run 3"}', "has format 'epcx run 3', but this version reads"),
        ('{"hyper": {}}', "was written by epcx 0.1, whose settings have other names: train it"),
        ('{"format": "epcx run 2"}', "config.json is damaged: it has no 'learner'"),
    ],
)
def test_folder_that_is_no_readable_run_is_refused(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        teams.open_team(RunFolder.open(tmp_path))
    assert "\n" not in str(caught.value)


def test_run_of_a_newer_version_is_refused(run):
    newer = {**run.config, "provenance": {"epcx": "99.1.0"}, "unknown": 1}
    run.write("config.json", newer)
    with pytest.raises(InputError, match=r"was written by epcx 99.1.0, newer than this 0"):
        RunFolder.open(run.path)


def test_unknown_settings_are_refused(run):
    run.write("config.json", {**run.config, "unknown": 1})
    with pytest.raises(InputError, match="damaged, or of another version: unknown settings"):
        teams.open_team(RunFolder.open(run.path))


def test_weights_of_another_game_role_or_architecture_are_refused(run, learner):
    path = run.weights("2-1", 0, "sheep")
    like = jax.eval_shape(learner.init, jax.random.key(0))
    metadata = teams.weights_metadata(learner, "sheep")
    for wrong in ({"game": "food-collection"}, {"role": "wolf"}, {"architecture": "mlp"}):
        with pytest.raises(InputError, match=next(iter(wrong.values()))):
            load_weights(path, like, {**metadata, **wrong})
    mlp = TrainConfig("grassland", "maddpg").make_learner(GAME)
    like = jax.eval_shape(mlp.init, jax.random.key(0))
    with pytest.raises(InputError, match="another architecture or population"):
        load_weights(path, like, {})


def test_mlp_networks_fit_one_population_only(tmp_path):
    config = TrainConfig("grassland", "maddpg", population=("2-1",), episodes=2000)
    run = RunFolder.create(tmp_path / "mlp", config.to_json(), {})
    learner = config.make_learner(GAME)
    agents = jax.jit(jax.vmap(learner.init))(jax.random.split(jax.random.key(0), 1))
    save_agents(run, learner, agents)
    with pytest.raises(InputError, match="its networks fit no other population"):
        teams.open_team(run, "4-2")


def test_files_that_are_not_weights_are_refused(tmp_path):
    missing, garbage, foreign = (tmp_path / name for name in ("a", "b", "c"))
    garbage.write_bytes(b"not weights")
    save_file({"x": np.zeros(3)}, foreign)
    for path in (missing, garbage):
        with pytest.raises(InputError, match="cannot be read"):
            load_weights(path, {}, {})
    with pytest.raises(InputError, match="has format null"):
        load_weights(foreign, {}, {})


def test_failed_write_leaves_the_old_file_intact(run, monkeypatch):
    before = (run.path / "config.json").read_bytes()

    def disk_full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", disk_full)
    with pytest.raises(RunError, match=r"config.json cannot be written: no space left on device"):
        run.write("config.json", {})
    assert (run.path / "config.json").read_bytes() == before
    assert not list(run.path.glob("*.tmp"))


def test_lock_refuses_a_second_process(run):
    """Locks belong to open files, so that a second one in this process is refused as well."""
    with pytest.raises(InputError, match="in use by another process"):
        RunFolder.open(run.path).lock()
    run.unlock()
    second = RunFolder.open(run.path)
    second.lock()
    second.unlock()


def test_stages_are_sorted_by_population(run):
    for stage in ("24-16", "6-4", "12-8"):
        (run.path / "agents" / stage / "0").mkdir(parents=True)
    assert run.stages() == ["2-1", "6-4", "12-8", "24-16"]
    assert teams.stage_of(run, "6-4") == "6-4"
    assert teams.stage_of(run, "48-32") == "24-16"
    assert teams.stage_of(run, "48-32", "2-1") == "2-1"
    with pytest.raises(InputError, match=r"stage '7-7' .*: it has 2-1, 6-4, 12-8, 24-16"):
        teams.stage_of(run, "6-4", "7-7")


def test_digests_depend_on_settings_and_weights_only(run, learner, agents, tmp_path):
    twin = RunFolder.create(tmp_path / "twin", run.settings, {"date": "another"})
    assert twin.digests() != run.digests()
    save_agents(twin, learner, agents)
    twin.append_metrics([{"population": "2-1", "match": 0, "episodes": 4}])
    assert twin.digests() == run.digests()
    save_agents(twin, learner, jax.tree.map(lambda x: x + 1, agents))
    assert twin.digests() != run.digests()
