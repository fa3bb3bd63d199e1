"""Ray clusters of several nodes on this machine, ways to break them, and what trains on them."""

import contextlib
import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
import ray
from ray.cluster_utils import Cluster

from epcx.execution.tasks import TrainTask
from epcx.learners import MADDPGConfig

NODE = {"num_cpus": 1, "object_store_memory": 10**8}
TINY = MADDPGConfig(batch_size=32, learning_starts=100, num_envs=4, buffer_size=400)


@contextlib.contextmanager
def nodes(number):
    """A cluster with a core on each node. This process is a driver on the first one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(number - 1):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_task(learner, **options):
    key = np.asarray(jax.random.key_data(jax.random.key(0)))
    defaults = {"name": "match 7 of seed 3", "matches": (7,), "agents": None, "updates": 2}
    return TrainTask(learner=learner, key=key, log_at=(1, 2), **{**defaults, **options})


def training_workers():
    """The processes that train matches at the moment: Ray gives them the names of their tasks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (folder / "cmdline").read_bytes()
            if name.startswith(b"ray::") and b", match" in name:
                found.append(int(folder.name))
    return found


def kill_a_worker(rng, patience=60.0):
    """One of those that train, as soon as there are some."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = training_workers()
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError("no worker trains")


def wait_until_no_worker_trains():
    end = time.monotonic() + 30
    while training_workers():
        assert time.monotonic() < end, "tasks go on without their driver"
        time.sleep(0.05)
