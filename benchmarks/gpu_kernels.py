"""The Pallas kernels of critics against plain XLA, on a GPU: error, milliseconds and TFLOP/s.

    python -m benchmarks.gpu_kernels --json

The parts are the observation encoder, the same for neighbourhoods (every critic encodes its agent
and the nearest ones, and sees the nearest entities), f(o, a) of encoded observations and actions,
and the encoder of relational networks, which sees the nearest entities; then the choice of the
nearest, which must be the same. Inputs are fresh in every run:
random networks for all critics of a match, and a batch of worlds after some random steps. Errors
are relative to plain JAX in float32: |a - b| / |b|, of the values and of the gradient by all
weights (and, for f, by encoded observations). Operations are those of the layers and of the
attention in a forward pass; a backward pass counts as two.
"""

import contextlib
import json
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from epcx import games, options
from epcx.games import Game, Observation
from epcx.games.nearest_kernel import by_insertion
from epcx.games.neighbours import by_top_k
from epcx.networks import kernels
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.attention import AttentionCritic, ObservationEncoder
from epcx.networks.kernels import Kernels, pallas
from epcx.networks.kernels.pallas_attention import Options as AttentionOptions
from epcx.networks.kernels.pallas_embedding import TILING
from epcx.networks.kernels.pallas_encoder import Options
from epcx.networks.layers import EMBEDDING, HIDDEN, flatten_rows
from epcx.networks.neighbourhood import NearViews, num_seen, row_index
from epcx.networks.relational import HEADS, RelationalEncoder
from epcx.runs.provenance import describe

PRECISIONS = ("bf16", "tf32", "float32")
BATCH = 1024
CALLS = 5  # in a row


@dataclass(frozen=True)
class Part:
    """A part of all critics: functions of one network and of inputs that all of them share."""

    networks: Any  # and inputs that differ between them; all of it has a gradient
    inputs: Any
    grads: Array
    operations: int
    truth: Callable[..., Array]
    plain: Callable[..., Array]
    kernel: Callable[[str], Callable[..., Array]]  # by the precision of products


@dataclass(frozen=True)
class Benchmark:
    """Compare the Pallas kernels with plain XLA."""

    game: str = "grassland"
    """The game."""

    population: str = "24-16"
    """Its population."""

    neighbours: int = 12
    """The size of neighbourhoods."""

    part: tuple[
        Literal["encoder", "neighbourhood_encoder", "embedding", "relation", "nearest"], ...
    ] = ()
    """What to compare; by default everything."""

    precision: tuple[str, ...] = PRECISIONS
    """Precisions of the kernels' products."""

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
        parts: dict[str, Callable[[], Part]] = {
            "encoder": lambda: encoder(first, game),
            "neighbourhood_encoder": lambda: neighbourhood_encoder(first, game, self.neighbours),
            "embedding": lambda: embedding(second, game),
            "relation": lambda: relation(first, game, self.neighbours),
        }
        wanted: tuple[str, ...] = self.part or (*parts, "nearest")
        rows = {f"{name}s": self.measure(name, parts[name]()) for name in wanted if name in parts}
        if "nearest" in wanted:
            rows["nearest"] = self.measure_nearest(random_worlds(first, game), game)
        if self.json:
            setting = {"game": self.game, "population": self.population, "seed": seed}
            print(json.dumps({"machine": describe(), **setting, **rows}, indent=2))

    def measure(self, name: str, part: Part) -> list[dict[str, Any]]:
        """Plain XLA, and the kernels in each precision."""
        with jax.default_matmul_precision("float32"):
            few = jax.tree.map(lambda x: x[:2], (part.networks, part.grads))
            truth = forward_and_backward(part.truth)(few[0], part.inputs, few[1])
        rows: list[dict[str, Any]] = []
        for kind in ("xla", *self.precision):
            function = part.plain if kind == "xla" else part.kernel(kind)
            both = forward_and_backward(function)
            forward = jax.jit(lambda n, x, function=function: jax.vmap(function, (0, None))(n, x))
            row: dict[str, Any] = {name: kind if kind == "xla" else f"Pallas, {kind}"}
            # Also of XLA's products around the kernels.
            with contextlib.nullcontext() if kind == "xla" else kernels.precision(kind):
                found = both(few[0], part.inputs, few[1])
                row["error"], row["gradient_error"] = errors(found, truth)
                row["ms_forward"] = self.timed(forward, part.networks, part.inputs)
                row["ms_both"] = self.timed(both, part.networks, part.inputs, part.grads)
            row["tflops_forward"] = part.operations / row["ms_forward"] / 1e9
            row["tflops_both"] = 3 * part.operations / row["ms_both"] / 1e9
            if rows:
                row["times_xla_forward"] = rows[0]["ms_forward"] / row["ms_forward"]
                row["times_xla_both"] = rows[0]["ms_both"] / row["ms_both"]
            rows.append({k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in row.items()})
            if not self.json:
                print(rows[-1], flush=True)
        return rows

    def measure_nearest(self, worlds: Any, game: Game) -> list[dict[str, Any]]:
        """Every agent's nearest others, by plain XLA and by the kernel."""
        place, alive = game.positions_batch(worlds), game.alive_batch(worlds)
        rows: list[dict[str, Any]] = []
        found = []
        for name, choose in (("xla", by_top_k), ("Pallas", by_insertion)):
            function = jax.jit(
                lambda x, there, choose=choose: choose(x, x, there, self.neighbours, True)
            )
            found.append(function(place, alive))
            milliseconds = float(f"{self.timed(function, place, alive):.4g}")
            rows.append({"nearest": name, "ms": milliseconds})
        rows[1]["equal"] = bool((found[0] == found[1]).all())
        rows[1]["times_xla"] = float(f"{rows[0]['ms'] / rows[1]['ms']:.4g}")
        if not self.json:
            print(*rows, sep="\n", flush=True)
        return rows

    def timed(self, function: Callable[..., Any], *arguments: Any) -> float:
        """Milliseconds per call, of several in a row: the device never waits for the host."""
        jax.block_until_ready(function(*arguments))
        times = []
        for _ in range(self.repeat):
            begin = time.perf_counter()
            for _ in range(CALLS):
                result = function(*arguments)
            jax.block_until_ready(result)
            times.append((time.perf_counter() - begin) / CALLS)
        return statistics.median(times) * 1000


def random_worlds(key: Array, game: Game) -> Any:
    """A batch of worlds after some random steps."""
    first, second = jax.random.split(key)
    worlds = game.reset_batch(jax.random.split(first, BATCH))
    step = jax.jit(game.step_batch)
    for number in range(10):
        noise, game_key = jax.random.split(jax.random.fold_in(second, number))
        logits = jax.random.gumbel(noise, (game.num_agents, game.num_actions, BATCH))
        keys = jax.random.split(game_key, BATCH)
        worlds, _ = step(keys, worlds, jax.nn.softmax(logits, 1))
    return worlds


def random_encoders(key: Array, game: Game) -> ObservationEncoder:
    """One for every agent."""
    make = jax.vmap(lambda key: ObservationEncoder(key, game))
    return make(jax.random.split(key, game.num_agents))


def encoder(key: Array, game: Game) -> Part:
    first, second, third = jax.random.split(key, 3)
    encoders = random_encoders(first, game)
    views = ARCHITECTURES["attention"].views(game, random_worlds(second, game))
    views = flatten_rows(views, 2)
    shape = game.num_agents, encoders.width, game.num_agents * BATCH

    def encode(implementation: Kernels) -> Callable[..., Array]:
        return lambda network, views: implementation.encode(network.own, network.entities, views)

    return Part(
        encoders,
        views,
        jax.random.normal(third, shape),
        operations(views) * game.num_agents,
        encode(kernels.XLA),
        encode(kernels.XLA),
        lambda precision: encode(pallas_kernels(precision)),
    )


def neighbourhood_encoder(key: Array, game: Game, k: int) -> Part:
    """Inputs are what all agents see and who is near; a network comes with its seat."""
    first, second, third = jax.random.split(key, 3)
    near = ARCHITECTURES["attention"].with_neighbours(k)
    views = near.views(game, random_worlds(second, game))
    assert isinstance(views, NearViews), "so many neighbours are everybody"
    flat, slots = flatten_rows(Observation(views.own, views.entities), 2), len(views.agents)
    encoders = random_encoders(first, game)
    seats = jnp.arange(game.num_agents, dtype=jnp.float32)  # a float can have a gradient: zero
    shape = game.num_agents, encoders.width, slots * BATCH

    def encode(implementation: Kernels) -> Callable[..., Array]:
        def encoded(network: Any, inputs: Any) -> Array:
            encoder, seat = network
            seen, agents = inputs
            index = row_index(agents[:, seat.astype(jnp.int32)])
            return implementation.encode(encoder.own, encoder.entities, seen, index)

        return encoded

    return Part(
        (encoders, seats),
        (flat, views.agents),
        jax.random.normal(third, shape),
        operations(flat) * slots,
        encode(kernels.XLA),
        encode(kernels.XLA),
        lambda precision: encode(pallas_kernels(precision)),
    )


def pallas_kernels(precision: str) -> Kernels:
    embedding = Options(precision, tiling=TILING)
    return kernels.pallas_kernels(Options(precision), embedding, AttentionOptions())


def operations(views: Observation) -> int:
    """Of one encoder, in a forward pass."""
    own, rows = views.own.shape
    total = rows * 2 * (own * HIDDEN + HIDDEN * EMBEDDING)
    for features, mask in views.entities.values():
        layers = features.shape[0] * HIDDEN + HIDDEN * EMBEDDING
        total += mask.size * 2 * (layers + 2 * EMBEDDING)
    return total


def embedding(key: Array, game: Game) -> Part:
    first, second, third, fourth = jax.random.split(key, 4)
    make = jax.vmap(lambda key: AttentionCritic(key, game))
    critics = make(jax.random.split(first, game.num_agents))
    rows, width = game.num_agents * BATCH, critics.encoder.width
    encoded = jax.random.normal(second, (game.num_agents, width, rows)).astype(jnp.bfloat16)
    layers = game.num_actions * EMBEDDING + (width + EMBEDDING) * EMBEDDING

    def embed(function: Callable[..., Array], dtype: Any) -> Callable[..., Array]:
        def embedded(network: Any, actions: Array) -> Array:
            critic, encoded = network
            return function(critic.action, critic.combine, encoded.astype(dtype), actions)

        return embedded

    return Part(
        (critics, encoded),
        jax.nn.softmax(jax.random.normal(third, (game.num_actions, rows)), 0),
        jax.random.normal(fourth, (game.num_agents, EMBEDDING, rows)),
        game.num_agents * rows * 2 * layers,
        embed(pallas.embed_own, jnp.float32),
        embed(pallas.embed_own, jnp.bfloat16),
        lambda precision: embed(pallas_kernels(precision).embed, Options(precision).dtype),
    )


def relation(key: Array, game: Game, k: int) -> Part:
    """The relational encoders of all policies, or critics; views differ between agents."""
    first, second, third = jax.random.split(key, 3)
    make = jax.vmap(lambda key: RelationalEncoder(key, game))
    encoders = make(jax.random.split(first, game.num_agents))
    networks = ARCHITECTURES["relational"].with_neighbours(k)
    views = networks.views(game, random_worlds(second, game))
    seen = Observation(views.own, views.entities)
    seats = jnp.arange(game.num_agents, dtype=jnp.float32)  # a float can have a gradient: zero
    slots = 1 + num_seen(game, k)
    features = sum(len(x.features) * len(x.mask) for x in seen.entities.values()) + len(seen.own)
    mlp = 2 * HIDDEN * 2 * HIDDEN
    layers = features * HIDDEN + slots * HIDDEN * HIDDEN  # embeddings
    layers += slots * (4 * HIDDEN * HIDDEN + mlp + 2 * slots * HIDDEN)  # the first block
    layers += 6 * HIDDEN * HIDDEN + mlp + 2 * HEADS * slots * HIDDEN  # the last, for one token

    def encode(implementation: Kernels) -> Callable[..., Array]:
        def encoded(network: Any, seen: Observation) -> Array:
            encoder, seat = network
            view = jax.tree.map(lambda x: x[..., seat.astype(jnp.int32), :], seen)
            return implementation.encode_relations(HEADS, encoder, view)

        return encoded

    return Part(
        (encoders, seats),
        seen,
        jax.random.normal(third, (game.num_agents, HIDDEN, BATCH)),
        game.num_agents * BATCH * 2 * layers,
        encode(kernels.XLA),
        encode(kernels.XLA),
        lambda precision: encode(pallas_kernels(precision)),
    )


def forward_and_backward(function: Callable[..., Array]) -> Callable[..., Any]:
    def one(network: Any, inputs: Any, grad: Array) -> Any:
        result, backward = jax.vjp(lambda network: function(network, inputs), network)
        return result, backward(grad.astype(result.dtype))[0]

    return jax.jit(lambda *arguments: jax.vmap(one, (0, None, 0))(*arguments))


def errors(ours: Any, truth: Any) -> list[float]:
    """Of the values and of the gradient."""

    def norm(tree: Any) -> Array:
        return jnp.sqrt(sum((x.astype(jnp.float32) ** 2).sum() for x in jax.tree.leaves(tree)))

    pairs = zip(ours, truth, strict=True)
    return [float(norm(jax.tree.map(jnp.subtract, a, b)) / norm(b)) for a, b in pairs]


if __name__ == "__main__":
    options.run(Benchmark)
