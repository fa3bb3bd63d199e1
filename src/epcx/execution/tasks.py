"""Training tasks: some matches of a stage, and the progress they report.

A task is run in the same way on every executor: its outcome does not depend on the machine.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PyTree, UInt32

from epcx.execution.match_trainer import MatchTrainer
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import MatchState

CHUNK_SECONDS = 1.0  # between two reports


@dataclass(frozen=True)
class TrainTask:
    """Matches of a stage that train together, from the beginning or from a saved state."""

    name: str
    learner: Learner
    matches: tuple[int, ...]  # their ids in the stage
    key: UInt32[np.ndarray, "words"]  # of the stage
    agents: PyTree  # [matches, agents, ...]; None: new ones
    updates: int
    log_at: tuple[int, ...]  # updates at which a report ends, the last update included
    snapshot_at: tuple[int, ...] = ()  # updates at which the agents are reported, as at the end
    done: int = 0  # updates after which `state` was saved
    state: list[MatchState] | None = None  # of each match


class Progress(NamedTuple):
    """What has happened since the report before."""

    done: int  # updates since the beginning of the stage
    updates: int  # since the report before; 0: the matches have started
    metrics: dict[str, Float[np.ndarray, "matches agents"]]  # means over these updates
    diverged: Bool[np.ndarray, "matches"]
    agents: PyTree  # [matches, agents, ...] at the end and at snapshots, else None
    ended: bool


def run_task(trainer: MatchTrainer, task: TrainTask) -> Iterator[Progress]:
    """Trains the matches of a task, in chunks of CHUNK_SECONDS."""
    done = task.done
    if task.state is None:
        key = jax.random.wrap_key_data(jnp.asarray(task.key))
        trainer.start(key, task.agents, task.matches)
        if task.snapshot_at:
            yield Progress(0, 0, {}, trainer.diverged(), trainer.agents(), False)
    else:
        trainer.restore(task.state)
        task.state.clear()  # it is on the devices now
    pace = Pace()
    ends = sorted({*task.log_at, *task.snapshot_at})
    while done < task.updates:
        updates = pace.updates(next(end for end in ends if end > done) - done)
        metrics = pace.advance(trainer, updates)
        done += updates
        diverged = trainer.diverged()
        ended = done == task.updates or bool(diverged.all())
        agents = trainer.agents() if ended or done in task.snapshot_at else None
        yield Progress(done, updates, metrics, diverged, agents, ended)
        if ended:
            return


class Pace:
    """Finds the number of updates that takes CHUNK_SECONDS.

    The first chunk is short, and not timed: it includes compilation.
    """

    def __init__(self) -> None:
        self.chunks, self.rate = 0, 0.0

    def updates(self, most: int) -> int:
        return max(1, min(most, int(self.rate * CHUNK_SECONDS)))

    def advance(self, trainer: MatchTrainer, updates: int) -> dict[str, np.ndarray]:
        begin = time.perf_counter()
        metrics = trainer.advance(updates)
        self.chunks += 1
        if self.chunks > 1:
            self.rate = updates / (time.perf_counter() - begin)
        return metrics
