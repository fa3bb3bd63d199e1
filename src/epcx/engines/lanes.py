"""Work that goes on side by side in lanes, on the devices of this machine."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def lanes_of(devices: Sequence[Any], number: int) -> list[tuple[Any, ...]]:
    """The devices of each lane.

    A CPU runs a program several times at once: lanes of one core share the program of the first.
    """
    size = len(devices) // number
    if size == 1 and devices[0].platform == "cpu":
        return [(devices[0],)] * number
    return [tuple(devices[i * size : (i + 1) * size]) for i in range(number)]


class Lanes:
    """Runs blocks of work; block i is in lane i modulo their number."""

    def __init__(self, number: int):
        self.number = number
        self.known: set[str] = set()

    def run(self, name: str, function: Callable[[int], Any], blocks: int) -> list[Any]:
        """`function` of all blocks, in order. What is new under a name is compiled once, first."""
        results: list[Any] = [None] * blocks

        def run(lane: int) -> None:
            for block in range(lane, blocks, self.number):
                if results[block] is None:
                    results[block] = function(block)

        if name not in self.known:
            results[0] = function(0)
            self.known.add(name)
        with ThreadPoolExecutor(self.number) as pool:
            list(pool.map(run, range(min(self.number, blocks))))
        return results
