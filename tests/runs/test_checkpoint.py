"""Checkpoints: writing is atomic, damage is noticed, and the last two are kept."""

import hashlib
import json
import resource
import shutil
import signal

import numpy as np
import pytest

from epcx.errors import InputError, RunError
from epcx.runs.checkpoint import Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints")


def save(checkpoints, number):
    checkpoints.folder.parent.mkdir(exist_ok=True)
    arrays = {"x": np.arange(number), "flag": np.array([True])}
    checkpoints.save({"number": number, "loss": 0.1 + 0.2}, [("match-0", arrays)])


def load(checkpoints):
    """The number that was saved, and the messages."""
    messages = []
    checkpoint = checkpoints.load(messages.append)
    return checkpoint.about["number"], messages


def test_checkpoint_round_trips(checkpoints):
    assert checkpoints.load(print) is None
    save(checkpoints, 3)
    found = checkpoints.load(print)
    assert found.about == {"number": 3, "loss": 0.1 + 0.2}
    np.testing.assert_array_equal(found.arrays["match-0"]["x"], [0, 1, 2])
    assert found.arrays["match-0"]["flag"].dtype == bool


def test_last_two_checkpoints_are_kept(checkpoints):
    for number in range(1, 5):
        save(checkpoints, number)
    assert checkpoints.numbers() == [3, 4]
    assert load(checkpoints) == (4, [])


def truncate_arrays(place):
    path = place / "match-0.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def flip_bit(place):
    path = place / "match-0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit_number(place):
    path = place / "checkpoint.json"
    path.write_text(path.read_text().replace('"number": 2', '"number": 7'))


@pytest.mark.parametrize(
    "damage",
    [
        truncate_arrays,
        flip_bit,
        edit_number,
        lambda place: (place / "match-0.safetensors").unlink(),
        lambda place: (place / "checkpoint.json").unlink(),
        lambda place: (place / "checkpoint.json").write_text("{"),
        lambda place: (place / "checkpoint.json").write_text("[]"),
    ],
)
def test_damaged_checkpoint_falls_back_to_the_previous_one(checkpoints, damage):
    save(checkpoints, 1)
    save(checkpoints, 2)
    damage(checkpoints.folder / "000002")
    number, messages = load(checkpoints)
    assert number == 1
    assert "000002 is damaged" in messages[0]


def test_load_fails_when_all_checkpoints_are_damaged(checkpoints):
    save(checkpoints, 1)
    truncate_arrays(checkpoints.folder / "000001")
    with pytest.raises(InputError, match=r"no checkpoint in .* is whole"):
        checkpoints.load(lambda line: None)


def test_checkpoint_of_another_format_is_refused(checkpoints):
    save(checkpoints, 1)
    path = checkpoints.folder / "000001" / "checkpoint.json"
    content = json.loads(path.read_text())
    content["format"] = "epcx checkpoint 9"
    del content["seal"]
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "seal": seal}))
    with pytest.raises(InputError, match="'epcx checkpoint 9', but this version reads"):
        checkpoints.load(print)


def test_full_disk_leaves_the_previous_checkpoint_intact(checkpoints):
    """A limit on the size of files fails in the middle of writing, as a full disk does."""
    save(checkpoints, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunError, match="file too large; the one before is intact: make room"):
            save(checkpoints, 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["000001"]
    assert load(checkpoints) == (1, [])


def test_write_error_leaves_the_previous_checkpoint_intact(checkpoints, monkeypatch):
    save(checkpoints, 1)

    def refuse(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("epcx.runs.checkpoint.write_through", refuse)
    with pytest.raises(RunError, match=r"cannot be written to .*: read-only file system; the one"):
        save(checkpoints, 2)
    assert load(checkpoints) == (1, [])


def test_partially_written_checkpoint_is_ignored_and_removed(checkpoints):
    save(checkpoints, 1)
    partial = checkpoints.folder / ".writing-abc"
    shutil.copytree(checkpoints.folder / "000001", partial)
    (partial / "checkpoint.json").unlink()
    assert load(checkpoints) == (1, [])
    save(checkpoints, 2)
    assert not partial.exists()
