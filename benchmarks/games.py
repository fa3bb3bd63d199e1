"""Steps per second of our games beside mpe2, VMAS and JaxMARL, in one run.

Everybody plays predator and prey at the same counts of agents (ours: Grassland, which adds grass
and death, and Predator-prey, the same game as theirs), computes flat observations and rewards
after every step, and uses both: they decide the next action. Batched engines are given the best
of several batch sizes (VMAS, which gains from every doubling, the largest). Peers come with `pip install "epcx[bench]"`.
"""

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe
from epcx import games

POPULATIONS = ("3-2", "24-16")
BATCHES = (64, 128, 256, 1024)
EPISODE = 25


@dataclass(frozen=True)
class Measurement:
    engine: str
    population: str
    batch: int
    steps_per_second: float


def best_rate(run: Callable[[], None], steps: int, seconds: float) -> float:
    """Steps per second of the fastest of the runs that fit in `seconds`, after one to warm up."""
    run()
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return steps / min(times)


def choose(noise: jax.Array, score: jax.Array) -> jax.Array:
    """The next action: random, but it depends on what was seen and earned."""
    return (noise + (score > 0)) % games.NUM_ACTIONS


def ours(name: str, population: str, batch: int, layout: str) -> Callable[[], None]:
    """A batch of episodes, with the batch at the end of every array, or vmapped in front."""
    game = games.make(name, population)
    last = layout == "last"
    axis = -1 if last else 0
    step = game.step if last else jax.vmap(game.step)
    observe = game.observe_flat if last else jax.vmap(game.observe_flat)
    shape = (game.num_agents, batch) if last else (batch, game.num_agents)

    def advance(carry: Any, key: jax.Array) -> tuple[Any, None]:
        world, score = carry
        chance, noise = jax.random.split(key)
        action = choose(jax.random.randint(noise, shape, 0, games.NUM_ACTIONS), score)
        action = jax.nn.one_hot(action, games.NUM_ACTIONS, axis=1 if last else -1)
        world, outcome = step(jax.random.split(chance, batch), world, action)
        score = observe(world).sum(1 if last else -1) + outcome.reward + outcome.shaping
        return (world, score), None

    @jax.jit
    def episode(key: jax.Array) -> jax.Array:
        start, play = jax.random.split(key)
        worlds = jax.vmap(game.reset, out_axes=axis)(jax.random.split(start, batch))
        carry = (worlds, jnp.zeros(shape))
        return jax.lax.scan(advance, carry, jax.random.split(play, EPISODE))[0][1]

    key = jax.random.key(0)
    return lambda: jax.block_until_ready(episode(key))


def jaxmarl(population: str, batch: int) -> Callable[[], None]:
    with contextlib.redirect_stdout(io.StringIO()):
        from jaxmarl.environments.mpe.simple_tag import SimpleTagMPE

    prey, predators = map(int, population.split("-"))
    env = SimpleTagMPE(num_good_agents=prey, num_adversaries=predators)

    def advance(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, score = carry
        chance, noise = jax.random.split(key)
        shape = (len(env.agents), batch)
        action = choose(jax.random.randint(noise, shape, 0, games.NUM_ACTIONS), score)
        actions = {agent: action[i] for i, agent in enumerate(env.agents)}
        keys = jax.random.split(chance, batch)
        observation, state, reward, _, _ = jax.vmap(env.step_env)(keys, state, actions)
        score = jnp.stack([observation[a].sum(-1) + reward[a] for a in env.agents])
        return (state, score), None

    @jax.jit
    def episode(key: jax.Array) -> jax.Array:
        start, play = jax.random.split(key)
        _, states = jax.vmap(env.reset)(jax.random.split(start, batch))
        carry = (states, jnp.zeros((len(env.agents), batch)))
        return jax.lax.scan(advance, carry, jax.random.split(play, EPISODE))[0][1]

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
        for _ in range(EPISODE):
            noise = torch.randint(0, games.NUM_ACTIONS, (agents, batch))
            action = (noise + (score > 0)) % games.NUM_ACTIONS
            observation, reward, _, _ = env.step([row[:, None] for row in action])
            score = torch.stack([o.sum(-1) + r for o, r in zip(observation, reward, strict=True)])

    return episode


def mpe2(population: str, batch: int) -> Callable[[], None]:
    from mpe2 import simple_tag_v3

    prey, predators = map(int, population.split("-"))
    env = simple_tag_v3.parallel_env(
        num_good=prey, num_adversaries=predators, max_cycles=EPISODE + 1
    )
    rng = np.random.default_rng(0)

    def episode() -> None:
        env.reset(seed=0)
        score = dict.fromkeys(env.agents, 0.0)
        for _ in range(EPISODE):
            noise = rng.integers(0, games.NUM_ACTIONS, len(env.agents))
            actions = {
                agent: int(noise[i] + (score[agent] > 0)) % games.NUM_ACTIONS
                for i, agent in enumerate(env.agents)
            }
            observation, reward, *_ = env.step(actions)
            score = {agent: observation[agent].sum() + reward[agent] for agent in env.agents}

    return episode


def measure(populations: list[str], batches: list[int], seconds: float) -> list[Measurement]:
    """Every engine at every population, each at its best batch."""
    engines: dict[str, tuple[Callable[[str, int], Callable[[], None]], list[int]]] = {
        "epcx grassland": (lambda p, b: ours("grassland", p, b, "last"), batches),
        "epcx predator-prey": (lambda p, b: ours("predator-prey", p, b, "last"), batches),
        "epcx grassland, vmap": (lambda p, b: ours("grassland", p, b, "first"), batches),
        "jaxmarl simple_tag": (jaxmarl, batches),
        "vmas simple_tag": (vmas, batches[-1:]),  # the larger the better, and slow
        "mpe2 simple_tag": (mpe2, [1]),
    }
    results = []
    for population in populations:
        for engine, (build, sizes) in engines.items():
            rates = {
                batch: best_rate(build(population, batch), batch * EPISODE, seconds)
                for batch in sizes
            }
            batch = max(rates, key=lambda size: rates[size])
            results.append(Measurement(engine, population, batch, rates[batch]))
            print(f"# {population} {engine}: {rates[batch]:,.0f} steps/s", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", nargs="+", default=POPULATIONS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and batch size")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args()
    out = io.StringIO() if options.json else None
    with contextlib.redirect_stdout(out) if out else contextlib.nullcontext():
        results = measure(options.populations, options.batches, options.seconds)
    peers = ("jaxmarl", "vmas", "mpe2")
    ratios = {}
    for population in options.populations:
        rates = {r.engine: r.steps_per_second for r in results if r.population == population}
        best_peer = max(rate for engine, rate in rates.items() if engine.startswith(peers))
        ratios[population] = {
            engine: round(rate / best_peer, 2)
            for engine, rate in rates.items()
            if engine.startswith("epcx")
        }
    report = {
        "machine": describe(),
        "steps_per_second": [
            {**vars(r), "steps_per_second": round(r.steps_per_second)} for r in results
        ],
        "ratio_to_best_peer": ratios,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
