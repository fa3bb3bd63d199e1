"""Damaged runs are refused in one sentence, before anything is played, and nothing is lost."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import epcx
from epcx.cli import main
from epcx.evaluation.result_cache import ResultCache
from epcx.reports.report import to_csv
from epcx.reports.tables import ReportTable
from epcx.runs.files import json_digest, write_bytes
from epcx.runs.run import RunFolder
from tests.factories import make_run

SMALL = {"batch_size": 16, "buffer_size": 400, "learning_starts": 100, "num_envs": 4}
WEIGHTS = "agents/2/0/collector.safetensors"


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return make_run(folder, "food-collection", "epc", ["1", "2"], snapshots=1, **SMALL).path


@pytest.fixture
def run(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "run")


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Training over a finished run


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (None, "has agents, but no checkpoint to go on from"),
        ("{}", "has agents, but no checkpoint to go on from"),
        ("[]", "result.json is damaged"),
        ("null", "has agents, but no checkpoint to go on from"),
        ("3", "result.json is damaged"),
    ],
)
def test_resume_never_trains_over_a_run_that_has_agents(error_of, run, result, complaint):
    (run / "result.json").unlink()
    if result is not None:
        (run / "result.json").write_text(result)
    before = content(run)
    assert complaint in error_of("resume", run)
    assert {**content(run), run / "lock": b""} == {**before, run / "lock": b""}


# Weights


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def take_those_of_another_set(path):
    shutil.copy(path.parent.parent / "1" / path.name, path)


@pytest.mark.parametrize("damage", [flip_a_bit, take_those_of_another_set])
def test_weights_that_the_run_has_not_written_are_refused(error_of, run, tmp_path, damage):
    damage(run / WEIGHTS)
    complaint = "is damaged, or of another run: its checksum is not in digests.jsonl"
    for command in (
        ["evaluate", run, "--episodes", "10"],
        ["replay", run, "--out", tmp_path / "replay.json"],
        ["publish", run, "--out", tmp_path / "copy"],
    ):
        message = error_of(*command)
        assert WEIGHTS in message
        assert complaint in message
    assert not (tmp_path / "copy").exists()


def test_changed_weights_can_be_trusted(error_of, run, capsys):
    flip_a_bit(run / WEIGHTS)
    assert f"to trust it as it is: epcx digest {run} --accept" in error_of("evaluate", run)
    main(["digest", str(run), "--accept"])
    assert capsys.readouterr().err == f"{run / WEIGHTS} is trusted as it is now\n"
    main(["evaluate", str(run), "--episodes", "10"])
    main(["digest", str(run), "--accept"])
    assert capsys.readouterr().err == ""


def test_changed_snapshot_is_refused(run):
    folder = RunFolder.open(run)
    (path,) = {folder.snapshot("1", 0, 0, "collector")}
    flip_a_bit(path)
    with pytest.raises(epcx.InputError, match="is damaged, or of another run"):
        folder.snapshot("1", 0, 0, "collector")


def test_run_without_checksums_plays_but_not_with_weights_that_are_not_finite(error_of, run):
    (run / "digests.jsonl").unlink()
    expected = epcx.load(run).play(10)
    arrays = load_file(run / WEIGHTS)
    next(x for name, x in arrays.items() if name.startswith("policy"))[...] = np.nan
    kind = {"game": "food-collection", "role": "collector", "architecture": "attention"}
    save_file(arrays, run / WEIGHTS, metadata={"format": "epcx agent set 1", **kind})
    assert "holds weights that are not finite" in error_of("evaluate", run, "--episodes", "10")
    assert expected


def test_run_without_checksums_gets_them_when_it_saves_weights(run):
    before = (run / "digests.jsonl").read_text().splitlines()
    (run / "digests.jsonl").unlink()
    RunFolder.open(run).add_checksums()
    assert sorted((run / "digests.jsonl").read_text().splitlines()) == sorted(before)


def test_replaced_weights_are_valid_before_and_after(run):
    """A run that is killed in between has the old weights and both checksums."""
    folder = RunFolder.open(run)
    old = (run / WEIGHTS).read_bytes()
    folder.save_agents("2", 0, "collector", {"x": np.ones(3)}, {})
    assert folder.weights("2", 0, "collector").read_bytes() != old
    (run / WEIGHTS).write_bytes(old)
    assert folder.weights("2", 0, "collector").read_bytes() == old
    with open(run / "digests.jsonl", "a") as file:
        file.write('{"file": "half a li')
    folder.save_agents("2", 0, "collector", {"x": np.zeros(3)}, {})
    RunFolder.open(run).weights("2", 0, "collector")


def write_weights(path, **tensor):
    """One array, as a header of safetensors describes it, with eight bytes of data."""
    facts = {"__metadata__": {"format": "epcx agent set 1"}, "policy.x": tensor}
    header = json.dumps(facts).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


@pytest.mark.parametrize(
    ("kind", "shape"), [("F8_E4M3", [8]), ("F32", [2, *[1] * 70]), ("F32", [2**61, 4])]
)
def test_weights_that_numpy_cannot_hold_are_refused(error_of, run, kind, shape):
    write_weights(run / WEIGHTS, dtype=kind, shape=shape, data_offsets=[0, 8])
    assert f"{WEIGHTS} cannot be read as weights of epcx" in error_of("digest", run)


@pytest.mark.parametrize("change", [lambda x: x[:0], lambda x: np.array(1, x.dtype)])
@pytest.mark.parametrize("part", ["policy", "critic"])
def test_weights_without_agents_are_refused(error_of, run, change, part):
    (run / "digests.jsonl").unlink()
    arrays = load_file(run / WEIGHTS)
    name = next(name for name in arrays if name.startswith(part))
    kind = {"game": "food-collection", "role": "collector", "architecture": "attention"}
    arrays[name] = change(arrays[name])
    save_file(arrays, run / WEIGHTS, metadata={"format": "epcx agent set 1", **kind})
    message = error_of("evaluate", run, "--episodes", "10")
    assert "holds weights of another architecture or population" in message


# JSON


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("lineage.json", '[{"name": 3}]', "the lineage is damaged"),
        ("lineage.json", "[" * 100_000, "lineage.json is damaged: it is not JSON"),
        ("lineage.json", "\udcff", "lineage.json is damaged: it is not JSON"),
        ("metrics.jsonl", "{", "lines that are no metrics"),
        ("metrics.jsonl", '{"episodes": 3}\n', "lines that are no metrics"),
        ("metrics.jsonl", '{"population": "2", "match": 0, "episodes": 1e999}', "no metrics"),
        ("metrics.jsonl", "[" * 100_000, "lines that are no metrics"),
        ("result.json", '{"ended": "finished", "seconds": Infinity}', "it is not JSON"),
        ("result.json", "9" * 5000, "it is not JSON"),
    ],
)
def test_damaged_file_is_found_before_a_report_plays(
    error_of, run, tmp_path, monkeypatch, name, text, complaint
):
    monkeypatch.setattr("epcx.evaluation.study.Study.play", lambda *_: pytest.fail("played"))
    (run / name).write_bytes(text.encode(errors="surrogateescape"))
    assert complaint in error_of("report", run, "--out", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_damaged_agents_and_their_origins_are_found_before_a_report_plays(
    error_of, run, tmp_path, monkeypatch
):
    monkeypatch.setattr("epcx.evaluation.study.Study.play", lambda *_: pytest.fail("played"))
    rows = json.loads((run / "lineage.json").read_text())
    (run / "lineage.json").write_text(json.dumps([{**row, "rank": None} for row in rows]))
    assert "has no lineage of collector" in error_of("report", run, "--out", tmp_path / "report")
    (run / "lineage.json").write_text(json.dumps(rows))
    flip_a_bit(run / "snapshots/2/50/1/collector.safetensors")
    assert "is damaged, or of another" in error_of("report", run, "--out", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_lineage_and_result_with_wrong_types_are_refused_by_commands(error_of, run):
    edit(run / "result.json", seconds="long")
    assert "result.json is damaged: seconds is 'long', not a number" in error_of("resume", run)
    (run / "lineage.json").write_text('[{"name": "x", "parents": ["x"]}]')
    assert "the lineage is damaged" in error_of("lineage", run)


@pytest.mark.parametrize("name", ["config.json", "lineage.json", "digests.jsonl", WEIGHTS])
@pytest.mark.parametrize("kind", ["pipe", "zeros", "folder"])
def test_what_is_not_a_regular_file_is_refused_at_once(error_of, run, tmp_path, name, kind):
    (run / name).unlink()
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "zeros":
        (run / name).symlink_to("/dev/zero")
    else:
        (run / name).mkdir()
    message = error_of("publish", run, "--out", tmp_path / "copy")
    assert name in message
    assert "cannot be read: it is not a regular file" in message


def test_oversized_file_is_refused_at_once(error_of, run):
    os.truncate(run / "config.json", 2**40)
    assert "config.json cannot be read: it is larger than" in error_of("lineage", run)
    (run / "episode.json").touch()
    os.truncate(run / "episode.json", 2**40)
    message = error_of("replay", run / "episode.json", "--out", run / "a.html")
    assert "episode.json: it is larger than" in message


def test_pipe_is_neither_read_as_a_replay_nor_replaced_by_one(error_of, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is not a regular file"):
        write_bytes(pipe, b"")
    for command in (["replay", pipe], ["replay", "food-collection", "--out", pipe]):
        assert "pipe.json: it is not a regular file" in error_of(*command)
    assert pipe.is_fifo()


def test_lock_that_is_a_pipe_is_refused_at_once(error_of, run):
    (run / "lock").unlink(missing_ok=True)
    os.mkfifo(run / "lock")
    assert "cannot be written to" in error_of("resume", run)


# Results and tables


def test_changed_result_in_the_cache_is_played_again(tmp_path):
    path = tmp_path / "games.jsonl"
    game = {"players": ["a", "b"], "episodes": 3}
    assert ResultCache(path).get(game, lambda: {"reward": 1.5}) == {"reward": 1.5}
    assert ResultCache(path).get(game, lambda: pytest.fail("played")) == {"reward": 1.5}
    path.write_text(path.read_text().replace("1.5", "12345"))
    assert ResultCache(path).get(game, lambda: {"reward": 2.5}) == {"reward": 2.5}
    assert ResultCache(path).get(game, lambda: pytest.fail("played")) == {"reward": 2.5}
    unsealed = {"digest": json_digest(game), "result": {"reward": 9}}
    path.write_text(json.dumps(unsealed) + "\n")
    assert ResultCache(path).get(game, lambda: {"reward": 3.5}) == {"reward": 3.5}


def test_names_in_tables_are_no_formulas():
    row = {"run": "=1+1", "method": "@x", "change": -1.5, "text": "-1.5 2", "agents": "-2-1"}
    table = ReportTable("t", "T", list(row), [], [row])
    assert to_csv(table, {"game": "+x"}).splitlines()[1] == "'=1+1,'@x,-1.5,-1.5 2,'-2-1,'+x"


def test_names_of_files_are_printed_without_control_characters(capsys, run, tmp_path):
    odd = run.rename(tmp_path / "r\x1b[2Jn\n")
    for command in (
        ["publish", odd, "--out", tmp_path / "c\x1b[2J"],
        ["replay", "food-collection", "--out", tmp_path / "\x1b[2J.json"],
        ["resume", odd],
    ):
        main([str(word) for word in command])
        shown = capsys.readouterr().out
        assert "?[2J" in shown
        assert shown.rstrip("\n").isprintable()


def test_printed_lineage_of_a_run_has_no_control_characters(capsys, run):
    rows = json.loads((run / "lineage.json").read_text())
    for row in rows:
        row["name"] = f"\x1b[31m[/x]{row['name']}"
        row["parents"] = [f"\x1b[31m[/x]{name}" for name in row["parents"]]
    (run / "lineage.json").write_text(json.dumps(rows))
    main(["lineage", str(run)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[/x]collector-1.1" in shown
