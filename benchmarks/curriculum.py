"""How long a whole curriculum takes: a fraction of every stage is run, and the rest calculated.

    python -m benchmarks.curriculum --game grassland --preset paper --fraction 0.01 --json

For every stage: seconds to compile, to warm up, per update, and for the games of the fitness. The
projection adds up what training takes; of compiling, only the first stage's and what takes longer
than the stage before, as later stages are compiled while that one trains (on a GPU).

The floor is the time that the matrix products of the networks would take at the rate that this
device reaches in a product of two large bfloat16 matrices, or float32 on a CPU.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import tyro

from benchmarks.kernel import operations
from epcx import presets
from epcx.agents.agent import ARCHITECTURES
from epcx.agents.layers import EMBEDDING, HIDDEN
from epcx.engines.arena import AT_ONCE, Arena, everybody
from epcx.engines.devices import in_words, on_cpu, use_all_cores
from epcx.engines.local import LocalEngine
from epcx.games import NUM_ACTIONS, Game
from epcx.runs.provenance import describe
from epcx.training import PlannedStage, Training, plan


@dataclass(frozen=True)
class Benchmark:
    """Project the time of a curriculum."""

    game: str = "grassland"
    """The game."""

    preset: presets.Preset = "paper"
    """The schedule: one of epcx's presets."""

    fraction: float = 0.01
    """Of the updates of every stage, to be run."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        if not 0 < self.fraction <= 1:
            raise SystemExit(f"fraction {self.fraction} is not a number above 0, up to 1")
        training = presets.make(self.game, "epc", self.preset)
        rate = matrix_rate()
        rows = []
        for stage, planned in zip(training.curriculum().stages, plan(training), strict=True):
            rows.append(self.measure(training, stage.game, planned, rate))
            if not self.json:
                print(in_sentence(rows[-1]), flush=True)
        total = projection(rows)
        if self.json:
            whole = {"machine": describe(), "matrix_tflops": round(rate / 1e12, 1)}
            setting = {"game": self.game, "preset": self.preset, "fraction": self.fraction}
            print(json.dumps({**whole, **setting, "stages": rows, **total}, indent=2))
        else:
            print(f"the whole curriculum: {total['projected_seconds'] / 60:.1f} minutes")

    def measure(
        self, training: Training, game: Game, planned: PlannedStage, rate: float
    ) -> dict[str, Any]:
        learner = training.learner(game)
        engine = LocalEngine(learner, planned.matches)
        compiling = timed(engine.compile)
        warming = timed(lambda: engine.start(jax.random.key(0)), lambda: engine.blocks)
        engine.advance(1)
        updates = max(2, round(planned.updates * self.fraction))
        per_update = timed(lambda: engine.advance(updates)) / updates
        agents = engine.agents()
        memory = engine.bytes
        engine.blocks.clear()  # their memory is for the games
        arena = Arena(game, everybody(learner))
        one = learner.policies(jax.tree.map(lambda x: x[0], agents))
        compiling += timed(lambda: arena.compile(one))
        batch = [one] * arena.rows
        once = timed(lambda: arena.play(batch, jax.random.key(0), 1))
        rounds = -(-planned.fitness_games * training.fitness_episodes // (AT_ONCE * arena.rows))
        floor = planned.matches * operations_of_an_update(game, training) / rate
        return {
            "population": planned.population,
            "matches": planned.matches,
            "updates": planned.updates,
            "updates_run": updates,
            "memory": in_words(memory),
            "compile_seconds": round(compiling, 1),
            "warm_up_seconds": round(warming, 1),
            "ms_per_update": round(per_update * 1000, 3),
            "training_seconds": round(per_update * planned.updates, 1),
            "fitness_seconds": round(once * rounds, 1),
            "floor_ms_per_update": round(floor * 1000, 3),
            "share_of_floor": round(floor / per_update, 3),
        }


def timed(function: Any, result: Any = lambda: None) -> float:
    begin = time.perf_counter()
    function()
    jax.block_until_ready(result())
    return time.perf_counter() - begin


def projection(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the stages add up to."""
    busy = [r["warm_up_seconds"] + r["training_seconds"] + r["fitness_seconds"] for r in rows]
    hidden = [0.0] * len(rows) if on_cpu() else [0.0, *busy[:-1]]
    waiting = [
        max(0.0, row["compile_seconds"] - before) for row, before in zip(rows, hidden, strict=True)
    ]
    return {
        "training_seconds": round(sum(busy), 1),
        "compile_seconds_not_hidden": round(sum(waiting), 1),
        "projected_seconds": round(sum(busy) + sum(waiting), 1),
    }


def matrix_rate(size: int = 8192) -> float:
    """Operations per second in a product of large matrices."""
    size, kind = (2048, jnp.float32) if on_cpu() else (size, jnp.bfloat16)
    a = jnp.ones((size, size), kind)
    multiply = jax.jit(lambda a: a @ a)
    jax.block_until_ready(multiply(a))
    begin = time.perf_counter()
    for _ in range(20):
        result = multiply(a)
    jax.block_until_ready(result)
    return 20 * 2 * size**3 / (time.perf_counter() - begin)


def operations_of_an_update(game: Game, training: Training) -> int:
    """Those of the networks' matrix products, in one match.

    Critics read all observations: forwards for the goal, forwards and backwards for the loss, where
    backwards counts twice. Policies read their own: those of the targets forwards, those that
    learn forwards and backwards.
    """
    batch, agents = training.hyper.batch, game.num_agents
    world = jax.eval_shape(
        jax.vmap(game.reset, out_axes=-1), jax.random.split(jax.random.key(0), batch)
    )
    views = jax.eval_shape(lambda world: ARCHITECTURES["attention"].observe(game, world), world)
    encoding = operations(views)
    width = EMBEDDING * (1 + len(views.entities))
    embedding = NUM_ACTIONS * EMBEDDING + (width + EMBEDDING) * EMBEDDING + EMBEDDING**2
    critic = encoding + agents * batch * 2 * embedding
    head = width * HIDDEN + HIDDEN**2 + HIDDEN * NUM_ACTIONS
    policy = encoding // agents + batch * 2 * head
    return 4 * agents * (critic + policy)


def in_sentence(row: dict[str, Any]) -> str:
    return (
        f"{row['population']} x {row['matches']}: {row['ms_per_update']} ms per update "
        f"({row['share_of_floor']:.0%} of what the matrix units allow), training "
        f"{row['training_seconds']} s, fitness {row['fitness_seconds']} s, compiled in "
        f"{row['compile_seconds']} s"
    )


if __name__ == "__main__":
    use_all_cores()
    tyro.cli(Benchmark).run()
