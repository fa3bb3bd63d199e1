"""The work on a slice of matches: what is ordered, and what is reported on the way.

It is the same wherever it is done: what a match becomes depends on its order, never on the place.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from epcx.engines.local import LocalEngine
from epcx.learners.learner import Learner
from epcx.runs.checkpoint import Arrays

CHUNK_SECONDS = 2.0  # between two reports


@dataclass(frozen=True)
class Order:
    """Matches of a stage that train side by side, from their beginning or from where they were."""

    name: str
    learner: Learner
    numbers: tuple[int, ...]  # of the matches, in their stage
    key: np.ndarray  # of the stage, as numbers
    agents: Any  # stacked over the matches; none: fresh ones
    updates: int
    lines: tuple[int, ...]  # updates at which a report ends, the last one included
    pictures: tuple[int, ...] = ()  # updates at which the agents are reported, as at the end
    done: int = 0
    state: Any = None  # of all matches after the updates that are done


class Report(NamedTuple):
    """What has happened since the report before."""

    done: int  # updates since the beginning of the stage
    updates: int  # since the report before; none: the matches have started
    metrics: dict[str, np.ndarray]  # means over them [matches, N]
    diverged: Bool[np.ndarray, "..."]  # [matches]
    agents: Any  # [matches, N, ...], at the end and where they are wanted
    ended: bool


@runtime_checkable
class Site(Protocol):
    """Where matches train and games are played: the devices of this machine, or a cluster."""

    def check_memory(
        self, learner: Learner, matches: int, remedy: Callable[[LocalEngine], str]
    ) -> None:
        """Refuses matches that would not fit; `remedy` names the options that help."""

    def slices(self, matches: int) -> list[tuple[int, ...]]:
        """Which of so many matches train side by side."""

    def train(
        self, orders: list[Order], say: Callable[[str], None]
    ) -> Generator[tuple[int, Report] | None, None, None]:
        """Reports by the number of their order; none before the first, and while there is no news.

        Where work is lost it is done again, and reported again from an earlier update on. To close
        the generator ends what goes on.
        """

    def states(self, order: int) -> tuple[int, Iterator[Arrays]] | None:
        """After how many updates an order could go on, and from what, match by match."""

    def play(
        self,
        learner: Learner,
        teams: Iterable[Any],
        key: Array,
        episodes: int,
        watch: Callable[[int], None],
    ) -> list[dict[str, np.ndarray]]:
        """For each team of policies what every agent got and did in each episode [N, episodes].

        `watch` is told how many teams have played, every now and then.
        """

    def look_ahead(self, learner: Learner, matches: int | None) -> None:
        """Told that so many matches will train, or that games will be played."""

    def in_words(self) -> str:
        """What happens where, while matches train."""

    def close(self) -> None:
        """No more work: ends what goes on."""


def work(engine: LocalEngine, order: Order) -> Iterator[Report]:
    """Trains, in chunks of seconds."""
    done = order.done
    if order.state is None:
        key = jax.random.wrap_key_data(jnp.asarray(order.key))
        engine.start(key, order.agents, order.numbers)
        if order.pictures:
            yield Report(0, 0, {}, engine.diverged(), engine.agents(), False)
    else:
        engine.restore(order.state)
        order.state.clear()  # it is on the devices now
    pace = Pace()
    ends = sorted({*order.lines, *order.pictures})
    while done < order.updates:
        updates = pace.updates(next(end for end in ends if end > done) - done)
        metrics = pace.time(engine, updates)
        done += updates
        diverged = engine.diverged()
        ended = done == order.updates or bool(diverged.all())
        wanted = ended or done in order.pictures
        agents = engine.agents() if wanted else None
        yield Report(done, updates, metrics, diverged, agents, ended)
        if ended:
            return


class Pace:
    """Finds chunks of about CHUNK_SECONDS. The first is short, as it is compiled, too."""

    def __init__(self) -> None:
        self.chunks, self.rate = 0, 0.0

    def updates(self, most: int) -> int:
        return max(1, min(most, int(self.rate * CHUNK_SECONDS)))

    def time(self, engine: LocalEngine, updates: int) -> dict[str, np.ndarray]:
        begin = time.perf_counter()
        metrics = engine.advance(updates)
        self.chunks += 1
        if self.chunks > 1:
            self.rate = updates / (time.perf_counter() - begin)
        return metrics
