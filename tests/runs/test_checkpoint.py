"""Checkpoints: writing is atomic, damage is noticed, and the last two are kept."""

import hashlib
import json
import resource
import shutil
import signal
import threading

import numpy as np
import pytest
import safetensors.numpy as library

from epcx.errors import InputError, RunError
from epcx.runs import checkpoint as checkpoint_module
from epcx.runs.checkpoint import Checkpoints, MatchState, MatchUpdate, Rows


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints")


def save(checkpoints, number):
    checkpoints.folder.parent.mkdir(exist_ok=True)
    arrays = {"x": np.arange(number), "flag": np.array([True])}
    checkpoints.save({"number": number, "loss": 0.1 + 0.2}, {"match-0": arrays})
    checkpoints.wait()


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


def test_files_are_those_of_the_safetensors_library(tmp_path):
    names = checkpoint_module.DTYPES.keys() - {"bfloat16"}  # which NumPy does not have
    arrays = {name: np.arange(24).reshape(2, 3, 4).astype(name) for name in names}
    arrays |= {"none": np.zeros((0, 3), np.float32), "one": np.array(7)}
    content = b"".join(checkpoint_module.safetensors(arrays))
    for read in (library.load(content), checkpoint_module.from_safetensors(library.save(arrays))):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)


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
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["000001", "segments"]
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


# Ring buffers


class Ring:
    """A match with a ring buffer of 4 rows, and its checkpoints."""

    def __init__(self, checkpoints):
        checkpoints.folder.parent.mkdir(exist_ok=True)
        self.checkpoints, self.content, self.done = checkpoints, np.zeros((1, 4, 1000)), 0

    def save(self, *rows, since=None):
        """Writes something into rows, and saves them."""
        for row in rows:
            self.content[0, row] += np.random.default_rng(self.done * 7 + row).normal(size=1000)
        since, self.done = self.done if since is None else since, self.done + 10
        changed = Rows(np.array(rows, int), {"ring": self.content[:, list(rows)].copy()})
        state = MatchState({"done": np.array([self.done])}, [changed])
        self.checkpoints.save({}, {}, {"match-0": MatchUpdate(since, self.done, state)})
        self.checkpoints.wait()

    def files(self):
        return sorted((self.checkpoints.folder / "segments").iterdir())


def ring_of(checkpoints, notify=print):
    """What another process finds: the number of updates, and the buffer."""
    state = Checkpoints(checkpoints.folder).load(notify).state("match-0")
    ring = np.zeros((1, 4, 1000))
    for rows, arrays in state.rows:
        ring[:, rows] = arrays["ring"]
    return int(state.arrays["done"][0]), ring


def test_segments_are_written_once_and_removed_when_overwritten(checkpoints):
    ring = Ring(checkpoints)
    for number in range(12):
        ring.save(number % 4, (number + 1) % 4)
        done, found = ring_of(checkpoints)
        assert done == ring.done
        np.testing.assert_array_equal(found, ring.content)
        assert len(ring.files()) <= 4  # what two checkpoints need
    # 12 checkpoints of two rows each, and what else they have, which is little here.
    assert 12 * 2 * 8000 <= checkpoints.written < 1.1 * 12 * 2 * 8000


def test_changes_since_an_earlier_state_replace_the_later_ones(checkpoints):
    """A task that was lost is repeated from an earlier state."""
    ring = Ring(checkpoints)
    ring.save(0, 1, 2, 3)
    kept = ring.content.copy()
    ring.save(2)
    ring.content[:] = kept
    ring.save(1, since=10)
    np.testing.assert_array_equal(ring_of(checkpoints)[1], ring.content)


def test_resumed_run_appends_to_the_segments_it_found(checkpoints):
    ring = Ring(checkpoints)
    ring.save(0, 1, 2)
    ring.checkpoints = Checkpoints(checkpoints.folder)
    ring.checkpoints.load(print)
    ring.save(2)
    assert len(ring.files()) == 2
    np.testing.assert_array_equal(ring_of(checkpoints)[1], ring.content)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_segment_falls_back_to_the_checkpoint_before(checkpoints, damage):
    ring = Ring(checkpoints)
    ring.save(0, 1, 2)
    before, first = ring.content.copy(), set(ring.files())
    ring.save(2)
    (newest,) = set(ring.files()) - first
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    {
        "flip": lambda: newest.write_bytes(content),
        "truncate": lambda: newest.write_bytes(content[:-1]),
        "remove": newest.unlink,
    }[damage]()
    messages = []
    done, found = ring_of(checkpoints, messages.append)
    assert done == 10
    assert "000002 is damaged" in messages[0]
    np.testing.assert_array_equal(found, before)


def test_full_disk_while_writing_a_segment_keeps_the_checkpoint_before(checkpoints):
    ring = Ring(checkpoints)
    ring.save(0, 1)
    files, before = ring.files(), ring.content.copy()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))
    try:
        with pytest.raises(RunError, match="the one before is intact"):
            ring.save(1, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert ring.files() == files
    np.testing.assert_array_equal(ring_of(checkpoints)[1], before)


def test_writing_does_not_keep_the_caller_waiting(checkpoints, monkeypatch):
    checkpoints.folder.parent.mkdir(exist_ok=True)
    gate = threading.Event()
    write = checkpoint_module.write_through
    monkeypatch.setattr(
        checkpoint_module, "write_through", lambda *x: (gate.wait(10), write(*x))[1]
    )
    checkpoints.save({"number": 1}, {"a": {"x": np.zeros(3)}})
    assert checkpoints.busy
    assert not checkpoints.numbers()
    gate.set()
    checkpoints.wait()
    assert load(checkpoints)[0] == 1
