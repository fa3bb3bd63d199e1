"""How far the matches of a stage are: what a checkpoint holds of a stage in training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, PyTree

from epcx.execution.executor import Executor
from epcx.execution.tasks import TrainTask
from epcx.metrics_log import MetricsLog
from epcx.runs.checkpoint import Arrays, Checkpoint
from epcx.runs.weights import named, unnamed


@dataclass
class StageProgress:
    """How far the matches of a stage are."""

    log: MetricsLog
    done: Int[np.ndarray, "matches"]  # updates
    stopped: Bool[np.ndarray, "matches"]  # diverged
    agents: list[PyTree]  # of matches that have ended; else None

    @classmethod
    def fresh(cls, log: MetricsLog, matches: int) -> "StageProgress":
        return cls(log, np.zeros(matches, int), np.zeros(matches, bool), [None] * matches)

    @property
    def ended(self) -> bool:
        return all(agents is not None for agents in self.agents)

    def snapshot(
        self, executor: Executor, tasks: list[TrainTask]
    ) -> tuple[list[dict[str, Any]], Iterator[tuple[str, Arrays]]]:
        """For a checkpoint: facts about every match, and the arrays to go on from."""
        states: dict[int, Iterator[Arrays]] = {}
        about: list[dict[str, Any]] = [
            {"updates": None, "ended": agents is not None, "stopped": bool(stopped)}
            | self.log.to_json(match)
            for match, (agents, stopped) in enumerate(zip(self.agents, self.stopped, strict=True))
        ]
        for number, task in enumerate(tasks):
            found = None if about[task.matches[0]]["ended"] else executor.states(number)
            if found:
                states[number] = found[1]
                for match in task.matches:
                    about[match]["updates"] = found[0]
                    if found[0] != self.done[match]:  # an earlier state, at a line of the log
                        about[match] |= {"weight": 0, "sums": {}}

        def files() -> Iterator[tuple[str, Arrays]]:
            for match, agents in enumerate(self.agents):
                if agents is not None:
                    yield f"match-{match}", named(agents)
            for number, arrays in states.items():
                for match, mine in zip(tasks[number].matches, arrays, strict=True):
                    yield f"match-{match}", mine

        return about, files()

    def restore(
        self, matches: tuple[int, ...], checkpoint: Checkpoint, like: PyTree
    ) -> tuple[int, list[Arrays] | None]:
        """Where the matches of one task can go on from: none of them, if not all can."""
        saved = [checkpoint.about["matches"][match] for match in matches]
        arrays = [checkpoint.arrays.get(f"match-{match}", {}) for match in matches]
        updates = {match["updates"] for match in saved}
        whole = all(match["ended"] for match in saved)
        goes_on = not whole and len(updates) == 1 and None not in updates
        for match, known, mine in zip(matches, saved, arrays, strict=True):
            self.log.restore(match, known, sums=goes_on)
            self.stopped[match] = known["stopped"] and (whole or goes_on)
            if whole:
                self.agents[match] = unnamed(mine, like)
            self.done[match] = known["logged"] if whole else known["updates"] if goes_on else 0
        return (int(self.done[matches[0]]), arrays) if goes_on else (0, None)
