"""Trains and plays on a Ray cluster, in tasks of some matches or some games.

Ray decides where they run, moves what they need and what they return, and notices what has died. A
training task that is lost is repeated elsewhere, from the last state that it has handed over.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from epcx.errors import InputError, RunError, whole_number
from epcx.execution.code_shipping import Shipped
from epcx.execution.devices import format_bytes
from epcx.execution.layout import memory_remedy
from epcx.execution.match_trainer import MatchTrainer
from epcx.execution.ray_cluster import RayCluster, reraise_own_errors
from epcx.execution.ray_worker import TRAIN_MATCHES, Changes, Resources, join_changes, play_games
from epcx.execution.tasks import Progress, TrainTask
from epcx.learners.learner import Learner, state_bytes
from epcx.runs.checkpoint import MatchUpdate, without_overwritten

POLL_SECONDS = 0.5  # between two looks for interrupts
RETRIES = 3  # of a task that does not get any further
MAX_TEAMS = 32  # in a task
cached_state_bytes = lru_cache(maxsize=8)(state_bytes)  # asked for every task


@dataclass(frozen=True)
class HandedOver:
    """Changes of states, which the cluster keeps."""

    changes: Changes
    reference: Any

    @property
    def rows(self) -> tuple[int, ...]:
        return self.changes.rows


@dataclass
class RunningTask:
    """A training task, and the state that it can continue from."""

    task: TrainTask  # padded
    matches: int  # without padding
    changes: list[HandedOver] = field(default_factory=list)  # the first from the beginning
    furthest: int = 0  # the last update that was logged
    failures: int = 0  # since then
    ended: bool = False  # its last report has come

    @property
    def done(self) -> int:
        """Updates after which the state is known."""
        return self.changes[-1].changes.until if self.changes else 0


class RayExecutor:
    """Joins the cluster at an address, or starts Ray on this machine."""

    def __init__(
        self,
        address: str | None = None,
        gpus_per_task: int | None = None,
        cpus_per_task: int = 1,
        matches_per_task: int | None = None,
        state_seconds: float = 45.0,
    ):
        """A task takes one GPU by default, or one CPU where there are no GPUs.

        It hands over its state every `state_seconds`.
        """
        whole_number("cpus-per-task", cpus_per_task, 1)
        if gpus_per_task is not None:
            whole_number("gpus-per-task", gpus_per_task, 0)
        if matches_per_task is not None:
            whole_number("matches-per-task", matches_per_task, 1)
        self.cluster = RayCluster(address)
        self.ray = self.cluster.ray
        try:
            gpus = int(self.cluster.total("GPU") > 0) if gpus_per_task is None else gpus_per_task
            self.resources = Resources(cpus_per_task, gpus)
            for kind, number in (("CPU", cpus_per_task), ("GPU", gpus)):
                if number > self.cluster.largest(kind):
                    raise InputError(
                        f"{kind.lower()}s-per-task {number}: no node of the cluster has more than "
                        f"{self.cluster.largest(kind):g} {kind}s"
                    )
            self.cluster.check_versions()
        except BaseException:
            self.close()
            raise
        self.kind, self.per_task = ("GPU", gpus) if gpus else ("CPU", cpus_per_task)
        self.slots = max(1, self.cluster.slots(self.kind, self.per_task))  # tasks at a time
        self.matches_per_task, self.width = matches_per_task, 1
        self.state_seconds = state_seconds
        self.tasks: list[RunningTask] = []

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[MatchTrainer], str]
    ) -> None:
        """Checks the memory of nodes; that of GPUs is checked by the tasks."""
        width = len(self.slices(matches)[0])
        needed, most = self._node_memory(learner, width), int(self.cluster.largest("memory"))
        if needed > most:
            raise InputError(
                f"a task of {width} match{'es' * (width > 1)} takes {format_bytes(needed)}, and no "
                f"node of the cluster has more than {format_bytes(most)}: "
                f"{memory_remedy(learner, most // width)}"
            )

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        """By default single matches on CPUs, and on GPUs as many as give each GPU one task."""
        default = -(-matches // self.slots) if self.kind == "GPU" else 1
        self.width = min(self.matches_per_task or default, matches)
        return [
            tuple(range(first, min(first + self.width, matches)))
            for first in range(0, matches, self.width)
        ]

    def train(
        self, tasks: list[TrainTask], notify: Callable[[str], None]
    ) -> Generator[tuple[int, Progress] | None, None, None]:
        self.tasks = [
            RunningTask(pad(task, self.width), len(task.matches), self._put(task)) for task in tasks
        ]
        running = {self._submit(one): index for index, one in enumerate(self.tasks)}
        try:
            while running:
                ready, _ = self.ray.wait(list(running), timeout=POLL_SECONDS, fetch_local=False)
                if not ready:
                    yield None
                for results in ready:
                    index = running[results]
                    one = self.tasks[index]
                    try:
                        progress, saved = self.ray.get(next(results))
                        if saved:
                            over = HandedOver(saved, next(results))
                            one.changes = without_overwritten([*one.changes, over])
                    except StopIteration:
                        del running[results]
                        if not one.ended:  # its worker died between two reports
                            self._recover(one, None, notify)
                            running[self._submit(one)] = index
                    except self.ray.exceptions.RayError as error:
                        del running[results]
                        self._recover(one, error, notify)
                        running[self._submit(one)] = index
                    else:
                        one.ended = progress.ended
                        if progress.done > one.furthest and progress.done in one.task.log_at:
                            one.furthest, one.failures = progress.done, 0
                        yield index, trim(progress, one.matches)
        finally:
            for results in running:
                with contextlib.suppress(Exception):
                    self.ray.cancel(results, force=True)

    def changes(self, task: int, since: int) -> list[MatchUpdate] | None:
        one = self.tasks[task]
        if not one.changes:
            return None
        newer = [over for over in one.changes if over.changes.since >= since]
        if since != one.done and (not newer or newer[0].changes.since != since):
            newer, since = one.changes, 0
        try:
            # Of the newest, all arrays are needed, whether it has rows or not.
            states = join_changes(self.ray.get([x.reference for x in newer or one.changes[-1:]]))
        except self.ray.exceptions.RayError:  # lost with its node: the task will be repeated, too
            return None
        if not newer:
            states = [state._replace(rows=[]) for state in states]
        return [MatchUpdate(since, one.done, state) for state in states[: one.matches]]

    def play(
        self,
        learner: Learner,
        teams: Iterable[PyTree],
        key: Key[Array, ""],
        episodes: int,
        on_played: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        every = list(teams)
        size = min(MAX_TEAMS, -(-len(every) // self.slots))
        remote = self._remote(play_games, max_retries=RETRIES)
        name = f"{learner.game.name} {learner.game.population}: games"
        data = np.asarray(jax.random.key_data(key))
        results = []
        for first in range(0, len(every), size):
            players = Shipped(learner, (learner, every[first : first + size]))
            named = remote.options(name=f"{name} {first}")
            results.append(named.remote(players, data, episodes, first, self.resources))
        waiting = results
        try:
            while waiting:
                on_played((len(results) - len(waiting)) * size)
                _, waiting = self.ray.wait(waiting, timeout=POLL_SECONDS)
            return [played for some in self.ray.get(results) for played in some]
        except self.ray.exceptions.RayError as error:
            reraise_own_errors(error)
            cause = self.cluster.cause_of(error)
            raise RunError(f"the games for the fitness have failed: {cause}") from None
        finally:
            for result in waiting:
                self.ray.cancel(result, force=True)

    def precompile(self, learner: Learner, matches: int | None) -> None:
        """Does nothing: tasks compile what their node has not in its cache."""

    def describe(self) -> str:
        number, width = len(self.tasks), max(len(one.task.matches) for one in self.tasks)
        return (
            f"{number} task{'s' * (number > 1)} of {width} match{'es' * (width > 1)} with "
            f"{self.per_task} {self.kind}{'s' * (self.per_task > 1)} each, on a cluster of "
            f"{self.cluster.total(self.kind):g}"
        )

    def close(self) -> None:
        self.cluster.close()

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        # A process cannot move to another GPU: there it ends with its task.
        once = {"max_calls": 1} if self.kind == "GPU" else {}
        return self.ray.remote(**self.resources._asdict(), **once, **options)(function)

    def _submit(self, one: RunningTask) -> Any:
        task = replace(one.task, done=one.done, state=None)
        memory = self._node_memory(task.learner, len(task.matches))
        remote = self._remote(TRAIN_MATCHES, max_retries=0, memory=memory).options(name=task.name)
        known = (over.reference for over in one.changes)
        return remote.remote(
            Shipped(task.learner, task), self.state_seconds, self.resources, *known
        )

    def _recover(
        self, one: RunningTask, error: Exception | None, notify: Callable[[str], None]
    ) -> None:
        """Decides from which state a failed task continues; raises if it fails again and again."""
        if error is not None:
            reraise_own_errors(error)
        one.failures += 1
        cause = self.cluster.cause_of(error) if error else "its reports ended too early"
        if one.failures > RETRIES:
            raise RunError(
                f"{one.task.name} has failed {one.failures} times in a row: {cause}"
            ) from None
        if isinstance(error, self.ray.exceptions.ObjectLostError) or one.failures == RETRIES:
            one.changes = []
        notify(f"{one.task.name}: {cause}; it is repeated from update {one.done}")

    def _put(self, task: TrainTask) -> list[HandedOver]:
        """The state that a task begins with, padded."""
        if task.state is None:
            return []
        padded = task.state + task.state[-1:] * (self.width - len(task.state))
        rows = {int(row) for some in task.state[0].rows for row in some.rows}
        return [HandedOver(Changes(0, task.done, tuple(rows)), self.ray.put(padded))]

    def _node_memory(self, learner: Learner, width: int) -> int:
        """Bytes of its node's memory that a task takes."""
        return cached_state_bytes(learner) * width if self.kind == "CPU" else 0


def pad(task: TrainTask, width: int) -> TrainTask:
    """Repeats the last match up to `width`: tasks of one width share a compiled program."""
    spare = width - len(task.matches)
    agents = task.agents
    if agents is not None:
        agents = jax.tree.map(lambda x: np.concatenate([x, *[x[-1:]] * spare]), agents)
    return replace(task, matches=task.matches + task.matches[-1:] * spare, agents=agents)


def trim(progress: Progress, matches: int) -> Progress:
    """Without padding."""
    metrics, diverged, agents = jax.tree.map(
        lambda x: x[:matches], (progress.metrics, progress.diverged, progress.agents)
    )
    return progress._replace(metrics=metrics, diverged=diverged, agents=agents)
