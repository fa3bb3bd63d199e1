"""The contract of an executor: where matches train and games are played."""

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Key, PyTree

from epcx.execution.match_trainer import MatchTrainer
from epcx.execution.tasks import Progress, TrainTask
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import MatchUpdate


@runtime_checkable
class Executor(Protocol):
    """The devices of this machine (LocalExecutor), or a cluster (RayExecutor)."""

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[MatchTrainer], str]
    ) -> None:
        """Refuses matches that would not fit; `remedy` names the options that help."""

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        """Splits matches 0, 1, ... of a stage into those that train in one task."""

    def train(
        self, tasks: list[TrainTask], notify: Callable[[str], None]
    ) -> Generator[tuple[int, Progress] | None, None, None]:
        """Yields progress with the index of its task; None first, and while there is none.

        Work that is lost is repeated, and reported again from an earlier update on; `notify` gets
        a message then. Closing the generator cancels what still runs.
        """

    def changes(self, task: int, since: int) -> list[MatchUpdate] | None:
        """The newest known state of a task's matches, as changes since a number of updates.

        Or since an earlier one, if that is not known; None if no state is.
        """

    def play(
        self,
        learner: Learner,
        teams: Iterable[PyTree],
        key: Key[Array, ""],
        episodes: int,
        on_played: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        """The results of each team of policies: arrays [agents, episodes], see `Arena.play`.

        `on_played` is called now and then with the number of teams that have played.
        """

    def precompile(self, learner: Learner, matches: int | None) -> None:
        """Announces that matches of a learner will train, or (None) that it will play games."""

    def describe(self) -> str:
        """What trains where, during `train`."""

    def close(self) -> None:
        """Releases threads and connections."""
