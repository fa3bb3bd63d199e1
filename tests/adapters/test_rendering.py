"""Frames of environments: what they show, where they appear, and that they change nothing."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest
from pettingzoo.test import render_test
from pettingzoo.utils import parallel_to_aec
from PIL import Image

from epcx.adapters.pettingzoo import parallel_env
from epcx.adapters.rendering import Renderer
from epcx.errors import InputError
from epcx.reports import notebook
from epcx.reports.canvas import rgb
from tests.adapters.test_pettingzoo import idle_actions, place_agents
from tests.games.ring import Ring


@pytest.fixture
def displays(monkeypatch):
    """The pictures of each display in a notebook, which this process pretends to be."""
    shown = []

    def display(picture, display_id):
        assert display_id
        shown.append([picture])
        return SimpleNamespace(update=shown[-1].append)

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=None)
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(notebook.time, "sleep", lambda _: None)
    return shown


def test_frame_shows_the_agents_where_they_are():
    env = parallel_env("grassland", "3-2", render_mode="rgb_array")
    env.reset(seed=0)
    colours = {role.name: rgb(role.colour) for role in env.game.roles}
    # World coordinates: y points upwards; the square is centred in the frame.
    place_agents(env, wolf_0=(0.0, 0.0), sheep_0=(-0.5, 0.5))
    env.step(idle_actions(env))
    frame = env.render()
    height, width, _ = frame.shape
    assert frame.dtype == np.uint8
    assert tuple(frame[height // 2, width // 2]) == colours["wolf"]
    quarter = frame[: height // 2, : width // 2]
    sheep = (quarter == colours["sheep"]).all(-1)
    sheep[: height // 8] = False  # the others stand at the upper edge
    y, x = np.argwhere(sheep).mean(0)
    assert y == pytest.approx(height / 4, abs=0.03 * height)
    assert x == pytest.approx(width / 4, abs=0.03 * width)

    place_agents(env, wolf_0=(0.0, 0.0), sheep_0=(0.0, 0.0))
    env.step(idle_actions(env))  # sheep_0 dies
    assert (env.render() != frame).any()


def test_rendering_changes_no_result():
    plain, rendered = parallel_env("grassland"), parallel_env("grassland", render_mode="rgb_array")
    for env in (plain, rendered):
        env.reset(seed=2)
    for action in (1, 2, 3):
        first, second = (env.step(dict.fromkeys(env.agents, action)) for env in (plain, rendered))
        rendered.render()
        jax.tree.map(np.testing.assert_array_equal, first, second)


def test_environment_passes_the_render_test_of_pettingzoo(displays):
    def env(game, render_mode):
        return parallel_to_aec(parallel_env(game, render_mode=render_mode))

    for game in ("grassland", "predator-prey"):  # with walls, and without
        render_test(partial(env, game))
    assert displays


def test_notebook_shows_every_step_in_one_picture_until_the_environment_is_closed(displays):
    env = parallel_env("food-collection", "3", render_mode="human")
    assert displays == []
    env.reset(seed=0)
    for _ in range(3):
        env.step(dict.fromkeys(env.agents, 1))
    (pictures,) = displays
    assert len(pictures) == 4
    assert len({picture.tobytes() for picture in pictures}) == 4
    env.close()
    env.reset(seed=0)
    assert [len(pictures) for pictures in displays] == [4, 1]
    assert displays[0][0] == displays[1][0]


@pytest.mark.parametrize("there", [False, True])
def test_mode_human_outside_of_a_notebook_is_refused_in_a_sentence(there, displays, monkeypatch):
    if there:  # as in a script
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    else:
        monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(InputError, match=r"shows its frames in notebooks.*use 'rgb_array'"):
        parallel_env("grassland", render_mode="human")


def test_display_keeps_to_its_frames_per_second(displays, monkeypatch):
    clock, slept = [100.0], []
    monkeypatch.setattr(notebook.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(notebook.time, "sleep", slept.append)
    display = notebook.NotebookDisplay(fps=10)
    for passed in (0.0, 0.03, 0.5):
        clock[0] += passed
        display.show(Image.new("RGB", (2, 2)))
    assert slept == [0, pytest.approx(0.07), 0]


def test_render_modes_follow_the_conventions():
    env = parallel_env("grassland")
    assert env.render_mode is None
    assert env.metadata["name"] == "grassland"
    assert env.metadata["render_modes"] == ["human", "rgb_array"]
    assert env.metadata["render_fps"] == 10
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="grassland has no render mode"):
        assert env.render() is None
    env.close()
    with pytest.raises(InputError, match="call reset first"):
        parallel_env("grassland", render_mode="rgb_array").render()
    with pytest.raises(InputError, match="render_mode 'ansi' is unknown: choose human or rgb_arr"):
        Renderer(env.game, "ansi")
    assert parallel_env(Ring, "2-1").metadata["render_modes"] == []
    with pytest.raises(InputError, match="ring has no render_mode: it has no 2-D positions"):
        parallel_env(Ring, "2-1", render_mode="rgb_array")
