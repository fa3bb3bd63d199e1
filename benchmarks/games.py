"""Steps per second of our games beside mpe2, VMAS and JaxMARL, in one run.

Everybody plays predator and prey at the same counts of agents (ours: Grassland, which adds grass
and death, and Predator-prey, the same game as theirs), computes flat observations and rewards
after every step, and uses both: they decide the next action. Batched engines are given the best
of several batch sizes (VMAS, whose steps take a second each, the largest). Hundreds of agents play
without peers, in worlds of constant density. Peers come with `pip install "epcx[bench]"`.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from epcx import InputError, games
from epcx.runs.provenance import describe

POPULATIONS = ("3-2", "24-16", "96-64", "384-256")
BATCHES = (16, 64, 256, 1024, 4096)
MAX_PEER_AGENTS = 40
MAX_PAIRS = 4096 * 40**2  # of agents, in a batch: the memory for their observations
EPISODE = 25


@dataclass(frozen=True)
class Engine:
    """`build(population, batch)` gives a function that plays one episode of a batch of worlds."""

    name: str
    build: Callable[[str, int], Callable[[], None]]
    batches: list[int]
    compiled: bool = True


@dataclass(frozen=True)
class Measurement:
    engine: str
    population: str
    batch: int
    steps_per_second: float


def best_rate(run: Callable[[], None], steps: int, seconds: float, compiles: bool) -> float:
    """Steps per second of the fastest of the runs that fit in `seconds`, compilation apart."""
    if compiles:
        run()
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return steps / min(times)


def choose(time: Any, score: Any) -> Any:
    """The next action, one of five: it depends on what was seen and earned."""
    return (time + (score > 0)) % 5


def ours(name: str, population: str, batch: int, layout: str) -> Callable[[], None]:
    """A batch of episodes, with the batch at the end of every array, or vmapped in front."""
    game = games.make(name, population, "constant")
    last = layout == "last"
    axis = -1 if last else 0
    step = game.step if last else jax.vmap(game.step)
    observe = game.observe_flat if last else jax.vmap(game.observe_flat)
    shape = (game.num_agents, batch) if last else (batch, game.num_agents)

    def advance(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        world, reward = carry
        time, key = inputs
        action = choose(time, observe(world).sum(1 if last else -1) + reward)
        action = jax.nn.one_hot(action, game.num_actions, axis=1 if last else -1)
        world, outcome = step(jax.random.split(key, batch), world, action)
        return (world, outcome.reward + outcome.shaping), None

    @jax.jit
    def episode(key: jax.Array) -> Any:
        start, play = jax.random.split(key)
        worlds = jax.vmap(game.reset, out_axes=axis)(jax.random.split(start, batch))
        inputs = (jnp.arange(EPISODE), jax.random.split(play, EPISODE))
        return jax.lax.scan(advance, (worlds, jnp.zeros(shape)), inputs)[0]

    key = jax.random.key(0)
    return lambda: jax.block_until_ready(episode(key))


def jaxmarl(population: str, batch: int) -> Callable[[], None]:
    importlib.import_module("epcx.adapters.jaxmarl")  # first: it keeps JaxMARL from printing
    from jaxmarl.environments.mpe.simple_tag import SimpleTagMPE

    prey, predators = map(int, population.split("-"))
    env = SimpleTagMPE(num_good_agents=prey, num_adversaries=predators)

    def advance(carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        state, score = carry
        time, key = inputs
        action = choose(time, score)
        actions = {agent: action[i] for i, agent in enumerate(env.agents)}
        keys = jax.random.split(key, batch)
        observation, state, reward, _, _ = jax.vmap(env.step_env)(keys, state, actions)
        score = jnp.stack([observation[a].sum(-1) + reward[a] for a in env.agents])
        return (state, score), None

    @jax.jit
    def episode(key: jax.Array) -> Any:
        start, play = jax.random.split(key)
        _, states = jax.vmap(env.reset)(jax.random.split(start, batch))
        inputs = (jnp.arange(EPISODE), jax.random.split(play, EPISODE))
        return jax.lax.scan(advance, (states, jnp.zeros((len(env.agents), batch))), inputs)[0]

    key = jax.random.key(0)
    return lambda: jax.block_until_ready(episode(key))


def vmas(population: str, batch: int) -> Callable[[], None]:
    import torch
    from vmas import make_env

    prey, predators = map(int, population.split("-"))
    env = make_env(
        "simple_tag",
        num_envs=batch,
        device="cpu",
        continuous_actions=False,
        num_good_agents=prey,
        num_adversaries=predators,
    )
    agents = len(env.agents)

    def episode() -> None:
        env.reset()
        score = torch.zeros(agents, batch)
        for step in range(EPISODE):
            action = choose(step, score)
            observation, reward, _, _ = env.step([row[:, None] for row in action])
            score = torch.stack([o.sum(-1) + r for o, r in zip(observation, reward, strict=True)])

    return episode


def mpe2(population: str, batch: int) -> Callable[[], None]:
    from mpe2 import simple_tag_v3

    prey, predators = map(int, population.split("-"))
    env = simple_tag_v3.parallel_env(
        num_good=prey, num_adversaries=predators, max_cycles=EPISODE + 1
    )

    def episode() -> None:
        env.reset(seed=0)
        score = dict.fromkeys(env.agents, 0.0)
        for step in range(EPISODE):
            actions = {agent: int(choose(step, score[agent])) for agent in env.agents}
            observation, reward, *_ = env.step(actions)
            score = {agent: observation[agent].sum() + reward[agent] for agent in env.agents}

    return episode


def measure(
    populations: list[str], batches: list[int], seconds: float, only: str
) -> list[Measurement]:
    """Every engine whose name starts with `only`, at every population, each at its best batch."""
    engines = [
        Engine("epcx grassland", partial(ours, "grassland", layout="last"), batches),
        Engine("epcx predator-prey", partial(ours, "predator-prey", layout="last"), batches),
        Engine("epcx grassland, vmap", partial(ours, "grassland", layout="first"), batches),
        Engine("jaxmarl simple_tag", jaxmarl, batches),
        Engine("vmas simple_tag", vmas, [max(batches)], compiled=False),
        Engine("mpe2 simple_tag", mpe2, [1], compiled=False),
    ]
    results = []
    for population in populations:
        agents = games.Population.parse(population).total
        for engine in engines:
            is_peer = not engine.name.startswith("epcx")
            many = agents > MAX_PEER_AGENTS
            if not engine.name.startswith(only) or (many and is_peer):
                continue
            sizes = [size for size in engine.batches if size * agents**2 <= MAX_PAIRS or not many]
            rates = {}
            for batch in sizes or [1]:
                run = engine.build(population, batch)
                rates[batch] = best_rate(run, batch * EPISODE, seconds, engine.compiled)
            batch = max(rates, key=lambda size: rates[size])
            results.append(Measurement(engine.name, population, batch, rates[batch]))
            print(f"{population} {engine.name}: {rates[batch]:,.0f} steps/s", file=sys.stderr)
    return results


def table(results: list[Measurement], ratios: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':24}{'population':>12}{'batch':>8}{'steps/s':>14}{'x best peer':>13}"]
    for r in results:
        ratio = ratios[r.population].get(r.engine, "")
        lines.append(
            f"{r.engine:24}{r.population:>12}{r.batch:>8}{r.steps_per_second:>14,.0f}{ratio:>13}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", nargs="+", default=POPULATIONS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and batch size")
    parser.add_argument("--only", default="", help="engines whose names start so, such as epcx")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    try:
        results = measure(options.populations, options.batches, options.seconds, options.only)
    except InputError as error:
        sys.exit(f"benchmarks.games: {error}")
    except ImportError as error:
        sys.exit(f'{error}: pip install "epcx[bench]", or measure --only epcx')
    peers = ("jaxmarl", "vmas", "mpe2")
    ratios = {}
    for population in options.populations:
        rates = {r.engine: r.steps_per_second for r in results if r.population == population}
        theirs = [rate for engine, rate in rates.items() if engine.startswith(peers)]
        ratios[population] = {
            engine: round(rate / max(theirs), 2)
            for engine, rate in rates.items()
            if theirs and engine.startswith("epcx")
        }
    report = {
        "machine": describe(),
        "steps_per_second": [
            {**vars(r), "steps_per_second": round(r.steps_per_second)} for r in results
        ],
        "ratio_to_best_peer": ratios,
    }
    print(json.dumps(report, indent=2) if options.json else table(results, ratios))


if __name__ == "__main__":
    main()
