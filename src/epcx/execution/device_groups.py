"""Groups of local devices, which work on different blocks in parallel."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax

Result = TypeVar("Result")


def group_devices(devices: Sequence[jax.Device], number: int) -> list[tuple[jax.Device, ...]]:
    """The devices of each of `number` groups.

    A CPU device runs a program several times at once: groups of one core share the first device,
    so that the program is compiled once.
    """
    size = len(devices) // number
    if size == 1 and devices[0].platform == "cpu":
        return [(devices[0],)] * number
    return [tuple(devices[i * size : (i + 1) * size]) for i in range(number)]


class DeviceGroups:
    """Runs blocks of work, one thread per group; group i runs blocks i, i + number, ..."""

    def __init__(self, number: int):
        self.number = number
        self._compiled: set[str] = set()

    def run(self, name: str, function: Callable[[int], Result], blocks: int) -> list[Result]:
        """`function` of all blocks, in order.

        The first time under a name, block 0 runs alone: the other groups find it compiled.
        """
        results: dict[int, Result] = {}

        def run_group(group: int) -> None:
            for block in range(group, blocks, self.number):
                if block not in results:
                    results[block] = function(block)

        if name not in self._compiled:
            results[0] = function(0)
            self._compiled.add(name)
        with ThreadPoolExecutor(self.number) as pool:
            list(pool.map(run_group, range(min(self.number, blocks))))
        return [results[block] for block in range(blocks)]
