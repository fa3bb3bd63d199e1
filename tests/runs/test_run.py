"""Run folders: nothing is overwritten, weights come back as they went, damage is named."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from epcx import games, learners, trained
from epcx.errors import InputError, RunError
from epcx.runs.run import Run
from epcx.runs.weights import load_weights
from epcx.training import Training

GAME = games.make("grassland", "2-1")


@pytest.fixture(scope="module")
def learner():
    return learners.make("att-maddpg", GAME)


@pytest.fixture(scope="module")
def agents(learner):
    """Of two matches."""
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.device_get(jax.jit(jax.vmap(learner.init))(keys))


@pytest.fixture
def run(tmp_path, learner, agents):
    wanted = Training("grassland", "att-maddpg", ("2-1",), 2000, matches=2)
    run = Run.create(tmp_path / "runs" / "first", wanted.config())
    save_agents(run, learner, agents)
    yield run
    run.release()


def save_agents(run, learner, agents):
    """All matches, as the sets that a stage has kept."""
    stage = str(learner.game.population)
    for match in range(len(jax.tree.leaves(agents)[0])):
        for role, members in learner.game.members.items():
            chosen = jax.tree.map(lambda x, m=match, s=members: x[m, s], agents)
            run.save_agents(stage, match, role, chosen, trained.about(learner, role))


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def test_agents_come_back_as_they_went(run, learner, agents):
    like = jax.eval_shape(learner.init, jax.random.key(0))
    for match in range(2):
        for role, members in GAME.members.items():
            path = run.weights("2-1", match, role)
            found = load_weights(path, like, trained.about(learner, role))
            for a, b in zip(leaves(found), leaves(agents), strict=True):
                np.testing.assert_array_equal(a, b[match, members])


def test_agents_take_several_seats_in_a_larger_population(run, agents):
    team = trained.load(run.path, "5-2")
    assert team.stage == "2-1"
    sides = [team.role(role).side.agents for role in ("sheep", "wolf")]
    found = jax.tree.map(lambda *x: np.concatenate(x), *sides)
    for a, b in zip(leaves(found), leaves(agents.policy), strict=True):
        np.testing.assert_array_equal(a, b[0][[0, 1, 0, 1, 0, 2, 2]])


def test_the_config_says_everything(run):
    config = json.loads((run.path / "config.json").read_text())
    assert config["game"] == "grassland"
    assert config["population"] == ["2-1"]
    assert config["hyper"]["learning_rate"] == 0.01
    assert config["made_with"]["jax"] == jax.__version__
    assert {"commit", "python", "date", "device"} <= config["made_with"].keys()


def test_a_folder_that_exists_is_not_touched(run):
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        Run.create(run.path, {})
    assert (run.path / "config.json").read_bytes() == before


def test_metrics_are_lines_of_json_without_nan(run):
    run.log([{"population": "2-1", "match": 0, "episodes": 4, "reward/sheep": float("nan")}])
    run.log([{"population": "2-1", "match": 1, "episodes": 4, "reward/sheep": 1.5}])
    assert [row["reward/sheep"] for row in run.metrics()] == [None, 1.5]


def test_metrics_after_a_checkpoint_are_dropped(run):
    run.log([{"population": "2-1", "match": 0, "episodes": 4}])
    size = run.metrics_size()
    run.log([{"population": "2-1", "match": 0, "episodes": 8}])
    run.cut_metrics(size)
    assert [row["episodes"] for row in run.metrics()] == [4]


def test_tensorboard_gets_the_same_numbers(tmp_path):
    run = Run.create(tmp_path / "board", {}, tensorboard=True)
    run.log([{"population": "2-1", "match": 0, "episodes": 100, "reward/sheep": 1.5}])
    run.finish({})
    (events,) = (run.path / "tensorboard" / "2-1" / "0").iterdir()
    assert b"reward/sheep" in events.read_bytes()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [(None, "not a run"), ("{", "not JSON"), ("[]", "no settings"), ("{}", "has no 'hyper'")],
)
def test_what_is_no_run_is_named(tmp_path, config, complaint):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=complaint):
        trained.load(tmp_path)


def test_a_run_of_a_newer_version_is_refused(run):
    newer = {**run.config, "made_with": {"epcx": "99.1.0"}, "unheard_of": 1}
    run.write("config.json", newer)
    with pytest.raises(InputError, match=r"was written by epcx 99.1.0, newer than this 0"):
        trained.load(run.path)


def test_weights_of_another_game_role_or_architecture_are_refused(run, learner, tmp_path):
    path = run.weights("2-1", 0, "sheep")
    like = jax.eval_shape(learner.init, jax.random.key(0))
    right = trained.about(learner, "sheep")
    for wrong in ({"game": "food-collection"}, {"role": "wolf"}, {"architecture": "mlp"}):
        with pytest.raises(InputError, match=next(iter(wrong.values()))):
            load_weights(path, like, {**right, **wrong})
    flat = learners.make("maddpg", GAME)
    like = jax.eval_shape(flat.init, jax.random.key(0))
    with pytest.raises(InputError, match="another architecture or population"):
        load_weights(path, like, {})


def test_the_networks_of_maddpg_fit_one_population_only(tmp_path):
    wanted = Training("grassland", "maddpg", ("2-1",), 2000)
    run = Run.create(tmp_path / "flat", wanted.config())
    learner = wanted.learner(GAME)
    agents = jax.jit(jax.vmap(learner.init))(jax.random.split(jax.random.key(0), 1))
    save_agents(run, learner, agents)
    with pytest.raises(InputError, match="another architecture or population"):
        trained.load(run.path, "4-2")


def test_files_that_are_no_weights_are_named(tmp_path):
    missing, garbage, foreign = (tmp_path / name for name in ("a", "b", "c"))
    garbage.write_bytes(b"not weights")
    save_file({"x": np.zeros(3)}, foreign)
    for path in (missing, garbage):
        with pytest.raises(InputError, match="cannot be read"):
            load_weights(path, {}, {})
    with pytest.raises(InputError, match="has format null"):
        load_weights(foreign, {}, {})


def test_a_failed_write_leaves_the_old_file(run, monkeypatch):
    before = (run.path / "config.json").read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RunError, match=r"config.json cannot be written: no space left on device"):
        run.write("config.json", {})
    assert (run.path / "config.json").read_bytes() == before
    assert not list(run.path.glob("*.tmp"))


def test_a_second_process_is_refused(run):
    """Locks belong to open files, so that a second one in this process is refused as well."""
    with pytest.raises(InputError, match="in use by another process"):
        Run.open(run.path).hold()
    run.release()
    Run.open(run.path).hold()


def test_stages_are_in_the_order_of_their_size(run, learner):
    for stage in ("24-16", "6-4", "12-8"):
        (run.path / "agents" / stage / "0").mkdir(parents=True)
    assert run.stages() == ["2-1", "6-4", "12-8", "24-16"]
    assert trained.stage_of(run, "6-4") == "6-4"
    assert trained.stage_of(run, "48-32") == "24-16"
    assert trained.stage_of(run, "48-32", "2-1") == "2-1"
    with pytest.raises(InputError, match=r"stage '7-7' .*: it has 2-1, 6-4, 12-8, 24-16"):
        trained.stage_of(run, "6-4", "7-7")


def test_the_digest_is_about_results_only(run, learner, agents, tmp_path):
    twin = Run.create(tmp_path / "twin", run.config)
    assert twin.digests() != run.digests()
    save_agents(twin, learner, agents)
    twin.log([{"population": "2-1", "match": 0, "episodes": 4}])
    assert twin.digests() == run.digests()
    save_agents(twin, learner, jax.tree.map(lambda x: x + 1, agents))
    assert twin.digests() != run.digests()
