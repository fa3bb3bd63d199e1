"""What it costs to train matches side by side: on devices of this machine, and in tasks of Ray.

    python -m benchmarks.scaling --json

The same matches train on 1, 2, 4 and 8 devices, and then by workers of a Ray that is started here.
CPU devices share the cores: more of them than there are cores bring nothing. Times are per update
of all matches; the overhead is what a match takes longer in a task than on a device of its own,
when as many of them run at once. Bytes are those that pass between driver and worker.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from epcx import games, learners, options
from epcx.execution.devices import CONFIG
from epcx.execution.match_trainer import MatchTrainer
from epcx.execution.ray import RayExecutor
from epcx.execution.tasks import TrainTask
from epcx.learners import Learner, MADDPGConfig
from epcx.metrics_log import evenly_spaced
from epcx.runs.provenance import cores, describe


@dataclass(frozen=True)
class Benchmark:
    """Measure matches side by side."""

    game: str = "food-collection"
    """The game."""

    population: str = "3"
    """Its population."""

    matches: int = 8
    """How many matches train."""

    updates: int = 100
    """Updates of each of them."""

    devices: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of devices of this machine."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        if CONFIG.jax_platforms == "cpu":
            CONFIG.update("jax_num_cpu_devices", max(self.devices))
        game = games.make(self.game, self.population)
        config = MADDPGConfig(buffer_size=100_000, learning_starts=2_500)
        learner = learners.make("maddpg", game, config)
        offered = len(jax.local_devices())
        rows: list[dict[str, Any]] = []
        for number in (n for n in self.devices if n <= offered):
            rows.append({"devices": number, **self.on_devices(learner, number)})
            self.show(rows[-1])
        executor = RayExecutor(state_seconds=float("inf"))
        rows.append({"ray_workers": cores(), **self.on_ray(executor, learner)})
        same = [row for row in rows if row.get("devices") == cores()]
        if same:
            longer = rows[-1]["seconds"] - same[0]["seconds"]
            rows[-1]["overhead_seconds_per_match"] = round(longer * cores() / self.matches, 2)
        executor.close()
        self.show(rows[-1])
        if self.json:
            about = {"machine": describe(), "game": self.game, "population": self.population}
            print(json.dumps({**about, "matches": self.matches, "rows": rows}, indent=2))

    def show(self, row: dict[str, Any]) -> None:
        if not self.json:
            print(row, flush=True)

    def on_devices(self, learner: Learner, devices: int) -> dict[str, Any]:
        trainer = MatchTrainer(learner, self.matches, jax.local_devices()[:devices])
        trainer.start(jax.random.key(0))
        trainer.advance(1)
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            trainer.start(jax.random.key(0))
            trainer.advance(self.updates)
            seconds.append(time.perf_counter() - begin)
        return self.times(min(seconds))

    def on_ray(self, executor: RayExecutor, learner: Learner) -> dict[str, Any]:
        tasks = [
            TrainTask(
                f"match {number}",
                learner,
                (number,),
                np.asarray(jax.random.key_data(jax.random.key(0))),
                None,
                self.updates,
                tuple(evenly_spaced(self.updates)),
            )
            for number in range(self.matches)
        ]
        seconds = []
        for _ in range(3):  # the first time the workers start and compile
            begin = time.perf_counter()
            progress = [report[1] for report in executor.train(tasks, print) if report]
            seconds.append(time.perf_counter() - begin)
        dumps = executor.ray.cloudpickle.dumps
        moved = sum(len(dumps(thing)) for thing in (*tasks, *progress))
        trainer = MatchTrainer(learner, 1, jax.local_devices()[:1])
        return {
            **self.times(min(seconds[1:])),
            "first_seconds": round(seconds[0], 1),
            "bytes_per_match": moved // self.matches,
            "bytes_of_a_state": trainer.bytes_per_device,
        }

    def times(self, seconds: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 2),
            "ms_per_update": round(seconds / self.updates * 1000, 2),
        }


if __name__ == "__main__":
    options.run(Benchmark)
