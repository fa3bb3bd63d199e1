"""What is needed later, made in the background."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Ahead:
    """Makes things one after the other while something else goes on, and hands them out.

    It is for compiling: XLA compiles on the host while a GPU trains. Where the host trains, it
    would only be in the way.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._things: dict[Hashable, Future[Any]] = {}

    def prepare(self, name: Hashable, make: Callable[[], Any]) -> None:
        if name not in self._things:
            self._things[name] = self._pool.submit(make)

    def get(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What was prepared under a name, as soon as it is there; or else what `make` makes."""
        thing = self._things.pop(name, None)
        return thing.result() if thing else make()

    def close(self) -> None:
        """Forgets the rest; what has begun is finished."""
        self._pool.shutdown(wait=False, cancel_futures=True)
