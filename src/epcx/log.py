"""Metrics on their way from chunks of training to the lines of a run's log."""

import math
from typing import Any

import numpy as np

from epcx.evaluation.evaluate import REWARDS
from epcx.evolution.curriculum import Stage
from epcx.runs.run import Run

LOG_LINES = 100  # per match and stage


def marks(total: int, number: int = LOG_LINES) -> list[int]:
    """The updates after which something is kept, `number` times at most and at the end."""
    return sorted({math.ceil(total * (i + 1) / number) for i in range(number)})


class Log:
    """Gathers metrics between two log lines. Rewards are scored as in evaluation."""

    def __init__(self, run: Run, stage: Stage, matches: int, before: int):
        """`before` counts the episodes of earlier stages along a lineage."""
        self.run, self.stage, self.matches, self.before = run, stage, matches, before
        self.sums: dict[str, np.ndarray] = {}
        self.weight = 0

    def snapshot(self) -> dict[str, Any]:
        return {"weight": self.weight, "sums": {k: v.tolist() for k, v in self.sums.items()}}

    def restore(self, saved: dict[str, Any]) -> None:
        self.weight = saved["weight"]
        self.sums = {name: np.array(values) for name, values in saved["sums"].items()}

    def add(self, metrics: dict[str, np.ndarray], updates: int) -> None:
        self.weight += updates
        for name, values in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.astype(float) * updates

    def rewards(self, metrics: dict[str, np.ndarray]) -> dict[str, float]:
        game = self.stage.game
        return {
            role: float(game.score(metrics["reward"][:, members], role, axis=1).mean())
            for role, members in game.members.items()
        }

    def write(self, episodes: int, updates: int, seconds: float, stopped: np.ndarray) -> None:
        game = self.stage.game
        rows = []
        for match in range(self.matches):
            row: dict[str, Any] = {
                "stage": self.stage.number,
                "population": str(self.stage),
                "match": match,
                "episodes": self.before + episodes,
                "updates": updates,
                "seconds": round(seconds, 3),
            }
            for name, sums in self.sums.items():
                for role, members in game.members.items():
                    values = sums[match, members] / self.weight
                    pooled = game.score(values, role) if name in REWARDS else values.mean()
                    row[f"{name}/{role}"] = float(pooled)
            if stopped[match]:
                row["diverged"] = True
            rows.append(row)
        self.run.log(rows)
        self.sums, self.weight = {}, 0
