"""A connection to a Ray cluster: its nodes, their resources, and what goes wrong in them."""

import importlib.util
import os
import platform
import socket
from typing import Any

from epcx.errors import InputError, RunError
from epcx.runs.provenance import cores

CONNECT_SECONDS = 5.0  # for a head node to accept a connection
NODE_SECONDS = 120.0  # for every node to report its versions
# A lambda is pickled by value: it also runs where epcx is missing.
VERSIONS: Any = lambda: {  # noqa: E731
    "Python": platform.python_version(),
    **{
        name: __import__(name).__version__ if importlib.util.find_spec(name) else "missing"
        for name in ("jax", "epcx")
    },
}


class RayCluster:
    """Joins the cluster at an address, or starts Ray on this machine; unless that has been done."""

    def __init__(self, address: str | None = None):
        self.ray = import_ray()
        self.owned = not self.ray.is_initialized()
        if self.owned:
            self._connect(address)
        self.nodes = [node for node in self.ray.nodes() if node["Alive"]]

    def close(self) -> None:
        if self.owned:
            self.ray.shutdown()

    def total(self, resource: str) -> float:
        return sum(node["Resources"].get(resource, 0.0) for node in self.nodes)

    def largest(self, resource: str) -> float:
        """The most that any node has."""
        return max((node["Resources"].get(resource, 0.0) for node in self.nodes), default=0.0)

    def slots(self, resource: str, each: int) -> int:
        """Tasks that can run at the same time, if each takes so much."""
        return sum(int(node["Resources"].get(resource, 0) // each) for node in self.nodes)

    def check_versions(self) -> None:
        """Refuses nodes on which other versions are installed."""
        affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        answers = [
            self.ray.remote(num_cpus=0, max_retries=1)(VERSIONS)
            .options(scheduling_strategy=affinity(node["NodeID"], soft=False), name="versions")
            .remote()
            for node in self.nodes
        ]
        here = VERSIONS()
        for node, answer in zip(self.nodes, answers, strict=True):
            name = node["NodeManagerAddress"]
            try:
                there = self.ray.get(answer, timeout=NODE_SECONDS)
            except self.ray.exceptions.RayError as error:
                raise InputError(f"node {name} does not work: {self.cause_of(error)}") from None
            for package, version in here.items():
                if there[package] != version:
                    raise InputError(
                        f"node {name} has {package} {there[package]}, the driver has {version}: "
                        "install the same on all nodes"
                    )

    def cause_of(self, error: Exception) -> str:
        """Why a task has failed, for the middle of a sentence."""
        known = self.ray.exceptions
        lost = known.NodeDiedError | known.LocalRayletDiedError | known.ObjectLostError
        if isinstance(error, known.OutOfMemoryError):
            return "its node ran out of memory"
        if isinstance(error, lost):
            return "its node was lost"
        if isinstance(error, known.WorkerCrashedError):
            return "its worker died"
        if isinstance(error, known.GetTimeoutError):
            return "it does not answer"
        cause = getattr(error, "cause", None) or error
        text = str(cause).strip().splitlines() or [""]
        return f"{type(cause).__name__}: {text[0]}"

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = address or os.environ.get("RAY_ADDRESS")
        if address is None:
            self.ray.init("local", num_cpus=cores(), log_to_driver=False)
            return
        if address != "auto":
            check_address(address)
        try:
            self.ray.init(address, log_to_driver=False)
        except Exception as error:
            cause = self.cause_of(error)
            raise InputError(f"no cluster at address {address!r} can be joined: {cause}") from None


def import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise InputError("engine ray needs the package ray: pip install 'epcx[cluster]'") from None
    return ray


def check_address(address: str) -> None:
    """Fails at once where nothing answers; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"address {address!r} is not that of a head node, such as 10.0.0.1:6379, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"no cluster answers at address {address}: {cause.lower()}") from None


def reraise_own_errors(error: Exception) -> None:
    """Raises what a task has refused in words of ours: it would be refused everywhere."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, InputError | RunError):
        raise cause from None
