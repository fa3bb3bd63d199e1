"""Frames of the episode that an environment plays: images, or a picture in a notebook."""

import numpy as np
from jaxtyping import UInt8

from epcx.adapters import FRAMES_PER_SECOND, RENDER_MODES
from epcx.errors import InputError
from epcx.games import Game, Outcome, World
from epcx.reports.canvas import Canvas
from epcx.reports.drawing import draw_frame
from epcx.reports.notebook import NotebookDisplay
from epcx.reports.recording import Recorder

SIDE = 520  # pixels


class Renderer:
    """Records an episode, because trails and events are drawn, too.

    The mode `human` shows every step without being asked, as everywhere in PettingZoo.
    """

    def __init__(self, game: Game, mode: str) -> None:
        if mode not in RENDER_MODES:
            raise InputError(f"render_mode {mode!r} is unknown: choose {' or '.join(RENDER_MODES)}")
        if not game.has_scene:
            raise InputError(f"{game.name} has no render_mode: it has no 2-D positions to draw")
        self.game = game
        self.display = NotebookDisplay(FRAMES_PER_SECOND) if mode == "human" else None
        self.recorder: Recorder | None = None

    def begin(self, world: World) -> None:
        """A new episode."""
        self.recorder = Recorder(self.game, world)
        if self.display is not None:
            self.render()

    def add(self, world: World, outcome: Outcome) -> None:
        """A step of it, which led to `world`."""
        assert self.recorder is not None
        self.recorder.add(world, outcome)
        if self.display is not None:
            self.render()

    def render(self) -> UInt8[np.ndarray, "height width 3"] | None:
        if self.recorder is None:
            raise InputError("there is no world yet: call reset first")
        replay = self.recorder.replay(self.game.name)
        picture = draw_frame(Canvas(replay, SIDE), replay, float(replay.steps))
        if self.display is None:
            return np.array(picture)
        self.display.show(picture)
        return None

    def close(self) -> None:
        if self.display is not None:
            self.display.close()
