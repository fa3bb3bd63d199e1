"""What policies take to choose actions on a CPU: agent by agent and all at once, in turns.

    python -m benchmarks.playing --game food-collection --population 3 24 --json

In evaluation 500 worlds are played in parallel. Time is that of the CPU, so that other programs
disturb less.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import jax

from epcx import games, options
from epcx.learners import rollout
from epcx.networks.agent import ARCHITECTURES
from epcx.runs.provenance import describe


@dataclass(frozen=True)
class Benchmark:
    """Compare two ways to choose actions."""

    game: str = "food-collection"
    """The game."""

    population: tuple[str, ...] = ()
    """One or more populations; by default the game's stages."""

    network: tuple[Literal["relational", "equivariant"], ...] = ("relational", "equivariant")
    """One or both, with their initial weights; other networks always choose all at once."""

    neighbours: int | None = None
    """How many of each type agents see; by default all."""

    worlds: int = 500
    """How many are played in parallel."""

    repeat: int = 7
    """Turns of each; the median counts."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        rows = []
        for population in self.population or games.make(self.game).stages:
            for network in self.network:
                rows.append(self.measure(population, network))
                if not self.json:
                    print(rows[-1], flush=True)
        if self.json:
            print(json.dumps({"machine": describe(), "choices": rows}, indent=2))

    def measure(self, population: str, network: str) -> dict[str, object]:
        game = games.make(self.game, population)
        architecture = ARCHITECTURES[network].with_neighbours(self.neighbours)
        agents, reset = jax.random.split(jax.random.key(0))
        policies = jax.vmap(lambda key: architecture.policy(key, game))(
            jax.random.split(agents, game.num_agents)
        )
        worlds = game.reset_batch(jax.random.split(reset, self.worlds))
        views = jax.jit(lambda worlds: architecture.views(game, worlds))(worlds)

        def compiled(many: float) -> Callable[[], Any]:
            with mock.patch.multiple(rollout, MANY_ROWS=many, MANY_WORLDS=many):
                fresh = jax.jit(lambda *x: rollout.outputs(*x))  # not traced before
                program = fresh.lower(policies, views).compile()
            return lambda: jax.block_until_ready(program(policies, views))

        ways = {"at_once": compiled(float("inf")), "one_by_one": compiled(0)}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(self.repeat):
            for way, choose in ways.items():
                begin = time.process_time()
                choose()
                times[way].append(1000 * (time.process_time() - begin))
        medians = {way: statistics.median(found) for way, found in times.items()}
        row: dict[str, object] = {"game": self.game, "population": population, "network": network}
        row |= {f"ms_{way}": round(median, 2) for way, median in medians.items()}
        return row | {"times_at_once": round(medians["at_once"] / medians["one_by_one"], 2)}


if __name__ == "__main__":
    options.run(Benchmark)
