"""The fused parts of critics against plain XLA, on a GPU: error, milliseconds and TFLOP/s.

    python -m benchmarks.kernel --json

The parts are the observation encoder, and the embedding of what it encodes together with actions.
Inputs are fresh in every run: random networks for all critics of a match, and a batch of worlds
after some random steps. Errors are relative to plain JAX in float32: |a - b| / |b|, of the values
and of the gradient by all weights (and, of embeddings, by what was encoded). Operations are those
of the layers and of the attention, forwards; twice as many are counted backwards.
"""

import json
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array

from epcx import games
from epcx.agents.agent import ARCHITECTURES
from epcx.agents.attention import OWN_FEATURES, AttentionCritic, ObservationEncoder
from epcx.agents.kernels import precision
from epcx.agents.kernels.encoder import Options
from epcx.agents.layers import EMBEDDING, HIDDEN
from epcx.games import NUM_ACTIONS, Game, Observation
from epcx.learners.rollout import Chance, step_worlds
from epcx.runs.provenance import describe

PRECISIONS = ("bf16", "tf32", "float32")
BATCH = 1024
IN_A_ROW = 5  # calls


@dataclass(frozen=True)
class Part:
    """A part of all critics; what it makes of each network is a function of that and `seen`."""

    networks: Any  # and what differs between them; all of it has a gradient
    seen: Any  # by all of them
    slopes: Array
    operations: int
    truth: Callable[..., Array]
    plainly: Callable[..., Array]
    fused: Callable[[str], Callable[..., Array]]  # by the precision of products


@dataclass(frozen=True)
class Benchmark:
    """Compare the kernel with plain XLA."""

    game: str = "grassland"
    """The game."""

    population: str = "24-16"
    """Its population."""

    precision: tuple[str, ...] = PRECISIONS
    """Precisions of the kernel's products."""

    seed: int | None = None
    """Of the inputs; by default another one every time."""

    repeat: int = 10
    """Repetitions; the median counts."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        seed = secrets.randbits(31) if self.seed is None else self.seed
        game = games.make(self.game, self.population)
        first, second = jax.random.split(jax.random.key(seed))
        parts = {"encoder": encoder(first, game), "embedding": embedding(second, game)}
        rows = {f"{name}s": self.measure(name, part) for name, part in parts.items()}
        if self.json:
            setting = {"game": self.game, "population": self.population, "seed": seed}
            print(json.dumps({"machine": describe(), **setting, **rows}, indent=2))

    def measure(self, name: str, part: Part) -> list[dict[str, Any]]:
        """By plain XLA, and by the kernels in each precision."""
        with jax.default_matmul_precision("float32"):
            few = jax.tree.map(lambda x: x[:2], (part.networks, part.slopes))
            truth = forwards_and_backwards(part.truth)(few[0], part.seen, few[1])
        rows: list[dict[str, Any]] = []
        for kind in ("xla", *self.precision):
            how = part.plainly if kind == "xla" else part.fused(kind)
            both = forwards_and_backwards(how)
            row: dict[str, Any] = {name: kind if kind == "xla" else f"fused, {kind}"}
            row["error"], row["gradient_error"] = errors(both(few[0], part.seen, few[1]), truth)
            alone = jax.jit(lambda n, s, how=how: jax.vmap(how, (0, None))(n, s))
            row["ms_forwards"] = self.timed(alone, part.networks, part.seen)
            row["ms_both"] = self.timed(both, part.networks, part.seen, part.slopes)
            row["tflops_forwards"] = part.operations / row["ms_forwards"] / 1e9
            row["tflops_both"] = 3 * part.operations / row["ms_both"] / 1e9
            if rows:
                row["times_xla_forwards"] = rows[0]["ms_forwards"] / row["ms_forwards"]
                row["times_xla_both"] = rows[0]["ms_both"] / row["ms_both"]
            rows.append({k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in row.items()})
            if not self.json:
                print(rows[-1], flush=True)
        return rows

    def timed(self, function: Callable[..., Any], *arguments: Any) -> float:
        """Of one call out of several in a row, so that the device never waits for the host."""
        jax.block_until_ready(function(*arguments))
        times = []
        for _ in range(self.repeat):
            begin = time.perf_counter()
            for _ in range(IN_A_ROW):
                result = function(*arguments)
            jax.block_until_ready(result)
            times.append((time.perf_counter() - begin) / IN_A_ROW)
        return statistics.median(times) * 1000


def encoder(key: Array, game: Game) -> Part:
    first, second, third, fourth = jax.random.split(key, 4)
    make = jax.vmap(lambda key: ObservationEncoder(key, game))
    encoders = make(jax.random.split(first, game.num_agents))
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(second, BATCH))
    for step in range(10):
        chance = Chance.draw(jax.random.fold_in(third, step), game, 1, BATCH)
        chance = jax.tree.map(lambda x: x[0], chance)
        actions = jax.nn.softmax(chance.choices, 0).swapaxes(0, 1)
        worlds = step_worlds(game, chance, worlds, actions)[0]
    views = ARCHITECTURES["attention"].observe(game, worlds)
    shape = game.num_agents, encoders.width, game.num_agents, BATCH

    def plainly(encoder: ObservationEncoder, views: Observation) -> Array:
        return encoder.attending(views)[0]

    return Part(
        encoders,
        views,
        jax.random.normal(fourth, shape),
        operations(views) * game.num_agents,
        plainly,
        plainly,
        lambda kind: lambda encoder, views: encoder.fused(views, Options(precision=kind)),
    )


def operations(views: Observation) -> int:
    """Of one encoder, forwards."""
    total = views.own.size // OWN_FEATURES * 2 * (OWN_FEATURES * HIDDEN + HIDDEN * EMBEDDING)
    for features, mask in views.entities.values():
        layers = features.shape[0] * HIDDEN + HIDDEN * EMBEDDING
        total += mask.size * 2 * (layers + 2 * EMBEDDING)
    return total


def embedding(key: Array, game: Game) -> Part:
    first, second, third, fourth = jax.random.split(key, 4)
    make = jax.vmap(lambda key: AttentionCritic(key, game))
    critics = make(jax.random.split(first, game.num_agents))
    rows, width = (game.num_agents, BATCH), critics.encoder.width
    encoded = jax.random.normal(second, (game.num_agents, width, *rows)).astype(jnp.bfloat16)
    layers = NUM_ACTIONS * EMBEDDING + (width + EMBEDDING) * EMBEDDING

    def fused(kind: str) -> Callable[..., Array]:
        def embed(network: Any, actions: Array) -> Array:
            with precision(kind):
                encoded = network[1].astype(Options(kind).dtype)
                return network[0].embed_fused(encoded, actions)

        return embed

    return Part(
        (critics, encoded),
        jax.nn.softmax(jax.random.normal(third, (NUM_ACTIONS, *rows)), 0),
        jax.random.normal(fourth, (game.num_agents, EMBEDDING, *rows)),
        game.num_agents * game.num_agents * BATCH * 2 * layers,
        lambda network, actions: network[0].embed(network[1].astype(jnp.float32), actions),
        lambda network, actions: network[0].embed(network[1], actions),
        fused,
    )


def forwards_and_backwards(how: Callable[..., Array]) -> Callable[..., Any]:
    def one(network: Any, seen: Any, slope: Array) -> Any:
        result, back = jax.vjp(lambda network: how(network, seen), network)
        return result, back(slope.astype(result.dtype))[0]

    return jax.jit(lambda *arguments: jax.vmap(one, (0, None, 0))(*arguments))


def errors(ours: Any, truth: Any) -> list[float]:
    """Of the values and of the gradient."""

    def norm(tree: Any) -> Array:
        return jnp.sqrt(sum((x.astype(jnp.float32) ** 2).sum() for x in jax.tree.leaves(tree)))

    pairs = zip(ours, truth, strict=True)
    return [float(norm(jax.tree.map(jnp.subtract, a, b)) / norm(b)) for a, b in pairs]


if __name__ == "__main__":
    tyro.cli(Benchmark).run()
