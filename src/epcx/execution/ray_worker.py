"""What Ray tasks do in their worker processes."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, UInt32

from epcx.execution.arena import Arena, joint_policy
from epcx.execution.devices import CONFIG
from epcx.execution.layout import memory_remedy
from epcx.execution.match_trainer import MatchTrainer, ring_rows
from epcx.execution.tasks import Progress, TrainTask, run_task
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import MatchState


class Resources(NamedTuple):
    """What each task takes of its node."""

    num_cpus: int
    num_gpus: int

    def devices(self) -> int:
        """The number of devices; makes JAX use them, if it has not started yet."""
        if self.num_gpus:
            return self.num_gpus
        with contextlib.suppress(RuntimeError):  # JAX has run in this process, for an earlier task
            CONFIG.update("jax_platforms", "cpu")
            CONFIG.update("jax_num_cpu_devices", self.num_cpus)
        return self.num_cpus


class Changes(NamedTuple):
    """That the states of a task's matches follow: as changes, in these rows of ring buffers."""

    since: int  # updates
    until: int
    rows: tuple[int, ...]


def train_matches(
    task: TrainTask,
    state_seconds: float,
    resources: Resources,
    *changes: list[MatchState],
) -> Iterator[tuple[Progress, Changes | None] | list[MatchState]]:
    """Progress; every `state_seconds` the changes that follow it, and then the states with them.

    `changes` are those that the task has handed over before, from which it goes on.
    """
    width = len(task.matches)
    trainer = cached_trainer(task.learner, width, resources.devices())
    limit = int(0.8 * trainer.free_bytes) // width
    trainer.check_memory(partial(memory_remedy, task.learner, limit))
    try:
        saved, since = time.monotonic(), task.done
        state = join_changes(changes) if changes else None
        for progress in run_task(trainer, replace(task, state=state)):
            due = time.monotonic() - saved >= state_seconds
            if not due or progress.done not in task.log_at or progress.ended:
                yield progress, None
                continue
            rows = ring_rows(trainer.learner, since, progress.done)
            yield progress, Changes(since, progress.done, tuple(rows.tolist()))
            yield trainer.snapshot(since, progress.done)
            saved, since = time.monotonic(), progress.done
    finally:
        trainer.blocks = []


def join_changes(changes: Sequence[list[MatchState]]) -> list[MatchState]:
    """The states of matches after changes that follow each other."""
    return [
        MatchState(mine[-1].arrays, [rows for change in mine for rows in change.rows])
        for mine in zip(*changes, strict=True)
    ]


# Ray asks whether a function is a generator, which decorators such as jaxtyping's would hide.
TRAIN_MATCHES: Any = lambda *arguments: (yield from train_matches(*arguments))  # noqa: E731


def play_games(
    players: tuple[Learner, list[PyTree]],
    key: UInt32[np.ndarray, "words"],
    episodes: int,
    first: int,
    resources: Resources,
) -> list[dict[str, np.ndarray]]:
    """The games of some teams, which are numbers `first`, ... of all that share the key."""
    learner, teams = players
    arena = cached_arena(learner, resources.devices())
    return arena.play(teams, jax.random.wrap_key_data(jnp.asarray(key)), episodes, first)


# Tasks that follow each other in a process share what has been compiled


@lru_cache(maxsize=1)
def cached_trainer(learner: Learner, matches: int, devices: int) -> MatchTrainer:
    return MatchTrainer(learner, matches, jax.local_devices()[:devices])


@lru_cache(maxsize=1)
def cached_arena(learner: Learner, devices: int) -> Arena:
    return Arena(learner.game, joint_policy(learner), jax.local_devices()[:devices])
