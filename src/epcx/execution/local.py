"""Trains and plays on the devices of this machine."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from epcx.execution.arena import Arena, joint_policy
from epcx.execution.compiler import BackgroundCompiler
from epcx.execution.devices import free_memory, local_devices
from epcx.execution.match_trainer import MatchTrainer
from epcx.execution.tasks import Progress, TrainTask, run_task
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import MatchUpdate


class LocalExecutor:
    """Trains all matches of a stage in one task. On GPUs, the next stage compiles meanwhile."""

    def __init__(self, devices: int | None = None):
        """On the first `devices` devices, by default on all."""
        self.devices = local_devices(devices)
        self.precompiles = self.devices[0].platform != "cpu"
        # Stages follow each other: a GPU's memory is free again when the next one starts.
        self.free_bytes = free_memory(self.devices) if self.precompiles else None
        self.compiler = BackgroundCompiler()
        self.trainer: MatchTrainer | None = None
        self.done = 0

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[MatchTrainer], str]
    ) -> None:
        trainer = MatchTrainer(learner, matches, self.devices, self.free_bytes)
        trainer.check_memory(partial(remedy, trainer))

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        return [tuple(range(matches))]

    def train(
        self, tasks: list[TrainTask], notify: Callable[[str], None]
    ) -> Generator[tuple[int, Progress] | None, None, None]:
        (task,) = tasks
        name = task.learner, len(task.matches)
        make = partial(self._trainer, *name, task.state is None, task.agents is None)
        self.trainer = self.compiler.get(name, make)
        self.done = task.done
        yield None
        for progress in run_task(self.trainer, task):
            self.done = progress.done
            yield 0, progress
        self.trainer = None

    def changes(self, task: int, since: int) -> list[MatchUpdate] | None:
        if self.trainer is None or not self.trainer.blocks:
            return None
        states = self.trainer.snapshot(since, self.done)
        return [MatchUpdate(since, self.done, state) for state in states]

    def play(
        self,
        learner: Learner,
        teams: Iterable[PyTree],
        key: Key[Array, ""],
        episodes: int,
        on_played: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        def counted() -> Iterator[PyTree]:
            for number, team in enumerate(teams):
                on_played(number)
                yield team

        arena = self.compiler.get((learner, "games"), partial(self._arena, learner))
        return arena.play(counted(), key, episodes)

    def precompile(self, learner: Learner, matches: int | None) -> None:
        if not self.precompiles:
            return
        if matches is None:
            self.compiler.prepare((learner, "games"), partial(self._arena, learner))
        else:
            make = partial(self._trainer, learner, matches, start=True, new_agents=False)
            self.compiler.prepare((learner, matches), make)

    def describe(self) -> str:
        return self.trainer.describe() if self.trainer else ""

    def close(self) -> None:
        self.compiler.close()

    def _trainer(
        self, learner: Learner, matches: int, start: bool, new_agents: bool
    ) -> MatchTrainer:
        trainer = MatchTrainer(learner, matches, self.devices, self.free_bytes)
        return trainer.compile(start, new_agents) if self.precompiles else trainer

    def _arena(self, learner: Learner) -> Arena:
        arena = Arena(learner.game, joint_policy(learner), self.devices)
        if self.precompiles:
            policies = lambda key: learner.policies(learner.init(key))  # noqa: E731
            arena.compile(jax.eval_shape(policies, jax.random.key(0)))
        return arena
