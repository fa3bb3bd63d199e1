"""Plays trained agents, and counts what they get and do."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epcx.games import Game, World

Players = Callable[[Array, Any, World], Float[Array, "agents 5 batch"]]
AT_ONCE = 500  # episodes in parallel


def play_episodes(
    game: Game, act: Players, agents: Any, key: Array, episodes: int
) -> dict[str, np.ndarray]:
    """What every agent got and did in each episode [N, episodes], and the final coverage.

    `act(key, agents, worlds)` decides for everybody; the batch of worlds is the last axis.
    """

    def step(agents: Any, carry: tuple[World, dict[str, Array]], key: Array) -> Any:
        worlds, sums = carry
        choice, chance = jax.random.split(key)
        keys = jax.random.split(chance, AT_ONCE)
        worlds, outcome = game.step(keys, worlds, act(choice, agents, worlds))
        events = outcome.events
        news = {"reward": outcome.reward, "shaping": outcome.shaping}
        news |= {name: getattr(events, name).astype(jnp.float32) for name in game.statistics}
        return (worlds, jax.tree.map(jnp.add, sums, news)), events.occupied

    @jax.jit
    def play(agents: Any, key: Array) -> dict[str, Array]:
        reset, chance = jax.random.split(key)
        worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(reset, AT_ONCE))
        zeros = jnp.zeros((game.num_agents, AT_ONCE))
        sums = dict.fromkeys(("reward", "shaping", *game.statistics), zeros)
        keys = jax.random.split(chance, game.horizon)
        (_, sums), occupied = jax.lax.scan(partial(step, agents), (worlds, sums), keys)
        if game.covers:
            sums["coverage"] = occupied[-1].mean(0, keepdims=True)
        return sums

    rounds = [
        jax.device_get(play(agents, jax.random.fold_in(key, i)))
        for i in range(-(-episodes // AT_ONCE))
    ]
    names = [
        name for name in ("reward", "shaping", *game.statistics, "coverage") if name in rounds[0]
    ]
    return {name: np.concatenate([r[name] for r in rounds], -1)[:, :episodes] for name in names}


def summarise(game: Game, played: dict[str, np.ndarray]) -> dict[str, dict[str, dict[str, float]]]:
    """Per role and statistic: the mean over the episodes, and its standard error.

    Teams are summed over their agents in games with opponents; in others, as in the paper, the
    numbers are means per agent.
    """
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for role, members in game.members.items():
        team = {
            name: game.score(values[members])
            for name, values in played.items()
            if name != "coverage"
        }
        if "coverage" in played:
            team["coverage"] = played["coverage"][0]
        summary[role] = {name: mean_and_error(values) for name, values in team.items()}
    return summary


def mean_and_error(values: np.ndarray) -> dict[str, float]:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "error": float(error)}
