"""How long a whole curriculum takes: a fraction of every stage is run, and the rest calculated.

    python -m benchmarks.curriculum --game grassland --preset paper --fraction 0.01 --json

For every stage: seconds to compile, to fill the replay buffer, per update, and for the games of
the fitness. The projection adds up what training takes; of compiling, only the first stage's and
what takes longer than the stage before, as later stages are compiled while that one trains (on a
GPU).

The floor is the time that the matrix products of the networks would take at the rate that this
device reaches in a product of two large bfloat16 matrices, or float32 on a CPU.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_kernels import operations
from epcx import options, presets
from epcx.config import PlannedStage, TrainConfig
from epcx.execution.arena import Arena, joint_policy
from epcx.execution.devices import format_bytes, on_cpu, use_all_cores
from epcx.execution.match_trainer import MatchTrainer
from epcx.games import Game
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.layers import EMBEDDING, HIDDEN, flatten_rows
from epcx.runs.provenance import describe


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
        config = presets.make_config(self.game, "epc", self.preset)
        rate = matrix_rate()
        rows = []
        for game, planned in zip(config.games, config.plan, strict=True):
            rows.append(self.measure(config, game, planned, rate))
            if not self.json:
                print(describe_row(rows[-1]), flush=True)
        total = projection(rows)
        if self.json:
            whole = {"machine": describe(), "matrix_tflops": round(rate / 1e12, 1)}
            setting = {"game": self.game, "preset": self.preset, "fraction": self.fraction}
            print(json.dumps({**whole, **setting, "stages": rows, **total}, indent=2))
        else:
            print(f"the whole curriculum: {total['projected_seconds'] / 60:.1f} minutes")

    def measure(
        self, config: TrainConfig, game: Game, planned: PlannedStage, rate: float
    ) -> dict[str, Any]:
        learner = config.make_learner(game)
        trainer = MatchTrainer(learner, planned.matches)
        compiling = timed(trainer.compile)
        starting = timed(lambda: trainer.start(jax.random.key(0)), lambda: trainer.blocks)
        trainer.advance(1)
        updates = max(2, round(planned.updates * self.fraction))
        per_update = timed(lambda: trainer.advance(updates)) / updates
        agents = trainer.agents()
        trainer.blocks.clear()  # their memory is for the games
        arena = Arena(game, joint_policy(learner))
        one = learner.policies(jax.tree.map(lambda x: x[0], agents))
        compiling += timed(lambda: arena.compile(one))
        batch = [one] * arena.rows
        once = timed(lambda: arena.play(batch, jax.random.key(0), 1))
        per_round = arena.parallel * arena.rows
        rounds = -(-planned.fitness_games * config.fitness_episodes // per_round)
        floor = planned.matches * operations_of_an_update(game, config) / rate
        return {
            "population": planned.population,
            "matches": planned.matches,
            "updates": planned.updates,
            "updates_run": updates,
            "memory": format_bytes(trainer.bytes_per_device),
            "compile_seconds": round(compiling, 1),
            "start_seconds": round(starting, 1),
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
    busy = [r["start_seconds"] + r["training_seconds"] + r["fitness_seconds"] for r in rows]
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


def operations_of_an_update(game: Game, config: TrainConfig) -> int:
    """Those of the attention networks' matrix products, in one match.

    Critics read all observations: a forward pass for the target; for the loss a forward and a
    backward pass, which counts twice. Policies read their own: target policies forward, those that
    learn forward and backward.
    """
    batch, agents, actions = config.learner_config.batch_size, game.num_agents, game.num_actions
    worlds = jax.eval_shape(game.reset_batch, jax.random.split(jax.random.key(0), batch))
    views = jax.eval_shape(
        lambda worlds: flatten_rows(ARCHITECTURES["attention"].views(game, worlds), 2), worlds
    )
    encoding = operations(views)
    width = EMBEDDING * (1 + len(views.entities))
    embedding = actions * EMBEDDING + (width + EMBEDDING) * EMBEDDING + EMBEDDING**2
    critic = encoding + agents * batch * 2 * embedding
    head = width * HIDDEN + HIDDEN**2 + HIDDEN * actions
    policy = encoding // agents + batch * 2 * head
    return 4 * agents * (critic + policy)


def describe_row(row: dict[str, Any]) -> str:
    return (
        f"{row['population']} x {row['matches']}: {row['ms_per_update']} ms per update "
        f"({row['share_of_floor']:.0%} of what the matrix units allow), training "
        f"{row['training_seconds']} s, fitness {row['fitness_seconds']} s, compiled in "
        f"{row['compile_seconds']} s"
    )


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
