"""A Ray cluster as a site of work: slices of matches and batches of games are its tasks.

Ray decides where they run, moves what they need and what they give, and notices what has died. A
slice that is lost is done again elsewhere, from the last state that it has handed over.
"""

import contextlib
import importlib.util
import os
import platform
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epcx.engines.arena import Arena, everybody
from epcx.engines.devices import CONFIG, in_words
from epcx.engines.local import LocalEngine
from epcx.engines.work import Order, Report, work
from epcx.errors import InputError, RunError, whole_number
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import Arrays
from epcx.runs.provenance import cores

ANSWER_SECONDS = 5.0  # for a head node to accept a connection
NODE_SECONDS = 120.0  # for every node to say what it has installed
LISTEN_SECONDS = 0.5  # between two looks at the keyboard
RETRIES = 3  # of a task that gets no further
MOST_TEAMS = 32  # in a task
# Nameless, so that it is sent as it is: epcx may be missing where it runs.
VERSIONS: Any = lambda: {  # noqa: E731
    "Python": platform.python_version(),
    **{
        name: __import__(name).__version__ if importlib.util.find_spec(name) else "missing"
        for name in ("jax", "epcx")
    },
}


@dataclass
class Slice:
    """An order on its way, and the state that it can go on from."""

    order: Order  # with spare places
    matches: int  # without
    done: int = 0
    state: Any = None  # a reference to what a task has handed over
    furthest: int = 0  # the last line of the log that was reached
    failures: int = 0  # since then


class Cluster:
    """Joins the cluster at an address, or else starts Ray on this machine."""

    def __init__(
        self,
        address: str | None = None,
        gpus_per_task: int | None = None,
        cpus_per_task: int = 1,
        matches_per_task: int | None = None,
        state_seconds: float = 180.0,
    ):
        """A task takes one GPU by default, or one CPU where there are no GPUs.

        It hands over its state every `state_seconds`.
        """
        whole_number("cpus-per-task", cpus_per_task, 1)
        if gpus_per_task is not None:
            whole_number("gpus-per-task", gpus_per_task, 0)
        if matches_per_task is not None:
            whole_number("matches-per-task", matches_per_task, 1)
        self.ray = installed_ray()
        self.owned = not self.ray.is_initialized()
        if self.owned:
            self._connect(address)
        try:
            self.nodes = [node for node in self.ray.nodes() if node["Alive"]]
            gpus = int(self._total("GPU") > 0) if gpus_per_task is None else gpus_per_task
            self.needs = {"num_cpus": cpus_per_task, "num_gpus": gpus}
            for option, kind, number in (
                ("cpus-per-task", "CPU", cpus_per_task),
                ("gpus-per-task", "GPU", gpus),
            ):
                if number > self._most(kind):
                    raise InputError(
                        f"{option} {number}: no node of the cluster has more than "
                        f"{self._most(kind):g} {kind}s"
                    )
            self._check_versions()
        except BaseException:
            self.close()
            raise
        self.matches_per_task, self.width = matches_per_task, 1
        self.state_seconds = state_seconds
        self.work: list[Slice] = []

    # What the trainer asks for

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        """By default single matches on CPUs, and on GPUs as many as give each GPU one task."""
        wanted = self.matches_per_task or (
            -(-matches // self._slots) if self.needs["num_gpus"] else 1
        )
        self.width = min(wanted, matches)
        return [
            tuple(range(first, min(first + self.width, matches)))
            for first in range(0, matches, self.width)
        ]

    def train(
        self, orders: list[Order], say: Callable[[str], None]
    ) -> Generator[tuple[int, Report] | None, None, None]:
        self.work = [
            Slice(padded(order, self.width), len(order.numbers), order.done, self._put(order))
            for order in orders
        ]
        running = {self._send(one): number for number, one in enumerate(self.work)}
        try:
            while running:
                ready, _ = self.ray.wait(list(running), timeout=LISTEN_SECONDS, fetch_local=False)
                if not ready:
                    yield None
                for reports in ready:
                    number = running[reports]
                    one = self.work[number]
                    try:
                        report, hands_over = self.ray.get(next(reports))
                        if hands_over:
                            one.state, one.done = next(reports), report.done
                    except StopIteration:
                        del running[reports]
                    except self.ray.exceptions.RayError as error:
                        del running[reports]
                        self._lost(one, error, say)
                        running[self._send(one)] = number
                    else:
                        if report.done > one.furthest and report.done in one.order.lines:
                            one.furthest, one.failures = report.done, 0
                        yield number, trimmed(report, one.matches)
        finally:
            for reports in running:
                with contextlib.suppress(Exception):
                    self.ray.cancel(reports, force=True)

    def states(self, order: int) -> tuple[int, Iterator[Arrays]] | None:
        one = self.work[order]
        if one.state is None:
            return None
        try:
            return one.done, iter(self.ray.get(one.state)[: one.matches])
        except self.ray.exceptions.RayError:  # lost with its node: the slice is done again, too
            return None

    def play(
        self,
        learner: Learner,
        teams: Iterable[Any],
        key: Array,
        episodes: int,
        watch: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        players = list(teams)
        size = min(MOST_TEAMS, -(-len(players) // self._slots))
        task = self._task(play_games, max_retries=RETRIES)
        name = f"{learner.game.name} {learner.game.population}: games"
        numbers = jax.random.key_data(key)
        results = [
            task.options(name=f"{name} {first}").remote(
                learner,
                players[first : first + size],
                np.asarray(numbers),
                episodes,
                first,
                self.needs,
            )
            for first in range(0, len(players), size)
        ]
        waiting = results
        try:
            while waiting:
                watch((len(results) - len(waiting)) * size)
                _, waiting = self.ray.wait(waiting, timeout=LISTEN_SECONDS)
            return [played for some in self.ray.get(results) for played in some]
        except self.ray.exceptions.RayError as error:
            told_by_us(error)
            raise RunError(
                f"the games for the fitness have failed: {why(self.ray, error)}"
            ) from None
        finally:
            for result in waiting:
                self.ray.cancel(result, force=True)

    def look_ahead(self, learner: Learner, matches: int | None) -> None:
        """Nothing: every task compiles what it needs, if its node has not done so before."""

    def in_words(self) -> str:
        tasks = len(self.work)
        each = max(len(one.order.numbers) for one in self.work)
        kind = "GPU" if self.needs["num_gpus"] else "CPU"
        number = self.needs["num_gpus"] or self.needs["num_cpus"]
        return (
            f"{tasks} task{'s' * (tasks > 1)} of {each} match{'es' * (each > 1)} with {number} "
            f"{kind}{'s' * (number > 1)} each, on a cluster of {self._total(kind):g}"
        )

    def close(self) -> None:
        if self.owned:
            self.ray.shutdown()

    # Tasks

    def _task(self, function: Callable[..., Any], **options: Any) -> Any:
        # A process cannot move to another GPU: there it ends with its task.
        once = {"max_calls": 1} if self.needs["num_gpus"] else {}
        return self.ray.remote(**self.needs, **once, **options)(function)

    def _send(self, one: Slice) -> Any:
        order = replace(one.order, done=one.done, state=None)
        memory = self._memory(order.learner, len(order.numbers))
        task = self._task(TRAIN_SLICE, max_retries=0, memory=memory)
        return task.options(name=order.name).remote(
            order, one.state, self.state_seconds, self.needs
        )

    def _lost(self, one: Slice, error: Exception, say: Callable[[str], None]) -> None:
        """After a failure: from where it goes on, if it does."""
        told_by_us(error)
        one.failures += 1
        cause = why(self.ray, error)
        if one.failures > RETRIES:
            raise RunError(
                f"{one.order.name} has failed {one.failures} times in a row: {cause}"
            ) from None
        if isinstance(error, self.ray.exceptions.ObjectLostError) or one.failures == RETRIES:
            one.state, one.done = None, 0
        say(f"{one.order.name}: {cause}; it is done again from update {one.done}")

    def _put(self, order: Order) -> Any:
        """A reference to the state that an order begins with."""
        if order.state is None:
            return None
        spare = order.state[-1:] * (self.width - len(order.state))
        return self.ray.put(order.state + spare)

    # The cluster

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        where = address or os.environ.get("RAY_ADDRESS")
        if where is None:
            self.ray.init("local", num_cpus=cores(), log_to_driver=False)
            return
        if where != "auto":
            check_address(where)
        try:
            self.ray.init(where, log_to_driver=False)
        except Exception as error:
            cause = why(self.ray, error)
            raise InputError(f"no cluster at address {where!r} can be joined: {cause}") from None

    def _total(self, kind: str) -> float:
        return sum(node["Resources"].get(kind, 0.0) for node in self.nodes)

    def _most(self, kind: str) -> float:
        return max((node["Resources"].get(kind, 0.0) for node in self.nodes), default=0.0)

    @property
    def _slots(self) -> int:
        """Tasks that can run at the same time."""
        kind = "GPU" if self.needs["num_gpus"] else "CPU"
        each = self.needs["num_gpus"] or self.needs["num_cpus"]
        return max(1, sum(int(node["Resources"].get(kind, 0) // each) for node in self.nodes))

    def _memory(self, learner: Learner, width: int) -> int:
        """Bytes of its node's memory that a task takes."""
        return 0 if self.needs["num_gpus"] else learner.memory() * width

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[LocalEngine], str]
    ) -> None:
        """Of nodes; that of GPUs is checked in the tasks."""
        width = len(self.slices(matches)[0])
        wanted, most = self._memory(learner, width), int(self._most("memory"))
        if wanted > most:
            raise InputError(
                f"a task of {width} match{'es' * (width > 1)} takes {in_words(wanted)}, and no "
                f"node of the cluster has more than {in_words(most)}: use a smaller --replay or "
                "--matches-per-task"
            )

    def _check_versions(self) -> None:
        """Everybody must have the same programs."""
        affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        asked = [
            self.ray.remote(num_cpus=0, max_retries=1)(VERSIONS)
            .options(scheduling_strategy=affinity(node["NodeID"], soft=False), name="versions")
            .remote()
            for node in self.nodes
        ]
        mine = VERSIONS()
        for node, answer in zip(self.nodes, asked, strict=True):
            name = node["NodeManagerAddress"]
            try:
                theirs = self.ray.get(answer, timeout=NODE_SECONDS)
            except self.ray.exceptions.RayError as error:
                raise InputError(f"node {name} does not work: {why(self.ray, error)}") from None
            for package, version in mine.items():
                if theirs[package] != version:
                    raise InputError(
                        f"node {name} has {package} {theirs[package]}, the driver has {version}: "
                        "install the same on all nodes"
                    )


# What is done in tasks


def train_slice(order: Order, state: Any, pause: float, needs: dict[str, int]) -> Iterator[Any]:
    """Reports, each with whether the next thing handed over is the state after it."""
    engine = engine_of(order.learner, len(order.numbers), use_devices(needs))
    engine.check_memory(lambda: "use a smaller --replay or --matches-per-task")
    try:
        handed_over = time.monotonic()
        for report in work(engine, replace(order, state=state)):
            due = time.monotonic() - handed_over >= pause
            hands_over = due and report.done in order.lines and not report.ended
            yield report, hands_over
            if hands_over:
                yield list(engine.snapshot())
                handed_over = time.monotonic()
    finally:
        engine.blocks = []


# Ray knows generators by sight, which decorators such as those of jaxtyping spoil.
TRAIN_SLICE: Any = lambda *order: (yield from train_slice(*order))  # noqa: E731


def play_games(
    learner: Learner,
    teams: list[Any],
    key: np.ndarray,
    episodes: int,
    first: int,
    needs: dict[str, int],
) -> list[dict[str, np.ndarray]]:
    arena = arena_of(learner, use_devices(needs))
    return arena.play(teams, jax.random.wrap_key_data(jnp.asarray(key)), episodes, first)


def use_devices(needs: dict[str, int]) -> int:
    """Makes JAX use what the task was given, if it has not started yet: so many devices."""
    if needs["num_gpus"]:
        return needs["num_gpus"]
    with contextlib.suppress(RuntimeError):  # in this process since an earlier task
        CONFIG.update("jax_platforms", "cpu")
        CONFIG.update("jax_num_cpu_devices", needs["num_cpus"])
    return needs["num_cpus"]


@lru_cache(maxsize=1)
def engine_of(learner: Any, matches: int, devices: int) -> LocalEngine:
    """The same one for tasks that follow each other in a process: it is compiled."""
    return LocalEngine(learner, matches, jax.local_devices()[:devices])


@lru_cache(maxsize=1)
def arena_of(learner: Any, devices: int) -> Arena:
    return Arena(learner.game, everybody(learner), jax.local_devices()[:devices])


# Details


def installed_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise InputError("engine ray needs the package ray: pip install 'epcx[cluster]'") from None
    return ray


def check_address(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"address {address!r} is not that of a head node, such as 10.0.0.1:6379, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"no cluster answers at address {address}: {cause.lower()}") from None


def padded(order: Order, width: int) -> Order:
    """With spare places that repeat the last match: slices of one width run the same program."""
    spare = width - len(order.numbers)
    agents = order.agents
    if agents is not None:
        agents = jax.tree.map(lambda x: np.concatenate([x, *[x[-1:]] * spare]), agents)
    return replace(order, numbers=order.numbers + order.numbers[-1:] * spare, agents=agents)


def trimmed(report: Report, matches: int) -> Report:
    """Without spare places."""
    metrics, diverged, agents = jax.tree.map(
        lambda x: x[:matches], (report.metrics, report.diverged, report.agents)
    )
    return report._replace(metrics=metrics, diverged=diverged, agents=agents)


def told_by_us(error: Exception) -> None:
    """Passes on what a task has refused in our own words."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, InputError | RunError):
        raise cause from None


def why(ray: Any, error: Exception) -> str:
    """In the middle of a sentence."""
    known = ray.exceptions
    if isinstance(error, known.OutOfMemoryError):
        return "its node ran out of memory"
    if isinstance(error, known.NodeDiedError | known.LocalRayletDiedError | known.ObjectLostError):
        return "its node was lost"
    if isinstance(error, known.WorkerCrashedError):
        return "its worker died"
    if isinstance(error, known.GetTimeoutError):
        return "it does not answer"
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {text[0]}"
