"""How far the matches of a stage are: what a checkpoint holds of a stage in training."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, PyTree

from epcx.execution.executor import Executor
from epcx.execution.tasks import TrainTask
from epcx.metrics_log import MetricsLog
from epcx.runs.checkpoint import Arrays, Checkpoint, MatchState, MatchUpdate
from epcx.runs.weights import named, unnamed


@dataclass
class StageProgress:
    """How far the matches of a stage are."""

    log: MetricsLog
    done: Int[np.ndarray, "matches"]  # updates
    stopped: Bool[np.ndarray, "matches"]  # diverged
    agents: list[PyTree]  # of matches that have ended; else None
    saved: Int[np.ndarray, "matches"]  # updates that the last checkpoint holds; 0: none

    @classmethod
    def fresh(cls, log: MetricsLog, matches: int) -> "StageProgress":
        done, stopped, saved = (np.zeros(matches, kind) for kind in (int, bool, int))
        return cls(log, done, stopped, [None] * matches, saved)

    @property
    def ended(self) -> bool:
        return all(agents is not None for agents in self.agents)

    def snapshot(
        self, executor: Executor, tasks: list[TrainTask]
    ) -> tuple[list[dict[str, Any]], dict[str, Arrays], dict[str, MatchUpdate]] | None:
        """For a checkpoint: facts about every match, the agents of those that have ended, and what
        the others have changed since the checkpoint before.

        None if that one has states which are not known here, or not yet: it is better.
        """
        updates: dict[str, MatchUpdate] = {}
        about: list[dict[str, Any]] = [
            {"updates": None, "ended": agents is not None, "stopped": bool(stopped)}
            | self.log.to_json(match)
            for match, (agents, stopped) in enumerate(zip(self.agents, self.stopped, strict=True))
        ]
        for number, task in enumerate(tasks):
            if about[task.matches[0]]["ended"]:
                continue
            found = executor.changes(number, int(self.saved[task.matches[0]])) or []
            if not found and self.saved[task.matches[0]]:
                return None
            for match, update in zip(task.matches, found, strict=bool(found)):
                updates[f"match-{match}"] = update
                about[match]["updates"] = update.until
                if update.until != self.done[match]:  # an earlier state, at a line of the log
                    about[match] |= {"weight": 0, "sums": {}}
        for match, known in enumerate(about):
            self.saved[match] = known["updates"] or 0
        agents = {
            f"match-{match}": named(agents)
            for match, agents in enumerate(self.agents)
            if agents is not None
        }
        return about, agents, updates

    def restore(
        self, matches: tuple[int, ...], checkpoint: Checkpoint, like: PyTree
    ) -> tuple[int, list[MatchState] | None]:
        """Where the matches of one task can go on from: none of them, if not all can."""
        saved = [checkpoint.about["matches"][match] for match in matches]
        states = [checkpoint.state(f"match-{match}") for match in matches]
        updates = {match["updates"] for match in saved}
        whole = all(match["ended"] for match in saved)
        goes_on = not whole and len(updates) == 1 and None not in updates
        for match, known, mine in zip(matches, saved, states, strict=True):
            self.log.restore(match, known, sums=goes_on)
            self.stopped[match] = known["stopped"] and (whole or goes_on)
            if whole:
                self.agents[match] = unnamed(mine.arrays, like)
            self.done[match] = known["logged"] if whole else known["updates"] if goes_on else 0
            self.saved[match] = known["updates"] if goes_on else 0
        return (int(self.done[matches[0]]), states) if goes_on else (0, None)
