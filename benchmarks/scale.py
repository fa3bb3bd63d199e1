"""How the cost of an update grows with the population, with and without neighbourhoods.

    python -m benchmarks.scale --json

One match of MADDPG trains at every population: with full attention, and with critics and policies
that look at the nearest agents and entities only. All variants of a population are started first
and then measured in turns, in one process, so that their ratios do not depend on what else the
machine does. The exponent is that of the number of agents between the first and the last population
of a variant: 3 if time grows with its cube. A variant that does not fit into memory is a row with
its error.
"""

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.update import compiled, timed
from epcx import games, learners, options
from epcx.errors import InputError
from epcx.execution.devices import format_bytes, use_all_cores
from epcx.execution.match_trainer import MatchTrainer
from epcx.games import Population
from epcx.learners import MADDPGConfig
from epcx.runs.provenance import describe

ON_CPU = ("12", "24", "48")
ON_GPU = ("24-16", "48-32", "96-64", "192-128", "384-256")
MOST_WITH_FULL_ATTENTION = 80  # agents, on a GPU: beyond, an update takes minutes
Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """Measure updates of growing populations."""

    game: str | None = None
    """The game: by default grassland on a GPU, and food-collection on a CPU."""

    population: tuple[str, ...] = ()
    """Populations: by default 24-16 to 384-256 on a GPU, and 12, 24 and 48 on a CPU."""

    neighbours: tuple[int, ...] = (8, 12)
    """Sizes of neighbourhoods, beside full attention."""

    full: int | None = None
    """The most agents with full attention: by default 80 on a GPU, and any number on a CPU."""

    buffer_size: int = 100_000
    """Transitions in the replay buffer."""

    seconds: float = 2.0
    """How long each of the repetitions takes, about."""

    repeat: int = 5
    """Repetitions; the median counts."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        on_gpu = jax.default_backend() != "cpu"
        game = self.game or ("grassland" if on_gpu else "food-collection")
        populations = self.population or (ON_GPU if on_gpu else ON_CPU)
        rows: list[Row] = []
        if not self.json:
            print(table_line(game, "attention", "ms per update", "bytes of state", "times full"))
        for population in populations:
            some = self.measure(game, population, on_gpu)
            rows += some
            if not self.json:
                print(*map(describe_row, some), sep="\n", flush=True)
        growth = exponents(rows)
        if self.json:
            print(json.dumps({"machine": describe(), "rows": rows, "exponents": growth}, indent=2))
        else:
            print(*(f"exponent, {name}: {value}" for name, value in growth.items()), sep="\n")

    def measure(self, name: str, population: str, on_gpu: bool) -> list[Row]:
        """All variants of a population."""
        agents = Population.parse(population).total
        most = MOST_WITH_FULL_ATTENTION if on_gpu else math.inf
        full = (None,) if agents <= (most if self.full is None else self.full) else ()
        rows, running = [], []
        for neighbours in (*full, *self.neighbours):
            row: Row = {
                "game": name,
                "population": population,
                "agents": agents,
                "neighbours": neighbours,
            }
            rows.append(row)
            try:
                running.append((row, *self.start(row, name, population)))
            except (InputError, RuntimeError, MemoryError) as error:  # XLA's is a RuntimeError
                row["error"] = str(error).split("\n")[0][:200]
        times: list[list[float]] = [[] for _ in running]
        for _ in range(self.repeat):
            for (row, trainer, updates), found in zip(running, times, strict=True):
                try:
                    found.append(timed(trainer, updates) / updates * 1000)
                except RuntimeError as error:
                    row["error"] = str(error).split("\n")[0][:200]
        for (row, *_), found in zip(running, times, strict=True):
            if "error" not in row:
                row["ms_per_update"] = round(statistics.median(found), 3)
                row["fastest_ms"], row["slowest_ms"] = round(min(found), 3), round(max(found), 3)
        slowest = next((row.get("ms_per_update") for row in rows if not row["neighbours"]), None)
        for row in rows:
            if slowest and row["neighbours"] and "ms_per_update" in row:
                row["times_full_attention"] = round(slowest / row["ms_per_update"], 2)
        return rows

    def start(self, row: Row, name: str, population: str) -> tuple[MatchTrainer, int]:
        """A compiled trainer, and how many updates make a repetition."""
        config = MADDPGConfig(
            neighbours=row["neighbours"], buffer_size=self.buffer_size, learning_starts=2_500
        )
        learner = learners.make("maddpg", games.make(name, population), config)
        trainer = MatchTrainer(learner, 1)
        row["bytes_of_state"] = trainer.bytes_per_device
        row["slices"] = trainer.learner.slices  # type: ignore[attr-defined]
        trainer.start(jax.random.key(0))
        updates, compiling = compiled(trainer, self.seconds)
        row["compile_seconds"] = round(compiling, 1)
        return trainer, updates


def exponents(rows: list[Row]) -> dict[str, float]:
    """Of the number of agents, by variant, for those with several populations."""
    growth = {}
    for neighbours in dict.fromkeys(row["neighbours"] for row in rows):
        some = [r for r in rows if r["neighbours"] == neighbours and "ms_per_update" in r]
        if len({row["agents"] for row in some}) > 1:
            first, last = some[0], some[-1]
            slower = math.log(last["ms_per_update"] / first["ms_per_update"])
            larger = math.log(last["agents"] / first["agents"])
            growth[variant(neighbours)] = round(slower / larger, 2)
    return growth


def variant(neighbours: int | None) -> str:
    return "full attention" if neighbours is None else f"neighbours {neighbours}"


def table_line(*values: object) -> str:
    return "".join(f"{value!s:>18}" for value in values)


def describe_row(row: Row) -> str:
    start = row["population"], variant(row["neighbours"])
    if "error" in row:
        return f"{table_line(*start)}  {row['error']}"
    state, ratio = format_bytes(row["bytes_of_state"]), row.get("times_full_attention", "")
    return table_line(*start, row["ms_per_update"], state, ratio)


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
