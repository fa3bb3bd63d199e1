"""An antialiased canvas in world units, with the background of the replay page."""

import math
from functools import cache

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

from epcx.reports.replay import Replay

PAPER, FIELD, EDGE, GRID = "#f7f6f3", "#ffffff", "#d9d6cf", "#f4f2ee"
SUPERSAMPLE = 3

Positions = Float[np.ndarray, "agents 2"]
Point = Float[np.ndarray, "2"] | tuple[float, float]


class Canvas:
    """Draws in world units on a supersampled square of `side` pixels.

    `thin` is the width of a thin line. The view includes every position that was visited.
    """

    def __init__(self, replay: Replay, side: int) -> None:
        s = replay.world_size
        low = np.minimum(replay.position.min((0, 1)), -s)
        high = np.maximum(replay.position.max((0, 1)), s)
        span = float((high - low).max())
        half = span / 2 + max(role.size for role in replay.roles) + 0.012 * span
        self.scale = side * SUPERSAMPLE / (2 * half)
        self.thin = max(1.0, side / 520) * SUPERSAMPLE / self.scale
        self.corner = (low + high) / 2 + np.array([-half, half])

        self.empty = Image.new("RGB", (side * SUPERSAMPLE,) * 2, FIELD)
        self.clear()
        self._grid(s, half)
        box, radius = (0, 0, self.empty.width - 1, self.empty.width - 1), 9 * SUPERSAMPLE
        if replay.walls:
            self.draw.rounded_rectangle(box, radius, None, EDGE, SUPERSAMPLE)
        else:
            self._dashed_square(s)
        self.empty = self.image
        mask = Image.new("L", self.empty.size, 0)
        ImageDraw.Draw(mask).rounded_rectangle(box, radius, 255)
        self.mask = mask.reduce(SUPERSAMPLE)

    def clear(self) -> None:
        self.image = self.empty.copy()
        self.draw = ImageDraw.Draw(self.image, "RGBA")

    def picture(self) -> Image.Image:
        drawn = self.image.reduce(SUPERSAMPLE)
        return Image.composite(drawn, Image.new("RGB", drawn.size, PAPER), self.mask)

    def _grid(self, s: float, half: float) -> None:
        gap = s / 4 * 2 ** max(0, math.ceil(math.log2(half / (2.25 * s))))
        side = self.empty.width
        for k in range(
            math.ceil(self.corner[0] / gap), math.ceil((self.corner[0] + 2 * half) / gap)
        ):
            x, _ = self.pixel((k * gap, 0.0))
            self.draw.line((x, 0, x, side), GRID, SUPERSAMPLE)
        for k in range(
            math.ceil((self.corner[1] - 2 * half) / gap), math.ceil(self.corner[1] / gap)
        ):
            _, y = self.pixel((0.0, k * gap))
            self.draw.line((0, y, side, y), GRID, SUPERSAMPLE)

    def _dashed_square(self, s: float) -> None:
        corners = np.array([(-s, -s), (s, -s), (s, s), (-s, s)])
        dashes = 2 * max(1, round(2 * s * self.scale / (12 * SUPERSAMPLE))) + 1
        for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            ends = np.linspace(start, end, dashes + 1)
            for a, b in zip(ends[:-1:2], ends[1::2], strict=True):
                self.line(a, b, EDGE, self.thin)

    def pixel(self, point: Point) -> tuple[float, float]:
        x, y = float(point[0]), float(point[1])
        return (x - self.corner[0]) * self.scale, (self.corner[1] - y) * self.scale

    def _box(self, point: Point, radius: float) -> tuple[float, float, float, float]:
        (x, y), r = self.pixel(point), max(radius, 0.0) * self.scale
        return x - r, y - r, x + r, y + r

    def disc(self, point: Point, radius: float, colour: str, alpha: float = 1.0) -> None:
        self.draw.ellipse(self._box(point, radius), _rgba(colour, alpha))

    def ring(
        self, point: Point, radius: float, colour: str, width: float, alpha: float = 1.0
    ) -> None:
        """`width` in thin lines."""
        pixels = max(1, round(width * self.thin * self.scale))
        self.draw.ellipse(self._box(point, radius), None, _rgba(colour, alpha), pixels)

    def line(self, a: Point, b: Point, colour: str, width: float, alpha: float = 1.0) -> None:
        """`width` in world units."""
        pixels = max(1, round(width * self.scale))
        self.draw.line((*self.pixel(a), *self.pixel(b)), _rgba(colour, alpha), pixels)

    def strokes(self, a: Positions, b: Positions, colour: str, width: float) -> None:
        """Lines from each of `a` to each of `b` with round ends; `width` in world units."""
        pixels = max(1, round(width * self.scale))
        r = pixels / 2
        ends = (np.concatenate([a, b], -1) - np.tile(self.corner, 2)) * [1, -1, 1, -1] * self.scale
        for x0, y0, x1, y1 in ends.tolist():
            self.draw.line((x0, y0, x1, y1), colour, pixels)
            self.draw.ellipse((x0 - r, y0 - r, x0 + r, y0 + r), colour)
            self.draw.ellipse((x1 - r, y1 - r, x1 + r, y1 + r), colour)


@cache
def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _rgba(colour: str, alpha: float) -> tuple[int, int, int, int]:
    return (*rgb(colour), round(255 * min(max(alpha, 0.0), 1.0)))


def mix(a: str, b: str, share: float) -> str:
    mixed = [round(x + share * (y - x)) for x, y in zip(rgb(a), rgb(b), strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)
