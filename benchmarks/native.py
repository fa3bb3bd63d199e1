"""Updates on a CPU, with the programs in C++ and in plain XLA, in turns within one process.

    python -m benchmarks.native --game grassland --population 3-2 6-4 12-8 --json

An update is that of `benchmarks.update`, of one match on all cores.
"""

import json
import os
import statistics
from dataclasses import dataclass

import tyro

from benchmarks.update import AUTHORS, started, timed
from epcx import games
from epcx.agents.kernels import cpu
from epcx.engines.devices import use_all_cores
from epcx.engines.local import LocalEngine
from epcx.runs.provenance import describe


@dataclass(frozen=True)
class Benchmark:
    """Compare updates with and without the programs in C++."""

    game: str = "grassland"
    """The game."""

    population: tuple[str, ...] = ()
    """One or more populations; by default the game's first stage."""

    seconds: float = 2.0
    """How long each turn takes, about."""

    repeat: int = 5
    """Turns of each; the median counts."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        if not cpu.usable():
            raise SystemExit("this needs a C++ compiler, and JAX on a CPU")
        rows = []
        for population in self.population or (games.make(self.game).stages[0],):
            rows.append(self.measure(population))
            if not self.json:
                print(rows[-1], flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "updates": rows}, indent=2))

    def measure(self, population: str) -> dict[str, object]:
        engines = {kind: self.warm(population, kind) for kind in ("xla", "native")}
        times: dict[str, list[float]] = {kind: [] for kind in engines}
        for _ in range(self.repeat):
            for kind, engine in engines.items():
                updates = max(1, round(self.seconds / timed(engine, 1)))
                times[kind].append(timed(engine, updates) / updates * 1000)
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        row: dict[str, object] = {"game": self.game, "population": population}
        row |= {f"ms_{kind}": round(value, 1) for kind, value in medians.items()}
        row |= {f"fastest_ms_{kind}": round(min(values), 1) for kind, values in times.items()}
        row["times_xla"] = round(medians["xla"] / medians["native"], 2)
        if authors := AUTHORS.get((self.game, population)):
            row["times_authors"] = round(authors / medians["native"], 1)
        return row

    def warm(self, population: str, kind: str) -> LocalEngine:
        """An engine whose programs are compiled."""
        os.environ["EPCX_NATIVE"] = "1" if kind == "native" else "0"
        engine = started(self.game, population, "att-maddpg", 1)
        timed(engine, 1)
        return engine


if __name__ == "__main__":
    use_all_cores()
    tyro.cli(Benchmark).run()
