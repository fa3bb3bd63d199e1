"""How long an update takes: 100 environment samples and one step of every agent of every match.

    python -m benchmarks.update --game grassland --population 3-2 --json

The authors' program (TensorFlow 1, one match, two CPU cores) took 420 ms at Grassland 3-2, 1440 at
6-4 and 7150 at 12-8; where one of these was measured on a CPU, the ratio is printed, too.
"""

import json
import statistics
import time
from dataclasses import dataclass

import jax

from epcx import estimate, games, learners, options
from epcx.execution.devices import format_bytes, use_all_cores
from epcx.execution.match_trainer import MatchTrainer
from epcx.learners.maddpg_config import MADDPGConfig, Network
from epcx.runs.provenance import describe

AUTHORS = {("grassland", "3-2"): 420, ("grassland", "6-4"): 1440, ("grassland", "12-8"): 7150}


@dataclass(frozen=True)
class Benchmark:
    """Measure updates of one game."""

    game: str = "grassland"
    """The game."""

    population: tuple[str, ...] = ()
    """One or more populations; by default the game's first stage."""

    network: Network = "attention"
    """The networks of MADDPG: attention, mlp or mean-field."""

    matches: tuple[int, ...] = (1,)
    """How many matches train at once; several numbers are measured one after the other."""

    seconds: float = 4.0
    """How long each of the repetitions takes, about."""

    repeat: int = 5
    """Repetitions; the median counts."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        populations = self.population or (games.make(self.game).stages[0],)
        rows = []
        for population in populations:
            for matches in self.matches:
                rows.append(self.measure(population, matches))
                if not self.json:
                    print(describe_row(rows[-1]), flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "updates": rows}, indent=2))

    def measure(self, population: str, matches: int) -> dict[str, object]:
        trainer = started(self.game, population, self.network, matches)
        once = timed(trainer, 1)  # compiles
        again = timed(trainer, 1)
        updates = max(1, round(self.seconds / again))
        times = sorted(timed(trainer, updates) / updates * 1000 for _ in range(self.repeat))
        median = statistics.median(times)
        row: dict[str, object] = {
            "game": self.game,
            "population": population,
            "network": self.network,
            "matches": matches,
            "ms_per_update": round(median, 3),
            "ms_per_update_and_match": round(median / matches, 3),
            "estimated_ms_per_update": round(1000 * estimated(trainer), 3),
            "fastest_ms": round(times[0], 3),
            "slowest_ms": round(times[-1], 3),
            "bytes_per_device": trainer.bytes_per_device,
            "compile_seconds": round(once - again, 1),
            "devices": len(trainer.devices),
            "devices_per_match": trainer.layout.shards,
            "platform": trainer.devices[0].platform,
        }
        authors = AUTHORS.get((self.game, population))
        if authors and row["platform"] == "cpu":
            row["times_faster_than_authors"] = round(authors / (median / matches), 1)
        return row


def started(name: str, population: str, network: Network, matches: int) -> MatchTrainer:
    # The buffer has its full size, but need not be full.
    config = MADDPGConfig(network, learning_starts=2_500)
    learner = learners.make("maddpg", games.make(name, population), config)
    trainer = MatchTrainer(learner, matches)
    trainer.start(jax.random.key(0))
    jax.block_until_ready(trainer.blocks)
    return trainer


def estimated(trainer: MatchTrainer) -> float:
    """What `epcx train --dry-run` takes an update for."""
    learner = learners.make("maddpg", trainer.learner.game, trainer.learner.config)
    return estimate.update_seconds(learner, trainer.matches, jax.local_devices())


def timed(trainer: MatchTrainer, updates: int) -> float:
    begin = time.perf_counter()
    trainer.advance(updates)
    return time.perf_counter() - begin


def describe_row(row: dict[str, object]) -> str:
    ratio = row.get("times_faster_than_authors")
    return (
        f"{row['game']} {row['population']}, {row['network']}, {row['matches']} match(es): "
        f"{row['ms_per_update']} ms per update (estimated: {row['estimated_ms_per_update']}), "
        f"training states take {format_bytes(int(str(row['bytes_per_device'])))} per device, "
        f"compiled in {row['compile_seconds']} s"
        + (f", {ratio} times the authors' speed" if ratio else "")
    )


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
