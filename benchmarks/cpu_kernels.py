"""Updates on a CPU, with the C++ kernels and in plain JAX, alternating within one process.

    python -m benchmarks.cpu_kernels --game grassland --population 3-2 6-4 12-8 --json

An update is that of `benchmarks.update`, of one match on all cores.
"""

import json
import os
import statistics
from dataclasses import dataclass

from benchmarks.update import AUTHORS, started, timed
from epcx import games, options
from epcx.execution.devices import use_all_cores
from epcx.execution.match_trainer import MatchTrainer
from epcx.networks.kernels import cpu
from epcx.runs.provenance import describe


@dataclass(frozen=True)
class Benchmark:
    """Compare updates with and without the C++ kernels."""

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
        trainers = {kind: self.warm(population, kind) for kind in ("xla", "cpp")}
        times: dict[str, list[float]] = {kind: [] for kind in trainers}
        for _ in range(self.repeat):
            for kind, trainer in trainers.items():
                updates = max(1, round(self.seconds / timed(trainer, 1)))
                times[kind].append(timed(trainer, updates) / updates * 1000)
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        row: dict[str, object] = {"game": self.game, "population": population}
        row |= {f"ms_{kind}": round(value, 1) for kind, value in medians.items()}
        row |= {f"fastest_ms_{kind}": round(min(values), 1) for kind, values in times.items()}
        row["times_xla"] = round(medians["xla"] / medians["cpp"], 2)
        if authors := AUTHORS.get((self.game, population)):
            row["times_authors"] = round(authors / medians["cpp"], 1)
        return row

    def warm(self, population: str, kind: str) -> MatchTrainer:
        """A trainer that is compiled."""
        os.environ["EPCX_CPU_KERNELS"] = "1" if kind == "cpp" else "0"
        trainer = started(self.game, population, 1)
        timed(trainer, 1)
        return trainer


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
