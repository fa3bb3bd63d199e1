"""Compiles in the background what will be needed later."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class BackgroundCompiler:
    """Runs jobs one after the other in a thread, and hands out their results.

    XLA compiles on the host while a GPU trains. Where the host itself trains, this would only
    take its time.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._jobs: dict[Hashable, Future[Any]] = {}

    def prepare(self, name: Hashable, job: Callable[[], Any]) -> None:
        """Queues a job, unless there is one of this name."""
        if name not in self._jobs:
            self._jobs[name] = self._pool.submit(job)

    def get(self, name: Hashable, job: Callable[[], Any]) -> Any:
        """The result of the job prepared under a name, once it has ended; else that of `job`."""
        prepared = self._jobs.pop(name, None)
        return prepared.result() if prepared else job()

    def close(self) -> None:
        """Cancels what is queued, without waiting for the job that runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
