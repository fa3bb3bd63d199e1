"""Metrics between chunks of training and the lines of a run's log."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from epcx.evaluation.summary import REWARDS
from epcx.evolution.curriculum import Stage
from epcx.runs.run import RunFolder

LOG_LINES = 100  # per match and stage


def evenly_spaced(total: int, number: int = LOG_LINES) -> list[int]:
    """The updates after which something is logged or saved: `number` at most, the last included."""
    return sorted({math.ceil(total * (i + 1) / number) for i in range(number)})


class MetricsLog:
    """Gathers the metrics of every match between two log lines.

    Rewards are scored as in evaluation. Updates that are done again are not logged again.
    """

    def __init__(
        self,
        run: RunFolder,
        stage: Stage,
        matches: int,
        before: int,
        track: Callable[[list[dict[str, Any]]], None],
    ):
        """`before` counts the episodes of earlier stages along a lineage; `track` gets all lines
        that are written."""
        self.run, self.stage, self.before, self.track = run, stage, before, track
        self.sums: list[dict[str, np.ndarray]] = [{} for _ in range(matches)]
        self.weights = [0] * matches  # updates in the sums
        self.logged = [0] * matches  # updates at the last line
        self.latest: list[np.ndarray | None] = [None] * matches  # rewards

    def to_json(self, match: int) -> dict[str, Any]:
        return {
            "logged": self.logged[match],
            "weight": self.weights[match],
            "sums": {name: x.tolist() for name, x in self.sums[match].items()},
        }

    def restore(self, match: int, saved: dict[str, Any], sums: bool = True) -> None:
        """Without sums, the match starts from the beginning; logged lines stay."""
        self.logged[match] = saved["logged"]
        if sums:
            self.weights[match] = saved["weight"]
            self.sums[match] = {name: np.array(x) for name, x in saved["sums"].items()}

    def clear(self, numbers: Sequence[int]) -> None:
        """For matches that are done again from their last line, or from their beginning."""
        for match in numbers:
            self.sums[match], self.weights[match] = {}, 0

    def add(self, numbers: Sequence[int], metrics: dict[str, np.ndarray], updates: int) -> None:
        """The means of some matches over a number of updates."""
        for row, match in enumerate(numbers):
            sums = self.sums[match]
            for name, values in metrics.items():
                sums[name] = sums.get(name, 0.0) + values[row].astype(float) * updates
            self.weights[match] += updates
            self.latest[match] = metrics["reward"][row]

    def rewards(self) -> dict[str, float]:
        """The latest of all matches."""
        game = self.stage.game
        latest = np.stack([rewards for rewards in self.latest if rewards is not None])
        return {
            role: float(game.score(latest[:, members], role, axis=1).mean())
            for role, members in game.members.items()
        }

    def write(
        self,
        numbers: Sequence[int],
        episodes: int,
        updates: int,
        seconds: float,
        stopped: np.ndarray,
    ) -> None:
        game = self.stage.game
        rows = []
        for match in numbers:
            row: dict[str, Any] = {
                "stage": self.stage.number,
                "population": str(self.stage),
                "match": match,
                "episodes": self.before + episodes,
                "updates": updates,
                "seconds": round(seconds, 3),
            }
            for name, sums in self.sums[match].items():
                for role, members in game.members.items():
                    values = sums[members] / self.weights[match]
                    pooled = game.score(values, role) if name in REWARDS else values.mean()
                    row[f"{name}/{role}"] = float(pooled)
            if stopped[match]:
                row["diverged"] = True
            if updates > self.logged[match]:
                rows.append(row)
                self.logged[match] = updates
        self.run.append_metrics(rows)
        self.track(rows)
        self.clear(numbers)
