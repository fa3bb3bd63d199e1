"""Ray clusters of several nodes on this machine, and ways to break them."""

import contextlib
import os
import signal
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster as Nodes

NODE = {"num_cpus": 1, "object_store_memory": 10**8}


@contextlib.contextmanager
def nodes(number):
    """A cluster with a core on each node. This process is a driver on the first one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Nodes(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(number - 1):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def training_workers():
    """The processes that train matches at the moment: Ray gives them the names of their tasks."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (place / "cmdline").read_bytes()
            if name.startswith(b"ray::") and b", match" in name:
                found.append(int(place.name))
    return found


def kill_a_worker(chance, patience=60.0):
    """One of those that train, as soon as there are some."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = training_workers()
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError("nobody trains")
