"""A published run plays as the run does, and is small."""

import json

import jax
import numpy as np
import pytest
from safetensors import safe_open

import epcx
from epcx.cli import main
from epcx.errors import InputError
from epcx.publish import publish, stored, thinned
from epcx.runs.quantisation import dequantised, quantised
from epcx.runs.run import RunFolder
from epcx.runs.weights import load_weights, read, save_weights
from tests.factories import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return make_run(folder, "food-collection", "epc", ["1", "2"], matches=3, snapshots=2)


@pytest.fixture(scope="module")
def copy(run, tmp_path_factory):
    return publish(run, tmp_path_factory.mktemp("runs") / "copy", sets=1, lines=5)


def test_published_agents_play_as_those_of_the_run(run, copy):
    ours, theirs = (epcx.load(folder.path, "4").play(20) for folder in (run, copy))
    assert ours == theirs


def test_published_run_has_the_policies_of_the_best_sets_only(run, copy):
    assert copy.stages() == run.stages()
    assert [copy.ranks(stage) for stage in copy.stages()] == [1, 1]
    with safe_open(copy.weights("2", 0, "collector"), "np") as file:
        names = set(file.keys())
    assert names
    assert all(name.startswith("policy.") for name in names)
    assert not (copy.path / "snapshots").exists()
    assert not (copy.path / "lock").exists()
    assert copy.config == run.config
    assert copy.result == run.result
    assert copy.lineage() == run.lineage()
    assert len(copy.metrics()) == len(run.metrics()) // 2  # 5 lines of 10


def test_thinned_log_has_means_of_neighbouring_lines():
    rows = [
        {"stage": s, "match": m, "episodes": 10 * i, "reward/x": float(i), "diverged": True}
        for s in range(2) for m in range(2) for i in range(1, 8)
    ]  # fmt: skip
    short = list(thinned(rows, 3))
    assert len(short) == 2 * 2 * 3
    # The last line is the last: the first one may stand for fewer.
    assert [row["episodes"] for row in short[:3]] == [10, 40, 70]
    assert [row["reward/x"] for row in short[:3]] == [1.0, 3.0, 6.0]
    assert list(thinned(rows, 7)) == rows


def test_publish_command_copies_all_sets_into_a_new_folder(capsys, error_of, run, tmp_path):
    copy = tmp_path / "copy"
    main(["publish", str(run.path), "--out", str(copy), "--episodes", "20", "--licence", "MIT"])
    assert f"try: epcx evaluate {copy}" in capsys.readouterr().out
    assert RunFolder.open(copy).ranks("2") == run.ranks("2")
    reward = epcx.load(run.path, "2").play(20)["collector"]["reward"]
    card = (copy / "README.md").read_text()
    assert f"| 2 | collector | {reward['mean']:.2f} ± {reward['error']:.2f} |" in card
    assert "Licence: MIT." in card
    assert f"jax {jax.__version__}" in card
    assert "exists already" in error_of("publish", run.path, "--out", copy)
    message = error_of("publish", run.path, "--out", tmp_path / "x", "--sets", "0")
    assert "sets 0 is too small: a whole number of at least 1" in message
    assert not (tmp_path / "x").exists()


def test_half_precision_rounds_the_weights_and_halves_the_file(run, copy, tmp_path):
    half = publish(run, tmp_path / "half", sets=1, precision="float16")
    files = [folder.weights("2", 0, "collector") for folder in (half, copy)]
    rounded, whole = (read(path)[1] for path in files)
    for name, x in whole.items():
        assert rounded[name].dtype == np.float16
        np.testing.assert_array_equal(rounded[name], x.astype(np.float16))
    smaller, larger = (sum(x.nbytes for x in arrays.values()) for arrays in (rounded, whole))
    assert smaller == larger / 2
    policies = epcx.load(half.path, "2").players["collector"].agents
    assert {x.dtype for x in jax.tree.leaves(policies)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("precision", "largest"), [("float16", 7e4), ("int8", 9e6), ("int4", 5e5)])
def test_weights_too_large_for_a_precision_are_refused(run, precision, largest):
    path, weights = run.weights("2", 0, "collector"), {"w": np.full((1, 1, 16), largest, "f4")}
    with pytest.raises(InputError, match=f"too large for {precision}: publish them with"):
        stored(path, weights, precision)
    assert stored(path, {"w": weights["w"] / 2}, precision)
    assert stored(path, weights, "float32") is weights


@pytest.mark.parametrize(("precision", "levels", "share"), [("int8", 127, 0.34), ("int4", 7, 0.25)])
def test_integer_weights_are_within_half_a_step_of_their_row(
    run, copy, tmp_path, precision, levels, share
):
    small = publish(run, tmp_path / "small", sets=1, precision=precision)
    path, whole = (folder.weights("2", 0, "collector") for folder in (small, copy))
    found, exact = read(path)[1], read(whole)[1]
    assert found.keys() == exact.keys()
    for name, x in exact.items():
        few = name.endswith("bias") or x.shape[-1] < 16  # these have 8 bits
        steps = 127 if few else levels
        step = np.abs(x).max(-1, keepdims=True) / steps
        # Scales are float16, with 11 bits.
        assert (np.abs(found[name] - x) <= 0.5 * step + 2**-11 * np.abs(x)).all()
    with safe_open(path, "np") as file:
        smaller = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    assert smaller < share * sum(x.nbytes for x in exact.values())
    assert epcx.load(small.path, "2").play(20)["collector"]["reward"]["error"] > 0


def test_weights_of_some_stages_are_published_alone(error_of, run, tmp_path):
    publish_as = ["publish", str(run.path), "--episodes", "20", "--out"]
    main([*publish_as, str(tmp_path / "last"), "--population", "2", "--precision", "int4"])
    last = RunFolder.open(tmp_path / "last")
    assert last.stages() == ["2"]
    # The scores are those of the rounded weights.
    reward = epcx.load(last.path).play(20)["collector"]["reward"]
    card = (last.path / "README.md").read_text()
    assert f"| 2 | collector | {reward['mean']:.2f} ± {reward['error']:.2f} |" in card
    assert "The folder has the\npolicies of 2, without critics." in card
    message = error_of(*publish_as, tmp_path / "x", "--population", "1")
    assert "population leaves out 2, at which the copy would play: add it" in message
    message = error_of(*publish_as, tmp_path / "x", "--population", "2", "3")
    assert "stage '3' is not in" in message
    assert "it has 1, 2" in message


def test_relatives_are_stored_as_small_differences(tmp_path):
    """Agents 0, 2, 4, ... were made of one agent, 1, 3, 5, ... of another."""
    random = np.random.default_rng(0)
    ancestors = random.normal(size=(2, 8, 32)).astype(np.float32)
    changes = 0.05 * random.normal(size=(16, 8, 32)).astype(np.float32)
    weights = {"w": np.tile(ancestors, (8, 1, 1)) + changes, "b": changes[:, 0]}
    found = dequantised(tmp_path, quantised(weights, 4))
    alone = dequantised(tmp_path, {n: x for n, x in quantised(weights, 8).items() if "w" in n})
    assert found.keys() == weights.keys()
    error, eight = (np.abs(x["w"] - weights["w"]).mean() for x in (found, alone))
    assert error < eight
    strangers = {"w": random.normal(size=(16, 8, 32)).astype(np.float32)}
    assert quantised(strangers, 4).keys() == {"w", "w.scale"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"w.base": np.ones((2, 8, 16), np.float32)},
        {"w.family": np.full(16, 2, np.uint16)},
        {"w.family": np.zeros(15, np.uint16)},
        {"w.family": np.zeros(16, np.float32)},
        {"w.base": np.float32(1)},
    ],
)
def test_families_that_do_not_fit_their_weights_are_refused(tmp_path, wrong):
    weights = {"w": np.tile(np.random.default_rng(0).normal(size=(2, 8, 32)), (8, 1, 1))}
    stored = quantised({"w": weights["w"].astype(np.float32)}, 4)
    assert stored["w.family"].tolist() == [0, 1] * 8
    for name in wrong:
        stored.pop(f"{name}.scale", None)
    with pytest.raises(InputError, match="the families of w do not fit it"):
        dequantised(tmp_path, stored | wrong)


@pytest.mark.parametrize("bits", [8, 4])
def test_integer_weights_keep_zeros_signs_and_places(tmp_path, bits):
    rows = np.float32([[0, 0, 0, 0], [1, -2, 3, 7], [-7, 7, -1, 0], [7e-3, 1e-3, 0, -7e-3]])
    stored = {"w": np.tile(rows, (2, 1, 4)), "seen": np.arange(3)}
    found = dequantised(tmp_path, quantised(stored, bits))
    np.testing.assert_allclose(found["w"], stored["w"], rtol=2e-3, atol=0.03)
    np.testing.assert_array_equal(found["seen"], stored["seen"])


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_may_be_called_scale_and_may_be_empty(tmp_path, bits):
    weights = {
        "norm.scale": np.ones((2, 16), np.float32),
        "norm.bias": np.full((2, 3, 16), 2, np.float32),
        "none": np.ones((2, 0), np.float32),
    }
    for arrays in (weights, quantised(weights, bits)):
        found = dequantised(tmp_path, arrays)
        assert found.keys() == weights.keys()
        for name, x in weights.items():
            np.testing.assert_allclose(found[name], x, rtol=2e-3)


@pytest.mark.parametrize(
    "arrays",
    [
        {"w.scale": np.ones((2, 1), np.float32)},
        {"w": np.ones((2, 2), np.float32), "w.scale": np.ones((2, 1), np.float32)},
        {"w": np.ones((2, 2), np.int8)},
    ],
)
def test_weights_and_scales_without_each_other_are_refused(tmp_path, arrays):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save_weights(arrays, {}))
    with pytest.raises(InputError, match="holds weights of another architecture"):
        load_weights(path, {"w": np.ones((2, 2), np.float32)}, {})


def test_scale_that_does_not_fit_its_weights_is_refused(tmp_path):
    stored = {"w": np.ones((2, 2), np.int8), "w.scale": np.ones((1, 1), np.float16)}
    with pytest.raises(InputError, match="the scale of w does not fit it"):
        dequantised(tmp_path, stored)


def test_unfinished_run_is_not_published(error_of, run, tmp_path):
    unfinished = RunFolder.create(tmp_path / "unfinished", run.settings, {})
    unfinished.unlock()
    message = error_of("publish", unfinished.path, "--out", tmp_path / "copy")
    assert "is not finished" in message
    assert not (tmp_path / "copy").exists()


def test_evaluation_shows_the_results_of_the_paper_at_its_populations(capsys, run):
    evaluate = ["evaluate", str(run.path), "--episodes", "10", "--population"]
    main([*evaluate, "3", "--json"])
    paper = json.loads(capsys.readouterr().out)["paper"]
    assert paper == {"collector": {"reward": 64.822, "coverage": 0.723}}
    main([*evaluate, "3"])
    shown = capsys.readouterr().out
    assert "paper" in shown
    assert "64.82" in shown
    main([*evaluate, "2"])
    assert "paper" not in capsys.readouterr().out


def test_failed_publication_leaves_nothing(monkeypatch, run, tmp_path):
    monkeypatch.setattr(RunFolder, "lineage", lambda self: [{"name": 3}])
    with pytest.raises(InputError, match="the lineage is damaged"):
        publish(run, tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_run_is_not_published_into_itself(error_of, run):
    before = sorted(run.path.parent.rglob("*"))
    for place in (run.path / "copy", run.path, run.path.parent):
        assert "lie in one another" in error_of("publish", run.path, "--out", place)
    assert sorted(run.path.parent.rglob("*")) == before


def test_run_is_not_published_over_a_link_that_leads_nowhere(error_of, run, tmp_path):
    for name, target in (("loop", "loop"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(target)
        message = error_of("publish", run.path, "--out", tmp_path / name)
        assert f"{name} is a link that leads nowhere" in message
    assert len(list(tmp_path.iterdir())) == 2


def test_published_weights_have_checksums(run, copy):
    flipped = bytearray(copy.weights("1", 0, "collector").read_bytes())
    assert len((copy.path / "digests.jsonl").read_text().splitlines()) == 2
    flipped[-1] ^= 1
    other = RunFolder.open(publish(run, copy.path.parent / "other", sets=1).path)
    other.weights("1", 0, "collector").write_bytes(flipped)
    with pytest.raises(InputError, match="is damaged, or of another run"):
        other.weights("1", 0, "collector")
