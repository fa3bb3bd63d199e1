"""Draws the frames of a replay with Pillow, as the replay page does in its light theme."""

import bisect
import io
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont

from epcx.reports.canvas import EDGE, FIELD, PAPER, SUPERSAMPLE, Canvas, Positions, mix, rgb
from epcx.reports.replay import Replay

INK, MUTED = "#22252a", "#686d76"
FOOD, OBSTACLE, DEAD, SPARK = "#5aa553", "#b7bac0", "#3b3e44", "#e8a33d"

TRAIL_STEPS, TRAIL_PARTS = 3.0, 12
# How many steps an event stays visible.
EAT_AGE, GROW_AGE, KILL_AGE, CONTACT_AGE = 2.4, 0.7, 2.8, 1.2

GIF_SIDE, GIF_SUBSTEPS, GIF_FRAME_MS, GIF_HOLD_MS = 520, 2, 80, 1000
GIF_COLOURS = 128
PNG_SIDE, PNG_FRAMES = 300, 6
MIN_RADIUS = 3.0  # pixels of the smallest agents, in larger pictures if need be

Number = int | float
Sizes = Float[np.ndarray, "agents"]


def positions(replay: Replay, time: float) -> Positions:
    """Positions at any time between two frames: a monotone cubic, as on the page."""
    t = min(int(time), max(replay.steps - 1, 0))
    s = time - t
    if s == 0 or replay.steps == 0:
        return np.asarray(replay.position[t])

    def tangent(k: int) -> Positions:
        if k in (0, replay.steps):
            return np.zeros_like(replay.position[0])
        before, after = np.diff(replay.position[k - 1 : k + 2], axis=0)
        total = np.where(before * after > 0, before + after, 1.0)
        return np.where(before * after > 0, 2 * before * after / total, 0.0)

    start, end = replay.position[t], replay.position[t + 1]
    return np.asarray(
        (1 + 2 * s) * (1 - s) ** 2 * start
        + s * (1 - s) ** 2 * tangent(t)
        + s * s * (3 - 2 * s) * end
        + s * s * (s - 1) * tangent(t + 1)
    )


def animation(replay: Replay) -> list[Image.Image]:
    """Frames with the title above, and the step and the roles below."""
    width, head, foot, gap = GIF_SIDE + 24, 40, 36, 12
    page = Image.new("RGB", (width, head + GIF_SIDE + foot), PAPER)
    _text(page, gap, head / 2, replay.title, 15, INK, width - 2 * gap)
    _legend(page, gap, head + GIF_SIDE + foot // 2, replay, width - 130)

    canvas = Canvas(replay, GIF_SIDE)
    frames = []
    for substep in range(replay.steps * GIF_SUBSTEPS + 1):
        frame = page.copy()
        frame.paste(draw_frame(canvas, replay, substep / GIF_SUBSTEPS), (gap, head))
        step = f"step {substep // GIF_SUBSTEPS} / {replay.steps}"
        _text(frame, width - gap, head + GIF_SIDE + foot / 2, step, 13, MUTED, width, "rm")
        frames.append(frame)
    return frames


def to_gif(replay: Replay) -> bytes:
    """A looped animation."""
    frames = animation(replay)
    indexed = _indexed(frames, replay)
    durations = [GIF_FRAME_MS] * (len(frames) - 1) + [GIF_HOLD_MS]
    file = io.BytesIO()
    indexed[0].save(
        file, "GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0
    )
    return file.getvalue()


def to_png(replay: Replay) -> bytes:
    """A strip of frames, evenly spaced over the episode, each with its step, and a legend."""
    steps = np.unique(np.linspace(0, replay.steps, PNG_FRAMES).round().astype(int))
    gap, head, caption, foot = 16, 46, 30, 40
    side = side_of(replay, PNG_SIDE)
    width = max(gap + len(steps) * (side + gap), 2 * side)
    image = Image.new("RGB", (width, head + side + caption + foot), PAPER)
    _text(image, gap, head / 2, replay.title, 19, INK, width - 2 * gap)
    canvas = Canvas(replay, side)
    for k, step in enumerate(steps):
        left = gap + k * (side + gap)
        image.paste(draw_frame(canvas, replay, float(step)), (left, head))
        below = head + side + caption / 2
        _text(image, left + side / 2, below, f"step {step}", 14, MUTED, side, "mm")
    _legend(image, gap, head + side + caption + foot // 2 - 4, replay, width - gap)
    (indexed,) = _indexed([image], replay)  # a third of the size
    file = io.BytesIO()
    indexed.save(file, "PNG", optimize=True)
    return file.getvalue()


def side_of(replay: Replay, side: int) -> int:
    """In pixels: up to twice as much as `side` in large worlds, where agents are small."""
    smallest = min(role.size for role in replay.roles)
    return round(min(max(side, 2 * MIN_RADIUS * replay.world_size / smallest), 2 * side))


def draw_frame(canvas: Canvas, replay: Replay, time: float) -> Image.Image:
    """The world at `time`, in steps, as a square picture."""
    canvas.clear()
    frame = min(int(time), replay.steps)
    now = positions(replay, time)
    role_of = replay.role_of
    size = np.array([role.size for role in replay.roles])[role_of]
    colour = [replay.roles[r].colour for r in role_of]
    _draw_ground(canvas, replay, frame)
    _draw_trails(canvas, replay, time)
    for t, grown, fade in _recent(time, frame, KILL_AGE):
        for i in np.flatnonzero(replay.died[t]):
            canvas.disc(now[i], size[i] * (1.4 + 0.6 * grown), SPARK, 0.42 * fade)

    for i in np.flatnonzero(~replay.alive[frame]):
        canvas.disc(now[i], 0.86 * size[i], DEAD, 0.88)
        canvas.ring(now[i], 0.86 * size[i], colour[i], 1.2, 0.6)
    for i in np.flatnonzero(replay.alive[frame]):
        canvas.disc(now[i], size[i], FIELD)
        canvas.disc(now[i], max(size[i] - 0.9 * canvas.thin, 0.75 * size[i]), colour[i])
    for f in range(replay.food.shape[1]):
        grown = _ease(0.3 + (time - _last_move(replay, frame, f)) / GROW_AGE)
        canvas.disc(replay.food[frame, f], replay.food_size * grown + canvas.thin, FIELD)
        canvas.disc(replay.food[frame, f], replay.food_size * grown, FOOD)
    _draw_events(canvas, replay, time, frame, now, size, colour)
    return canvas.picture()


def _draw_ground(canvas: Canvas, replay: Replay, frame: int) -> None:
    """Obstacles, and a glow under occupied food in games where food does not move."""
    for place in replay.obstacles:
        canvas.disc(place, replay.obstacle_size, OBSTACLE)
    if (replay.food == replay.food[:1]).all():
        for place in replay.food[frame][replay.occupied[frame]]:
            canvas.disc(place, 2.6 * replay.food_size, FOOD, 0.22)
            canvas.ring(place, 2.6 * replay.food_size, FOOD, 1.2, 0.9)


def _draw_trails(canvas: Canvas, replay: Replay, time: float) -> None:
    """Opaque tints from the oldest part to the newest: no seams, few colours for the GIF."""
    trail = np.linspace(max(time - TRAIL_STEPS, 0), time, TRAIL_PARTS + 1)
    path = [positions(replay, float(then)) for then in trail]
    for part in range(TRAIL_PARTS):
        share = 1 - (time - trail[part + 1]) / TRAIL_STEPS
        moving = (path[part] != path[part + 1]).any(-1)
        for r, role in enumerate(replay.roles):
            who = moving & (replay.role_of == r)
            tint = mix(FIELD, role.colour, 0.45 * share**1.4)
            canvas.strokes(path[part][who], path[part + 1][who], tint, 1.4 * role.size * share)


def _draw_events(
    canvas: Canvas,
    replay: Replay,
    time: float,
    frame: int,
    now: Positions,
    size: Sizes,
    colour: list[str],
) -> None:
    """Recent events: food eaten, contacts, kills."""
    for t, grown, fade in _recent(time, frame, EAT_AGE):
        moved = (replay.food[t] != replay.food[t - 1]).any(-1)
        for place in replay.food[t - 1][replay.occupied[t] & moved]:
            canvas.ring(place, replay.food_size * (1.3 + 2.4 * grown), FOOD, 0.6 + 2.4 * fade, fade)
    if not replay.died.any():
        for t, grown, fade in _recent(time, frame, CONTACT_AGE):
            for i in np.flatnonzero(replay.touched[t]):
                canvas.ring(now[i], size[i] + canvas.thin * (1 + 3 * grown), SPARK, 2.0, fade)
    for t, grown, fade in _recent(time, frame, KILL_AGE):
        for i in np.flatnonzero(replay.died[t]):
            killers = _killers(replay, t, int(i), size)
            for k in killers:
                canvas.line(now[k], now[i], colour[k], 2.2 * canvas.thin, 0.9 * fade)
            burst = colour[killers[0]] if killers else INK
            near, far = size[i] * (1.2 + 0.6 * grown), size[i] * (1.6 + 0.75 * grown)
            for angle in (np.arange(12) + 0.5) * np.pi / 6:
                direction = np.array([math.cos(angle), math.sin(angle)])
                start, end = now[i] + near * direction, now[i] + far * direction
                canvas.line(start, end, burst, 1.5 * canvas.thin, fade)


def _recent(time: float, frame: int, limit: float) -> Iterator[tuple[int, float, float]]:
    """Frames not older than `limit`, each with the growth and the opacity of its effects."""
    for t in range(max(1, math.ceil(time - limit)), frame + 1):
        age = (time - t) / limit
        if age < 1:
            yield t, _ease(age), 1 - age


def _killers(replay: Replay, t: int, victim: int, size: Sizes) -> list[int]:
    """Agents of other roles that killed in this step and touch the victim, or else the nearest."""
    role_of = replay.role_of
    candidates = np.flatnonzero((replay.killed[t] > 0) & (role_of != role_of[victim]))
    distance = np.linalg.norm(replay.position[t, candidates] - replay.position[t, victim], axis=-1)
    gap = distance - size[candidates] - size[victim]
    order = np.argsort(gap)
    return [int(candidates[k]) for n, k in enumerate(order) if n == 0 or gap[k] < 1e-3]


def _last_move(replay: Replay, frame: int, f: int) -> float:
    """The latest frame, up to `frame`, in which pellet `f` had moved."""
    moved = (np.diff(replay.food[: frame + 1, f], axis=0) != 0).any(-1)
    return float(np.flatnonzero(moved)[-1] + 1) if moved.any() else -math.inf


def _ease(x: float) -> float:
    return 1 - (1 - min(max(x, 0.0), 1.0)) ** 3


def _indexed(frames: list[Image.Image], replay: Replay) -> list[Image.Image]:
    """The frames in the colours of one palette, which has those of the replay."""
    exact = [PAPER, FIELD, EDGE, INK, MUTED, FOOD, *(role.colour for role in replay.roles)]
    palette = _palette(frames, exact)
    return [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]


def _palette(frames: list[Image.Image], exact: list[str]) -> Image.Image:
    """One palette, from a sample of frames; it contains `exact` unchanged."""
    chosen = [frames[k] for k in np.unique(np.linspace(0, len(frames) - 1, 8).astype(int))]
    sheet = Image.new("RGB", (sum(frame.width for frame in chosen), chosen[0].height))
    for k, frame in enumerate(chosen):
        sheet.paste(frame, (k * frame.width, 0))
    found = sheet.quantize(GIF_COLOURS, Image.Quantize.MEDIANCUT).getpalette() or []
    colours = np.array([rgb(colour) for colour in exact])
    others = np.array(found).reshape(-1, 3)[:GIF_COLOURS]
    # Pillow matches approximately, and may prefer a colour next to the exact one.
    apart = np.abs(others[:, None] - colours).max(-1).min(-1) > 8
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([colours, others[apart]]).ravel().tolist())
    return palette


def _text(
    image: Image.Image,
    x: Number,
    y: Number,
    text: str,
    size: int,
    colour: str,
    room: Number,
    anchor: str = "lm",
) -> float:
    """Writes one line, shortened to `room` pixels; returns its width."""
    font = _font(size)
    draw = ImageDraw.Draw(image)
    text = " ".join(text.split())
    if draw.textlength(text, font) > room:
        shortened = [text[:n].rstrip() + "..." for n in range(min(len(text), 300))]
        fitting = bisect.bisect(shortened, room, key=lambda short: draw.textlength(short, font))
        text = shortened[max(fitting - 1, 0)]
    draw.text((x, y), text, colour, font, anchor)
    return draw.textlength(text, font)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _legend(image: Image.Image, left: Number, middle: int, replay: Replay, right: Number) -> None:
    """A line of coloured discs and names: the roles, the food, the dead."""
    entries = [(f"{role.name} ({role.count})", role.colour) for role in replay.roles]
    entries += [(replay.food_name, FOOD)] if replay.food.shape[1] else []
    entries += [("dead", DEAD)] if replay.died.any() else []
    for name, colour in entries:
        if left + 30 > right:
            return
        dot = Image.new("RGB", (11 * SUPERSAMPLE,) * 2, PAPER)
        ImageDraw.Draw(dot).ellipse((0, 0, dot.width - 1, dot.height - 1), colour)
        image.paste(dot.reduce(SUPERSAMPLE), (int(left), middle - 6))
        left += 17 + _text(image, left + 17, middle, name, 13, MUTED, right - left - 17) + 18
