"""How long an update takes: of MADDPG, 100 environment samples and one step of every agent of every
match; of MAPPO, an episode of 64 worlds and 16 steps.

    python -m benchmarks.update --game grassland --population 3-2 --json
    python -m benchmarks.update --game food-collection --population 24 \\
        --network attention equivariant --neighbours 0 10

Several networks are measured in turns, in one process; ratios are those to the first.

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
from epcx.runs.provenance import describe

AUTHORS = {("grassland", "3-2"): 420, ("grassland", "6-4"): 1440, ("grassland", "12-8"): 7150}
PAPER = "maddpg", ("attention", 0)  # what the authors' program trains


@dataclass(frozen=True)
class Benchmark:
    """Measure updates of one game."""

    game: str = "grassland"
    """The game."""

    population: tuple[str, ...] = ()
    """One or more populations; by default the game's first stage."""

    learner: str = "maddpg"
    """The learner, with its default settings."""

    network: tuple[str, ...] = ("attention",)
    """One or more of its networks."""

    neighbours: tuple[int, ...] = ()
    """For each network, how many of each type agents see; 0, the default, for all."""

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
                some = self.measure(population, matches)
                rows += some
                if not self.json:
                    print(*map(describe_row, some), sep="\n", flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "updates": rows}, indent=2))

    def measure(self, population: str, matches: int) -> list[dict[str, object]]:
        """All networks of a population."""
        neighbours = self.neighbours or (0,) * len(self.network)
        variants = list(zip(self.network, neighbours, strict=True))
        running = [self.start(population, matches, *variant) for variant in variants]
        times: list[list[float]] = [[] for _ in running]
        for _ in range(self.repeat):
            for (trainer, updates, _), found in zip(running, times, strict=True):
                found.append(timed(trainer, updates) / updates * 1000)
        rows: list[dict[str, object]] = []
        for (trainer, _, compiling), found, variant in zip(running, times, variants, strict=True):
            median = statistics.median(found)
            row: dict[str, object] = {
                "game": self.game,
                "population": population,
                "learner": self.learner,
                "network": variant[0],
                "neighbours": variant[1] or None,
                "matches": matches,
                "ms_per_update": round(median, 3),
                "ms_per_update_and_match": round(median / matches, 3),
                "times_the_first": round(median / statistics.median(times[0]), 2),
                "estimated_ms_per_update": round(1000 * estimated(trainer), 3),
                "fastest_ms": round(min(found), 3),
                "slowest_ms": round(max(found), 3),
                "bytes_per_device": trainer.bytes_per_device,
                "compile_seconds": round(compiling, 1),
                "devices": len(trainer.devices),
                "devices_per_match": trainer.layout.shards,
                "platform": trainer.devices[0].platform,
            }
            authors = AUTHORS.get((self.game, population))
            if authors and (self.learner, variant, row["platform"]) == (*PAPER, "cpu"):
                row["times_faster_than_authors"] = round(authors / (median / matches), 1)
            rows.append(row)
        return rows

    def start(
        self, population: str, matches: int, network: str, neighbours: int
    ) -> tuple[MatchTrainer, int, float]:
        """A compiled trainer, how many updates make a repetition, and the time of compilation."""
        trainer = started(self.game, population, matches, self.learner, network, neighbours or None)
        return trainer, *compiled(trainer, self.seconds)


def started(
    name: str,
    population: str,
    matches: int,
    learner: str = "maddpg",
    network: str = "attention",
    neighbours: int | None = None,
) -> MatchTrainer:
    # The buffer has its full size, but need not be full.
    early = {"learning_starts": 2_500} if learner == "maddpg" else {}
    config = learners.find(learner).Config(network=network, neighbours=neighbours, **early)
    trainer = MatchTrainer(learners.make(learner, games.make(name, population), config), matches)
    trainer.start(jax.random.key(0))
    jax.block_until_ready(trainer.blocks)
    return trainer


def estimated(trainer: MatchTrainer) -> float:
    """What `epcx train --dry-run` takes an update for."""
    mine = trainer.learner
    learner = learners.make(mine.name, mine.game, mine.config)
    return estimate.update_seconds(learner, trainer.matches, jax.local_devices())


def compiled(trainer: MatchTrainer, seconds: float) -> tuple[int, float]:
    """Updates that take about so many seconds, and those that compilation has taken."""
    once, again = timed(trainer, 1), timed(trainer, 1)
    return max(1, round(seconds / again)), once - again


def timed(trainer: MatchTrainer, updates: int) -> float:
    begin = time.perf_counter()
    trainer.advance(updates)
    return time.perf_counter() - begin


def describe_row(row: dict[str, object]) -> str:
    ratio = row.get("times_faster_than_authors")
    return (
        f"{row['game']} {row['population']}, {row['learner']}, {row['network']}, "
        f"neighbours {row['neighbours'] or 'all'}, {row['matches']} match(es): "
        f"{row['ms_per_update']} ms per update, {row['times_the_first']} times the first "
        f"(estimated: {row['estimated_ms_per_update']} ms), "
        f"training states take {format_bytes(int(str(row['bytes_per_device'])))} per device, "
        f"compiled in {row['compile_seconds']} s"
        + (f", {ratio} times the authors' speed" if ratio else "")
    )


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
