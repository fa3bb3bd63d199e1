"""The devices of this machine as a site of work."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from epcx.engines.ahead import Ahead
from epcx.engines.arena import Arena, everybody
from epcx.engines.devices import free_memory, some_devices
from epcx.engines.local import LocalEngine
from epcx.engines.work import Order, Report, work
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import Arrays


class Host:
    """All matches of a stage are one slice. On GPUs, what comes next is compiled meanwhile."""

    def __init__(self, devices: int | None = None):
        """On so many devices, by default on all."""
        self.devices = some_devices(devices)
        self.compiles_ahead = self.devices[0].platform != "cpu"
        # Whatever has been trained before: the memory of a GPU is free again by then.
        self.free = free_memory(self.devices) if self.compiles_ahead else None
        self.ahead = Ahead()
        self.engine: LocalEngine | None = None
        self.done = 0

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[LocalEngine], str]
    ) -> None:
        engine = LocalEngine(learner, matches, self.devices, self.free)
        engine.check_memory(partial(remedy, engine))

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        return [tuple(range(matches))]

    def train(
        self, orders: list[Order], say: Callable[[str], None]
    ) -> Generator[tuple[int, Report] | None, None, None]:
        (order,) = orders
        matches = len(order.numbers)
        make = partial(
            self._engine, order.learner, matches, order.agents is None, order.state is None
        )
        self.engine = self.ahead.get((order.learner, matches), make)
        self.done = order.done
        yield None
        for report in work(self.engine, order):
            self.done = report.done
            yield 0, report
        self.engine = None

    def states(self, order: int) -> tuple[int, Iterator[Arrays]] | None:
        if self.engine is None or not self.engine.blocks:
            return None
        return self.done, self.engine.snapshot()

    def play(
        self,
        learner: Learner,
        teams: Iterable[Any],
        key: Array,
        episodes: int,
        watch: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        def watched() -> Iterator[Any]:
            for number, team in enumerate(teams):
                watch(number)
                yield team

        arena = self.ahead.get((learner, "games"), partial(self._arena, learner))
        return arena.play(watched(), key, episodes)

    def look_ahead(self, learner: Learner, matches: int | None) -> None:
        if not self.compiles_ahead:
            return
        if matches is None:
            self.ahead.prepare((learner, "games"), partial(self._arena, learner))
        else:
            make = partial(self._engine, learner, matches, False, True)
            self.ahead.prepare((learner, matches), make)

    def in_words(self) -> str:
        return self.engine.in_words() if self.engine else ""

    def close(self) -> None:
        self.ahead.close()

    def _engine(self, learner: Learner, matches: int, fresh: bool, start: bool) -> LocalEngine:
        engine = LocalEngine(learner, matches, self.devices, self.free)
        return engine.compile(start, fresh) if self.compiles_ahead else engine

    def _arena(self, learner: Learner) -> Arena:
        arena = Arena(learner.game, everybody(learner), self.devices)
        if self.compiles_ahead:
            make = lambda key: learner.policies(learner.init(key))  # noqa: E731
            arena.compile(jax.eval_shape(make, jax.random.key(0)))
        return arena
