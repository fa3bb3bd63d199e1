"""Options that say where a training runs; they do not change its outcome."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from epcx.errors import InputError
from epcx.execution.devices import CONFIG, use_all_cores
from epcx.execution.executor import Executor
from epcx.execution.local import LocalExecutor


@dataclass(frozen=True)
class ExecutionOptions:
    """Where to train: on this machine, or on a Ray cluster."""

    engine: Literal["local", "ray"] = "local"
    """local (the devices of this machine) or ray (a cluster; needs the extra `cluster`)."""

    devices: int | None = None
    """How many devices of this machine train; by default all."""

    address: str | None = None
    """Of the head node of a running Ray cluster, such as 10.0.0.1:6379, or auto; by default Ray is
    started on this machine."""

    matches_per_task: int | None = None
    """Matches that a Ray task trains together; by default one on CPUs, and on GPUs as many as
    give every GPU of the cluster one task."""

    gpus_per_task: int | None = None
    """GPUs of each Ray task; by default one, if the cluster has any."""

    cpus_per_task: int | None = None
    """CPU cores of each Ray task; by default one."""

    def check(self) -> None:
        """Refuses options of another engine."""
        ours = {"local": ("devices",), "ray": tuple(f.name for f in fields(self)[2:])}
        for engine, names in ours.items():
            for name in names:
                if engine != self.engine and getattr(self, name) is not None:
                    option = name.replace("_", "-")
                    raise InputError(
                        f"{option} {getattr(self, name)} does not go with engine {self.engine}: "
                        f"it is for engine {engine}"
                    )

    @contextlib.contextmanager
    def executor(self, checkpoint_seconds: float) -> Iterator[Executor]:
        """In a cluster, the state of matches is collected this often."""
        self.check()
        executor: Executor
        if self.engine == "local":
            use_all_cores()
            executor = LocalExecutor(self.devices)
        else:
            # The driver leaves the GPUs of its machine to the tasks.
            CONFIG.update("jax_platforms", "cpu")
            from epcx.execution.ray import RayExecutor

            executor = RayExecutor(
                self.address,
                self.gpus_per_task,
                1 if self.cpus_per_task is None else self.cpus_per_task,
                self.matches_per_task,
                checkpoint_seconds,
            )
        try:
            yield executor
        finally:
            executor.close()
