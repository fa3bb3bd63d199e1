"""Plays an episode and keeps it as a replay."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from epcx.evaluation.players import Side
from epcx.evaluation.tournament import in_one_world
from epcx.games import Game, Outcome, World
from epcx.reports.replay import Replay, ReplayRole


def record(game: Game, sides: Mapping[str, Side], key: jax.Array, title: str) -> Replay:
    """One episode of `game`, in which `sides` say who plays each role."""
    chosen = [sides[role] for role in game.members]
    act = in_one_world(chosen)

    @jax.jit
    def play(team: Any, key: jax.Array) -> tuple[World, tuple[World, Outcome]]:
        def advance(world: World, key: jax.Array) -> tuple[World, tuple[World, Outcome]]:
            choice, chance = jax.random.split(key)
            after, outcome = game.step(chance, world, act(choice, team, world))
            return after, (after, outcome)

        start, steps = jax.random.split(key)
        first = game.reset(start)
        return first, jax.lax.scan(advance, first, jax.random.split(steps, game.horizon))[1]

    team = tuple(side.agents for side in chosen)
    first, (worlds, outcomes) = jax.device_get(play(team, key))

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
