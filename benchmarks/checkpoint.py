"""What checkpoints cost: seconds that training waits, bytes written, seconds to stop and to resume.

    python -m benchmarks.checkpoint --population 24-16 --matches 9 --json

Matches train for a while without checkpoints, and then as long with one at each interval; `stop` is
at the end of one more interval, when most is left to be written. Beside that, a checkpoint of the
whole state, written while training waits, as epcx 0.1 did. Compilation is left out. Files go to
--out, so that its disk is the one that is measured.
"""

import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from epcx import games, learners, options
from epcx.execution.devices import format_bytes, use_all_cores
from epcx.execution.match_trainer import MatchTrainer
from epcx.learners.learner import tree_bytes
from epcx.learners.maddpg_config import MADDPGConfig
from epcx.runs.checkpoint import Checkpoints, MatchUpdate
from epcx.runs.provenance import describe
from epcx.trainer import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Benchmark:
    """Measure checkpoints of matches in training."""

    game: str = "grassland"
    """The game."""

    population: tuple[str, ...] = ("3-2",)
    """One or more populations."""

    matches: int = 9
    """How many matches train at once."""

    buffer_size: int = 1_000_000
    """Transitions in each replay buffer."""

    fill: int = 0
    """Updates before the measurement, so that there is something to resume."""

    interval: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints."""

    checkpoints: int = 3
    """How many are written."""

    out: Path | None = None
    """A folder on the disk to be measured; by default a temporary one."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        rows = []
        for population in self.population:
            with tempfile.TemporaryDirectory(dir=self.out) as folder:
                rows.append(self.measure(population, Path(folder)))
            if not self.json:
                print(describe_row(rows[-1]), flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "checkpoints": rows}, indent=2))

    def measure(self, population: str, folder: Path) -> dict[str, Any]:
        game = games.make(self.game, population)
        config = MADDPGConfig(buffer_size=self.buffer_size)
        trainer = MatchTrainer(learners.make("maddpg", game, config), self.matches)
        trainer.start(jax.random.key(0))
        trainer.advance(2)  # compiles
        training = Training(trainer, Checkpoints(folder / "checkpoints"), 2 + self.fill)
        trainer.advance(self.fill or 1)
        training.done += 0 if self.fill else 1
        training.save()  # all that is there so far, and compiles the copies
        training.checkpoints.wait()
        row: dict[str, Any] = {"game": self.game, "population": population, "matches": self.matches}
        row["state_bytes"] = trainer.bytes_per_device * len(trainer.devices)
        without = training.train(self.interval * self.checkpoints, float("inf"))
        training.save()
        training.checkpoints.wait()
        begin_bytes = training.checkpoints.written
        with_them = training.train(self.interval * self.checkpoints, self.interval)
        training.save()
        training.checkpoints.wait()
        row["wait_seconds"] = max(with_them["waits"])
        row["write_seconds"] = max(with_them["writes"])
        row["share_of_training"] = sum(with_them["waits"]) / with_them["seconds"]
        written = training.checkpoints.written - begin_bytes
        row["bytes_written"] = written
        row["bytes_written_per_byte_put_into_the_buffer"] = written / (
            self.matches * transition_bytes(trainer, config) * with_them["updates"] * 100
        )
        row["slow_down"] = without["rate"] / with_them["rate"] - 1
        training.train(self.interval, float("inf"))
        row["stop_seconds"] = training.stop()
        row["resume_seconds"] = training.resume()
        whole = Checkpoints(folder / "whole")
        row["whole_state_seconds"], row["whole_state_bytes"] = training.save_whole(whole)
        shutil.rmtree(folder / "whole")
        return row


class Training:
    """Matches in training, and their checkpoints."""

    def __init__(self, trainer: MatchTrainer, checkpoints: Checkpoints, done: int):
        self.trainer, self.checkpoints, self.done, self.saved = trainer, checkpoints, done, 0
        self.chunk = 1

    def save(self, since: int | None = None, checkpoints: Checkpoints | None = None) -> None:
        since = self.saved if since is None else since
        states = self.trainer.snapshot(since, self.done)
        updates = {
            f"match-{i}": MatchUpdate(since, self.done, state) for i, state in enumerate(states)
        }
        (checkpoints or self.checkpoints).save({}, {}, updates)
        self.saved = self.done

    def train(self, seconds: float, interval: float) -> dict[str, Any]:
        """For a while, with a checkpoint at each interval; those are written in the background."""
        begin = saved_at = time.perf_counter()
        updates, waits, writes = 0, [], []
        writing_since: float | None = None
        while time.perf_counter() - begin < seconds:
            chunk_begin = time.perf_counter()
            self.trainer.advance(self.chunk)
            self.done, updates = self.done + self.chunk, updates + self.chunk
            pace = self.chunk / (time.perf_counter() - chunk_begin)
            self.chunk = max(1, int(2 * pace))
            if writing_since and not self.checkpoints.busy:
                writes.append(time.perf_counter() - writing_since)
                writing_since = None
            if time.perf_counter() - saved_at >= interval:
                wait_begin = time.perf_counter()
                self.save()
                saved_at = writing_since = time.perf_counter()
                waits.append(saved_at - wait_begin)
        spent = time.perf_counter() - begin
        self.checkpoints.wait()
        if writing_since:
            writes.append(time.perf_counter() - writing_since)
        rate = updates / spent
        return {
            "seconds": spent,
            "updates": updates,
            "rate": rate,
            "waits": waits,
            "writes": writes,
        }

    def stop(self) -> float:
        """Seconds from the end of a chunk until everything is on disk."""
        begin = time.perf_counter()
        self.save()
        self.checkpoints.wait()
        return time.perf_counter() - begin

    def resume(self) -> float:
        """Seconds to read a checkpoint and put it on the devices."""
        begin = time.perf_counter()
        found = Checkpoints(self.checkpoints.folder).load(print)
        assert found is not None
        self.trainer.blocks = []
        states = [found.state(f"match-{i}") for i in range(self.trainer.matches)]
        self.trainer.restore(states)
        jax.block_until_ready(self.trainer.blocks)
        return time.perf_counter() - begin

    def save_whole(self, checkpoints: Checkpoints) -> tuple[float, int]:
        begin = time.perf_counter()
        self.save(0, checkpoints)
        checkpoints.wait()
        return time.perf_counter() - begin, checkpoints.written


def transition_bytes(trainer: MatchTrainer, config: MADDPGConfig) -> float:
    """What a transition takes in the buffer."""
    buffer = trainer.blocks[0].buffer
    rings = tree_bytes((buffer.worlds, buffer.steps))
    rounds, horizon = buffer.steps.reward.shape[2:4]
    return rings / (trainer.layout.concurrent * rounds * horizon * config.num_envs)


def describe_row(row: dict[str, Any]) -> str:
    return (
        f"{row['game']} {row['population']}, {row['matches']} matches, "
        f"{format_bytes(row['state_bytes'])}: training waits {row['wait_seconds']:.2f} s for a "
        f"checkpoint ({row['share_of_training']:.1%}), written in {row['write_seconds']:.2f} s; "
        f"{row['bytes_written_per_byte_put_into_the_buffer']:.2f} bytes written per byte stored; "
        f"slow-down {row['slow_down']:.1%}; stops in {row['stop_seconds']:.2f} s, resumes in "
        f"{row['resume_seconds']:.2f} s; the whole state takes {row['whole_state_seconds']:.1f} s"
    )


if __name__ == "__main__":
    use_all_cores()
    options.run(Benchmark)
