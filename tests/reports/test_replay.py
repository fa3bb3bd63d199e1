"""Replays as files: JSON, page, animation and picture, and what is refused."""

import base64
import dataclasses
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from epcx.errors import InputError
from epcx.reports import drawing, replay
from epcx.reports.replay import Replay
from tests.reports.factories import SHEEP, WOLF, make_replay, without_food


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "replay.json"
    replay.save(make_replay((3, 2), steps=4), path)
    return path


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load_error(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        replay.load(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert not message.endswith(".")
    return message


@pytest.mark.parametrize("original", [make_replay(), without_food(), make_replay((1, 1), steps=0)])
def test_load_returns_what_save_wrote(original: Replay, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    replay.save(original, path)
    loaded = replay.load(path)
    for field in dataclasses.fields(Replay):
        before, after = getattr(original, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype
            assert after.shape == before.shape
            np.testing.assert_allclose(after, before, atol=0.5001e-4)
        else:
            assert after == before


def test_saved_file_is_compact_json_with_a_version(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    replay.save(make_replay(), path)
    payload = json.loads(path.read_text())
    assert (payload["format"], payload["version"]) == ("epcx-replay", 1)
    assert path.stat().st_size < 45_000
    assert replay.from_payload(payload).steps == 25


def test_load_refuses_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in load_error(tmp_path / "nothing.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"PK\x03\x04"])
def test_load_refuses_what_is_not_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_bytes(content)
    assert "not valid JSON" in load_error(path)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": "other", "version": 1}'])
def test_load_refuses_another_format(content: str, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(content)
    assert '"format" is not "epcx-replay"' in load_error(path)


def test_load_refuses_a_newer_version(saved: Path) -> None:
    change(saved, version=2)
    assert "version 2, newer" in load_error(saved)


@pytest.mark.parametrize("version", [None, "1", 0, True, 1.5])
def test_load_refuses_an_invalid_version(version: object, saved: Path) -> None:
    change(saved, version=version)
    assert "version must be" in load_error(saved)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Replay)])
def test_load_refuses_a_missing_field(name: str, saved: Path) -> None:
    payload = json.loads(saved.read_text())
    del payload[name]
    saved.write_text(json.dumps(payload))
    assert f'no field "{name}"' in load_error(saved)


@pytest.mark.parametrize("name", list(replay.ARRAYS))
def test_load_refuses_arrays_of_the_wrong_shape(name: str, saved: Path) -> None:
    payload = json.loads(saved.read_text())
    change(saved, **{name: [payload[name]]})
    assert "must have shape" in load_error(saved)


@pytest.mark.parametrize("name", list(replay.ARRAYS))
@pytest.mark.parametrize("value", [None, "text", {}, [["a"]], [[1, 2], [3]], 7, [None], 10**30])
def test_load_refuses_what_is_not_an_array(name: str, value: object, saved: Path) -> None:
    change(saved, **{name: value})
    load_error(saved)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["position", "food", "reward", "ate"])
def test_load_refuses_numbers_that_are_not_finite(name: str, number: str, saved: Path) -> None:
    payload = json.loads(saved.read_text())
    row = payload[name][1]
    while isinstance(row[0], list):
        row = row[0]
    row[0] = "HERE"
    saved.write_text(json.dumps(payload).replace('"HERE"', number))
    assert f"{name} contains a number that is not finite" in load_error(saved)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("game", 3, "game must be text"),
        ("title", "\ud800", "title contains characters"),
        ("walls", 1, "walls must be true or false"),
        ("world_size", 0, "world_size must be a finite number above 0"),
        ("world_size", "1", "world_size must be"),
        ("food_size", -1, "food_size must be"),
        ("obstacle_size", float("nan"), "obstacle_size must be"),
        ("position", [], "at least one frame"),
        ("roles", [], "at least one role"),
        ("roles", "sheep", "roles must be a list"),
        ("roles", ["sheep"], 'no role field "name"'),
    ],
)
def test_load_refuses_invalid_values(name: str, value: object, problem: str, saved: Path) -> None:
    change(saved, **{name: value})
    assert problem in load_error(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", None),
        ("colour", "red;}</style>"),
        ("colour", 5),
        ("size", 0),
        ("size", float("inf")),
        ("count", 0),
        ("count", 2.5),
        ("count", True),
    ],
)
def test_load_refuses_invalid_roles(name: str, value: object, saved: Path) -> None:
    roles = json.loads(saved.read_text())["roles"]
    roles[0][name] = value
    change(saved, roles=roles)
    assert f"role {name} must" in load_error(saved)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "value"), [("alive", 2), ("ate", 0.5), ("killed", -1), ("touched", -1e308)]
)
def test_load_refuses_invalid_counts_and_flags(name: str, value: float, saved: Path) -> None:
    rows = json.loads(saved.read_text())[name]
    rows[1][0] = value
    change(saved, **{name: rows})
    assert f"{name} may hold only" in load_error(saved)


@pytest.mark.parametrize("name", ["replay.webm", "replay", ".html", "replay.json.gz"])
def test_write_refuses_unknown_extensions(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end with \.html, \.gif, \.mp4, \.png or \.json"):
        replay.write(make_replay((1, 1), steps=1), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".html", ".GIF", ".png", ".json"])
def test_write_chooses_the_format_by_extension(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"replay{suffix}"
    replay.write(make_replay((2, 1), steps=2), path)
    starts = {".html": b"<!doctype html>", ".GIF": b"GIF89a", ".png": b"\x89PNG", ".json": b"{"}
    assert path.read_bytes().startswith(starts[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_write_refuses_unwritable_paths(tmp_path: Path) -> None:
    small = make_replay((1, 1), steps=1)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").write_text("kept")
    for name in ("missing/replay.json", "folder.json", "file/replay.json", "x" * 300 + ".json"):
        with pytest.raises(InputError, match=r"^cannot write the replay .*[^.]$"):
            replay.write(small, tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.json"]


def test_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match="permission denied"):
        replay.save(make_replay(), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_page_is_self_contained_and_escapes_hostile_strings() -> None:
    hostile = "</script><b>&{{css}}<!--\u2028\"'"
    page = replay.to_html(make_replay((2, 1), steps=2, title=hostile, food_name=hostile))
    assert "<b>" not in page
    assert "\u2028" not in page.split("</title>")[1]
    assert page.count("</script>") == 2
    data = page.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["title"] == hostile
    assert "{{" not in page.replace(hostile[-12:], "").split("<style>")[1].split("</style>")[0]
    addresses = page.replace("http://www.w3.org/2000/svg", "")  # a namespace, never fetched
    assert "http:" not in addresses
    assert "https:" not in addresses


def test_page_payload_is_small_and_keeps_positions_flags_and_sums() -> None:
    many = make_replay((384, 256))
    payload = replay.to_page_payload(many)
    frames, agents = 26, 640
    assert len(json.dumps(payload)) < 10 * frames * agents

    packed = payload["position"]
    levels = np.frombuffer(base64.b64decode(packed["levels"]), "<u2").reshape(frames, agents, 2)
    np.testing.assert_allclose(
        packed["low"] + packed["step"] * levels, many.position, rtol=0, atol=2e-5
    )
    for name in ("alive", "died", "killed", "touched"):
        bits = np.unpackbits(
            np.frombuffer(base64.b64decode(payload[name]), np.uint8), bitorder="little"
        )
        np.testing.assert_array_equal(
            bits[: frames * agents].reshape(frames, agents), getattr(many, name) > 0
        )
    for name, totals in payload["totals"].items():
        values = getattr(many, name)
        by_role = np.stack([values[:, :384].sum(1), values[:, 384:].sum(1)], 1)
        np.testing.assert_allclose(totals, by_role.cumsum(0), atol=1e-4)


def test_player_assets_define_create_replay() -> None:
    css, js = replay.player_assets()
    assert ".epcx-replay" in css
    assert "createReplay = " in js
    assert "getElementById" not in js
    assert "innerHTML" not in js


def test_mp4_has_the_frames_of_the_gif_and_holds_the_last(tmp_path: Path) -> None:
    played = make_replay(steps=5)
    replay.write(played, tmp_path / "replay.mp4")
    video = imageio_ffmpeg.read_frames(str(tmp_path / "replay.mp4"))
    about = next(video)
    frames = [Image.frombytes("RGB", about["size"], frame) for frame in video]
    drawn = drawing.animation(played)
    assert about["size"] == drawn[0].size
    assert about["fps"] == 12.5
    assert len(frames) == 2 * 5 + 1 + 11  # 12 frames last the second for which the GIF holds
    for decoded, original in ((frames[3], drawn[3]), (frames[-1], drawn[-1])):
        assert np.abs(np.asarray(decoded, int) - np.asarray(original, int)).mean() < 4


def test_mp4_needs_ffmpeg_before_an_episode_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_of: Callable[..., str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    message = error_of("replay", "grassland", "--out", tmp_path / "replay.mp4")
    assert "an .mp4 needs ffmpeg" in message
    assert not list(tmp_path.iterdir())


def test_gif_has_two_frames_a_step_and_holds_the_last() -> None:
    content = drawing.to_gif(make_replay())
    assert len(content) < 1_500_000
    image = Image.open(io.BytesIO(content))
    assert image.n_frames == 2 * 25 + 1
    assert image.info["loop"] == 0
    durations = []
    for k in range(image.n_frames):
        image.seek(k)
        durations.append(image.info["duration"])
    assert set(durations[:-1]) == {80}
    assert durations[-1] == 1000
    assert colours(image) >= {SHEEP, WOLF, drawing.FOOD}


def test_png_is_a_strip_in_the_colours_of_the_roles() -> None:
    image = Image.open(io.BytesIO(drawing.to_png(make_replay())))
    assert image.width > 6 * drawing.PNG_SIDE
    assert drawing.PNG_SIDE < image.height < 1.5 * drawing.PNG_SIDE
    assert colours(image) >= {SHEEP, WOLF, drawing.FOOD}


@pytest.mark.parametrize(
    "case", [without_food(), make_replay((1, 1), steps=0), make_replay(steps=1)]
)
def test_drawing_handles_no_food_no_steps_and_one_step(case: Replay) -> None:
    assert Image.open(io.BytesIO(drawing.to_gif(case))).n_frames == 2 * case.steps + 1
    assert colours(Image.open(io.BytesIO(drawing.to_png(case)))) >= {SHEEP, WOLF}


def test_png_shortens_long_titles() -> None:
    plain = Image.open(io.BytesIO(drawing.to_png(make_replay((2, 1), steps=2))))
    long = Image.open(io.BytesIO(drawing.to_png(make_replay((2, 1), steps=2, title="word " * 400))))
    assert long.size == plain.size


def test_interpolation_matches_the_frames_and_never_overshoots() -> None:
    walk = make_replay((3, 2))
    for t in range(walk.steps):
        np.testing.assert_array_equal(drawing.positions(walk, float(t)), walk.position[t])
        ends = walk.position[t], walk.position[t + 1]
        for part in (0.1, 0.5, 0.9):
            between = drawing.positions(walk, t + part)
            assert (between >= np.minimum(*ends) - 1e-12).all()
            assert (between <= np.maximum(*ends) + 1e-12).all()


def test_canvas_shows_agents_that_leave_the_square() -> None:
    far = without_food()
    canvas = drawing.Canvas(far, 100)
    x, y = canvas.pixel(far.position.reshape(-1, 2)[np.abs(far.position).max(-1).argmax()])
    assert 0 < x < canvas.image.width
    assert 0 < y < canvas.image.width


def colours(image: Image.Image) -> set[str]:
    red, green, blue = np.asarray(image.convert("RGB"), np.uint32).reshape(-1, 3).T
    return {f"#{colour:06x}" for colour in np.unique(red << 16 | green << 8 | blue)}


def test_pictures_of_large_worlds_are_larger() -> None:
    small, large = (make_replay(world_size=size) for size in (1.0, 4.0))
    assert drawing.side_of(small, 300) == 300
    assert drawing.side_of(large, 300) == 480  # a radius of 0.05 is 3 pixels
    assert drawing.side_of(make_replay(world_size=100.0), 300) == 600
    pictures = [Image.open(io.BytesIO(drawing.to_png(replay))) for replay in (small, large)]
    assert pictures[1].height - pictures[0].height == 180
