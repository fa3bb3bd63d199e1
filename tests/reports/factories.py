"""Made-up replays, and reports with made-up results."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from epcx.evaluation.results import Result
from epcx.evaluation.study import Study
from epcx.reports import report, scenes
from epcx.reports.replay import Replay, ReplayRole
from epcx.runs.run import RunFolder

SHEEP, WOLF = "#4f8fd9", "#d9534a"
OpenPage = Callable[..., Page]
STATISTICS = ("reward", "shaping", "ate", "killed", "died", "survival", "coverage")


def make_replay(
    counts: tuple[int, int] = (24, 16), steps: int = 25, food: int = 4, **changes: Any
) -> Replay:
    """A random walk with kills by wolves and food eaten by a sheep."""
    rng = np.random.default_rng(7)
    agents = sum(counts)
    walk = rng.normal(0, 0.08, (steps + 1, agents, 2)).cumsum(0) + rng.uniform(-1, 1, (agents, 2))
    died = np.zeros((steps + 1, agents), bool)
    killed = np.zeros((steps + 1, agents), int)
    for t in range(3, steps + 1, 4):
        died[t, t % counts[0]] = not died[:t, t % counts[0]].any()
        killed[t, counts[0] + t % counts[1]] = died[t].sum()
    alive = ~np.logical_or.accumulate(died, 0)
    occupied = rng.random((steps + 1, food)) < 0.2
    occupied[0] = False
    pellets = np.repeat(rng.uniform(-0.9, 0.9, (1, food, 2)), steps + 1, 0)
    for t in range(1, steps + 1):
        pellets[t] = np.where(
            occupied[t, :, None], rng.uniform(-0.9, 0.9, (food, 2)), pellets[t - 1]
        )
    ate = np.zeros((steps + 1, agents), int)
    ate[:, 0] = occupied.sum(1)
    fields: dict[str, Any] = {
        "game": "grassland",
        "population": f"{counts[0]}-{counts[1]}",
        "title": "Sheep and wolves",
        "roles": (
            ReplayRole("sheep", SHEEP, 0.05, counts[0]),
            ReplayRole("wolf", WOLF, 0.075, counts[1]),
        ),
        "world_size": 1.0,
        "walls": True,
        "food_name": "grass",
        "food_size": 0.03,
        "obstacle_size": 0.2,
        "position": np.clip(walk, -1, 1),
        "alive": alive,
        "food": pellets,
        "obstacles": np.zeros((0, 2)),
        "reward": 5.0 * killed - 5.0 * died + 2.0 * ate,
        "ate": ate,
        "killed": killed,
        "died": died,
        "touched": killed,
        "occupied": occupied,
    }
    return Replay(**(fields | changes))


def without_food(**changes: Any) -> Replay:
    """A replay with obstacles, no food and no deaths, in which agents leave the square."""
    base = make_replay(
        (3, 2), steps=6, food=0, walls=False, obstacles=np.array([[0.5, 0.5], [-0.5, 0.0]])
    )
    none = {name: np.zeros_like(getattr(base, name)) for name in ("died", "killed")}
    return dataclasses.replace(
        base, position=3 * base.position, alive=np.ones_like(base.alive), **none, **changes
    )


def play(study: Study, *_: object) -> list[Result]:
    """Made-up results in place of games: those of EPC are the highest."""
    results = []
    for entry in study.entries():
        name = f"{entry.purpose} {entry.population} {entry.role} {entry.method} {entry.trial}"
        rng = np.random.default_rng(list(f"{name} {entry.against} {entry.trained}".encode()))
        level = 10.0 * entry.method.startswith("epc") + float(rng.normal())
        statistics = {name: {"mean": level + i, "error": 0.1} for i, name in enumerate(STATISTICS)}
        results.append(entry.result(statistics))
    return results


def write(folder: Path, runs: Sequence[RunFolder], **options: Any) -> Path:
    """The page of a report, with made-up results and replays."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Study, "play", play)
        patched.setattr(scenes, "record", lambda *_: make_replay((3, 2), steps=6))
        return report.write_report(Study(runs), folder, 500, **{"title": "A title", **options})[0]
