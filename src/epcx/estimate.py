"""How long a training will take on this machine: roughly, within seconds, without compiling it.

The program of an update is traced, and its operations are counted; a small program measures the
speed of the device. What an update takes in these units was measured on one CPU and one GPU, see
docs/performance.md. Compilation and games for the fitness are not counted.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from epcx import backends
from epcx.config import TrainConfig
from epcx.errors import InputError
from epcx.evolution.curriculum import Stage
from epcx.execution.devices import free_memory, local_devices
from epcx.execution.execution_options import ExecutionOptions
from epcx.execution.layout import lay_out, max_shards, with_layout
from epcx.learners import Learner

LONG = 3600.0  # seconds that a training may take which nobody has asked for
SHORT = 300  # updates of all matches: too few to take long
# Time per element that an update computes, over that of the calibration program; by kernels.
ON_CPU = {"C++": 0.066, "XLA": 0.17}
ON_GPU = {"Pallas": 0.03, "Pallas, relations": 0.1, "XLA": 0.27}
# Time per equation, however small its arrays are.
EQUATION_ON_CPU = 4e-7
EQUATION_ON_GPU = 6.6e-8
HIDDEN = 32  # units of the calibration program, as in the networks
UNKNOWN = ("ffi_call", "pallas_call", "pure_callback", "io_callback", "custom_call")


@dataclass(frozen=True)
class Cost:
    """Of one update of one match."""

    elements: float  # that are computed, of all arrays
    equations: float  # that are executed one after the other
    kernels: str  # the implementation of the networks

    def seconds(self, device: jax.Device, matches: float) -> float:
        """Of matches that train at once on a device, or of a part of one."""
        on_cpu = device.platform == "cpu"
        relative = (ON_CPU if on_cpu else ON_GPU)[self.kernels]
        fixed = self.equations * (EQUATION_ON_CPU if on_cpu else EQUATION_ON_GPU)
        return fixed + matches * self.elements * relative * seconds_per_element(device)


@dataclass(frozen=True)
class Estimate:
    """Seconds of each stage; none if they are not known, for a reason."""

    stages: tuple[float, ...]
    reason: str = ""

    @property
    def total(self) -> float:
        return sum(self.stages)

    def to_json(self) -> dict[str, Any]:
        if self.reason:
            return {"estimated_seconds": None, "no_estimate": self.reason}
        whole = {"stages": [round(x, 1) for x in self.stages], "total": round(self.total, 1)}
        return {"estimated_seconds": whole}


class UnknownCostError(Exception):
    """Nothing is known about the time of a training: the message says why."""


def estimate(config: TrainConfig, execution: ExecutionOptions) -> Estimate:
    """The time of every stage, if the learner's program tells it."""
    try:
        devices = devices_of(execution)
        return Estimate(tuple(stage_seconds(config, s, devices) for s in config.curriculum.stages))
    except UnknownCostError as error:
        return Estimate((), str(error))


def check_default(config: TrainConfig, execution: ExecutionOptions) -> None:
    """Refuses settings that nobody has asked for, if they take long on this machine."""
    updates = sum(stage.updates * stage.matches for stage in config.plan)
    if updates <= SHORT:
        return
    try:
        devices, total = devices_of(execution), 0.0
        # The last stage is the longest: it alone may be enough to know.
        for stage in reversed(config.curriculum.stages):
            total += stage_seconds(config, stage, devices)
            if total > LONG:
                raise InputError(
                    f"the paper's schedule takes {format_duration(total)} or more on this "
                    "machine, by a rough estimate: give --preset paper to train it anyway, or "
                    "--preset quick for minutes"
                )
    except UnknownCostError:
        return


def devices_of(execution: ExecutionOptions) -> list[jax.Device]:
    if execution.engine != "local":
        raise UnknownCostError("the devices of the cluster are not known here")
    return local_devices(execution.devices)


def stage_seconds(config: TrainConfig, stage: Stage, devices: Sequence[jax.Device]) -> float:
    learner = config.make_learner(stage.game)
    per_update = update_seconds(learner, config.stage_matches[stage.number], devices)
    return per_update * learner.updates(stage.episodes)


def update_seconds(learner: Learner, matches: int, devices: Sequence[jax.Device]) -> float:
    """Of one update of all matches."""
    device = devices[0]
    layout = lay_out(matches, len(devices), device.platform, max_shards(learner))
    whole = replace(layout, shards=1)
    cost = update_cost(with_layout(learner, device.platform, free_memory(devices), whole))
    return cost.seconds(device, layout.concurrent / layout.shards) * layout.turns


# Counting


@functools.lru_cache(maxsize=64)
def update_cost(learner: Learner) -> Cost:
    """Counted in the program of one update."""

    def start() -> Any:
        key = jax.random.key(0)
        return learner.start(key, learner.init(key))

    with backends.plain_only() as names:
        state = jax.eval_shape(start)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        traced: Any = jax.make_jaxpr(learner.advance)(state, number)
    elements = equations = 0.0
    for equation, times in executed(traced.jaxpr):
        if equation.primitive.name in UNKNOWN:
            raise UnknownCostError(f"learner {learner.name} calls {equation.primitive.name}")
        elements += times * sum(math.prod(x.aval.shape) for x in computed(equation))
        equations += times
    return Cost(elements, equations, next(iter(names - {"XLA"}), "XLA"))


def executed(jaxpr: Any, times: float = 1.0, looping: bool = False) -> Iterator[tuple[Any, float]]:
    """The equations that compute something, and how often one update executes them.

    The loop over updates is the only one whose length is not known.
    """
    for equation in jaxpr.eqns:
        name, parts = equation.primitive.name, list(subprograms(equation))
        if name == "while" and looping:
            raise UnknownCostError("the program has loops of unknown length")
        if name == "cond":  # any branch, as it is not known which
            parts = parts[-1:]
        if not parts:
            yield equation, times
        inner = times * equation.params["length"] if name == "scan" else times
        for part in parts:
            yield from executed(part, inner, looping or name == "while")


def computed(equation: Any) -> list[Any]:
    """The arrays that an equation computes: where it writes into a larger one, the part."""
    name = equation.primitive.name
    if name == "dynamic_update_slice":
        return equation.invars[1:2]
    return equation.invars[2:3] if name.startswith("scatter") else equation.outvars


def subprograms(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


# Calibration


@functools.cache
def seconds_per_element(device: jax.Device) -> float:
    """Of a layer of few hidden units over many samples, as in the networks; the fastest of some."""
    on_cpu = device.platform == "cpu"
    samples, layers, kind = (2**12, 50, jnp.float32) if on_cpu else (2**20, 50, jnp.bfloat16)

    def program(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, layers, lambda _, x: jnp.maximum(weights @ x, 0), x)

    weights, x = jnp.eye(HIDDEN, dtype=kind), jnp.ones((HIDDEN, samples), kind)
    arguments = jax.device_put((weights, x), device)
    compiled = jax.jit(program)
    jax.block_until_ready(compiled(*arguments))
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / (layers * HIDDEN * samples)


def format_duration(seconds: float) -> str:
    """Such as `3 hours`: as precise as an estimate is."""
    units = ((365 * 86400.0, "year"), (86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
    for size, unit in units:
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.0f} {unit}s"
    whole = max(1, round(seconds))
    return f"{whole} second{'s' * (whole > 1)}"
