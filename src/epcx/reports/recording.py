"""Plays an episode and keeps it as a replay."""

import jax
import jax.numpy as jnp
import numpy as np

from epcx.evaluation.scripted import Act
from epcx.games import Game, Outcome, World
from epcx.reports.replay import Replay, ReplayRole


def record(game: Game, act: Act, key: jax.Array, title: str) -> Replay:
    """One episode of `game` in which `act(key, world)` decides for everybody."""
    start, *steps = jax.random.split(key, game.horizon + 1)

    def advance(world: World, key: jax.Array) -> tuple[World, tuple[World, Outcome]]:
        choice, chance = jax.random.split(key)
        after, outcome = game.step(chance, world, act(choice, world))
        return after, (after, outcome)

    @jax.jit
    def play() -> tuple[World, tuple[World, Outcome]]:
        first = game.reset(start)
        return first, jax.lax.scan(advance, first, jnp.stack(steps))[1]

    first, (worlds, outcomes) = jax.device_get(play())

    def frames(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(before)[None], np.asarray(after)])

    def happened(values: np.ndarray) -> np.ndarray:
        return frames(np.zeros_like(values[0]), values)

    events = outcomes.events
    return Replay(
        game=game.name,
        population=str(game.population),
        title=title,
        roles=tuple(
            ReplayRole(role.name, role.colour, role.size, count)
            for role, count in zip(game.roles, game.population.counts, strict=True)
        ),
        world_size=float(game.world_size),
        walls=game.walls,
        food_name=game.food_name,
        food_size=game.food_size,
        obstacle_size=game.obstacle_size,
        position=frames(first.position, worlds.position),
        alive=frames(first.alive, worlds.alive),
        food=frames(first.food, worlds.food),
        obstacles=np.zeros((0, 2)) if first.obstacles is None else np.asarray(first.obstacles),
        reward=happened(outcomes.reward),
        ate=happened(events.ate),
        killed=happened(events.killed),
        died=happened(events.died),
        touched=happened(events.touched),
        occupied=happened(events.occupied),
    )
