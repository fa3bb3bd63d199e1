"""Trackers: what TensorBoard and wandb get, and that none of them stops a training."""

import io
import json
import struct
import sys
import time

import numpy as np
import pytest
from PIL import Image

import epcx
from epcx import tracking
from epcx.errors import InputError, Notice
from epcx.runs.run import RunFolder
from epcx.tracking import Ending, Tracking

ROWS = [
    {"stage": 0, "population": "2-1", "match": match, "episodes": 100, "reward/sheep": 1.5 + match}
    for match in range(2)
]
FITNESS = {"stage": 0, "population": "2-1", "episodes": 100, "fitness/sheep": 3.0}
RESULT = {"ended": "finished", "episodes_along_a_lineage": 100}


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", {"game": "grassland", "seed": 3}, {})


@pytest.fixture
def ending():
    path = io.BytesIO()
    Image.new("RGB", (6, 4), "#ff0000").save(path, "PNG")
    return Ending(RESULT, "<p>an episode</p>", path.getvalue())


def follow(run, names, rows, ending=None):
    with Tracking(names) as trackers:
        trackers.start(run)
        for some in rows:
            trackers.log(some)
        if ending is not None:
            trackers.show(lambda: ending)


def events(folder):
    """What is in the event files of a folder: records with a length, two checksums and a proto."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return [(event.step, value) for event in found for value in event.summary.value]


def test_tensorboard_has_a_curve_per_match_along_the_lineage(run, ending):
    follow(run, ("tensorboard",), [ROWS, [FITNESS]], ending)
    for match in range(2):
        ((step, value),) = events(run.path / "tensorboard" / "2-1" / str(match))
        assert (step, value.tag, value.simple_value) == (100, "reward/sheep", 1.5 + match)
    whole = {value.tag: (step, value) for step, value in events(run.path / "tensorboard")}
    assert whole["fitness/sheep"][1].simple_value == 3.0
    (config,) = whole["config/text_summary"][1].tensor.string_val
    assert '"seed": 3' in config.decode()
    step, picture = whole["replay"]
    assert (step, picture.image.width, picture.image.height) == (100, 6, 4)


def test_tensorboard_goes_on_where_a_resumed_training_does(run):
    follow(run, ("tensorboard",), [ROWS[:1]])
    time.sleep(1.1)  # event files are named after the second
    later = {**ROWS[0], "episodes": 200}
    follow(run, (), [[later]])
    found = events(run.path / "tensorboard" / "2-1" / "0")
    assert [step for step, _ in found] == [100, 200]


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("WANDB_RUN_ID", "WANDB_PROJECT", "WANDB_NAME", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def records(run):
    """What wandb has written offline, one list for every time that the run was followed."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # its process may write the last records after a run is finished
    found = []
    for path in sorted(run.path.glob("wandb/offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        found.append([])
        while (data := store.scan_data()) is not None:
            found[-1].append(Record.FromString(data))
    return found


def history(followed):
    points = [
        record.history for record in followed if record.WhichOneof("record_type") == "history"
    ]
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in point.item}
        for point in points
    ]


def test_wandb_offline_has_config_metrics_and_the_replay_and_is_resumed(run, offline, ending):
    follow(run, ("wandb",), [ROWS])
    follow(run, (), [[FITNESS]], ending)
    first, second = records(run)
    ids = {
        record.run.run_id for record in first + second if record.WhichOneof("record_type") == "run"
    }
    assert ids == {json.loads((run.path / "tracking.json").read_text())["wandb_id"]}
    (begun,) = [r.run for r in first if r.WhichOneof("record_type") == "run"][:1]
    assert begun.project == "epcx"
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (config["game"], config["seed"]) == ("grassland", 3)
    (point,) = history(first)
    assert point["episodes"] == 100
    assert point["reward/sheep"] == 2.0  # the mean over two matches
    assert point["2-1/match-1/reward/sheep"] == 2.5
    assert history(second)[0]["fitness/sheep"] == 3.0
    (page,) = run.path.glob("wandb/offline-run-*/files/media/html/replay*.html")
    assert page.read_text() == ending.page
    kinds = {record.request.WhichOneof("request_type") for record in second}
    assert "log_artifact" in kinds or any(r.WhichOneof("record_type") == "artifact" for r in second)


def test_tracker_that_fails_is_left_out_with_one_notice(run, monkeypatch):
    class Broken:
        def __init__(self, *_):
            pass

        def log(self, rows):
            raise ConnectionError("the network is gone\nfor ever")

        show = close = log

    monkeypatch.setitem(tracking.TRACKERS, "wandb", Broken)
    with pytest.warns(Notice) as notices:
        follow(run, ("wandb", "tensorboard"), [ROWS, ROWS, [FITNESS]])
    (notice,) = notices
    sentence = "wandb follows this training no longer: ConnectionError: the network is gone"
    assert str(notice.message) == sentence
    assert len(events(run.path / "tensorboard" / "2-1" / "0")) == 2


def test_damaged_file_of_trackers_does_not_stop_a_resumed_training(run):
    (run.path / "tracking.json").write_text('{"trackers": ["smoke signals"]}')
    with pytest.warns(Notice, match="tracking.json is damaged"):
        follow(run, (), [ROWS])


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_missing_package_names_the_extra(error_of, tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, tracking.PACKAGES[name], None)
    words = f"train food-collection --preset smoke --track {name} --out".split()
    message = error_of(*words, tmp_path / "run")
    assert message == f"epcx: {name} needs the package {tracking.PACKAGES[name]}: " + (
        "pip install 'epcx[track]'"
    )
    assert not (tmp_path / "run").exists()


def test_unknown_tracker_is_refused():
    with pytest.raises(InputError, match="unknown tracker 'wandbb': did you mean wandb"):
        Tracking(("wandbb",))


def test_training_is_followed_to_its_replay(tmp_path):
    options = {"preset": "smoke", "learner": "tests.execution.toy:RandomSearch"}
    settings = {**options, "population": ["1", "2"], "track": ("tensorboard",)}
    run = epcx.train(
        "food-collection", out=tmp_path / "run", callback=epcx.NullCallback(), **settings
    )
    logged = {(row["population"], row["match"]): row for row in run.metrics()}
    for (population, match), last in logged.items():
        found = events(run.path / "tensorboard" / population / str(match))
        rewards = [(step, v.simple_value) for step, v in found if v.tag == "reward/collector"]
        assert rewards[-1][0] == last["episodes"]
        assert np.float32(last["reward/collector"]) == np.float32(rewards[-1][1])
    whole = {value.tag: value for _, value in events(run.path / "tensorboard")}
    best = run.result["best"]["collector"]["fitness"]
    assert whole["fitness/collector"].simple_value == np.float32(best)
    assert whole["replay"].image.width > whole["replay"].image.height
