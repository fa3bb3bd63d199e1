"""Records an episode as a replay."""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array, Bool, Key, PyTree, Shaped

from epcx.evaluation.players import Player
from epcx.evaluation.tournament import act_in_one_world
from epcx.games import Game, Outcome, Scene, World
from epcx.reports.replay import Replay, ReplayRole

Frame = tuple[Scene, Bool[Array, "agents"]]  # what is drawn, and who is alive
AGENT_EVENTS = ("ate", "killed", "died", "touched")


def record(game: Game, players: Mapping[str, Player], key: Key[Array, ""], title: str) -> Replay:
    """One episode of `game` with the given player of each role.

    Raises `InputError` if the game has no 2-D scene to draw.
    """
    ordered = [players[role] for role in game.members]
    act = act_in_one_world(ordered)

    @jax.jit
    def play(agents: PyTree, key: Key[Array, ""]) -> tuple[Frame, PyTree]:
        def step(world: World, key: Key[Array, ""]) -> tuple[World, tuple[Frame, Outcome]]:
            act_key, step_key = jax.random.split(key)
            world, outcome = game.step(step_key, world, act(act_key, agents, world))
            return world, (frame(game, world), outcome)

        reset_key, steps_key = jax.random.split(key)
        world = game.reset(reset_key)
        step_keys = jax.random.split(steps_key, game.horizon)
        return frame(game, world), jax.lax.scan(step, world, step_keys)[1]

    agents = tuple(player.agents for player in ordered)
    first, (later, outcomes) = jax.device_get(play(agents, key))
    frames = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[None], b]), first, later)
    return make_replay(game, title, frames, outcomes)


def record_start(game: Game, key: Key[Array, ""], title: str) -> Replay:
    """An episode of no steps: the initial world alone."""
    return Recorder(game, game.reset(key)).replay(title)


class Recorder:
    """Records an episode while somebody else plays it.

    Raises `InputError` if the game has no 2-D scene to draw.
    """

    def __init__(self, game: Game, world: World) -> None:
        self.game = game
        self.frames: list[Frame] = [jax.device_get(frame(game, world))]
        self.outcomes: list[Outcome] = []

    def add(self, world: World, outcome: Outcome) -> None:
        """The world after the next step."""
        self.frames.append(jax.device_get(frame(self.game, world)))
        self.outcomes.append(jax.device_get(outcome))

    def replay(self, title: str) -> Replay:
        """The episode so far."""
        frames, outcomes = (
            jax.tree.map(lambda *rows: np.stack(rows), *steps) if steps else None
            for steps in (self.frames, self.outcomes)
        )
        return make_replay(self.game, title, frames, outcomes)


def frame(game: Game, world: World) -> Frame:
    return game.scene(world), game.alive(world)


def make_replay(game: Game, title: str, frames: PyTree, outcomes: PyTree) -> Replay:
    """A replay of frames [steps + 1, ...] and of the outcomes [steps, ...], None for no steps."""
    scene, alive = frames

    def happened(values: PyTree, things: int) -> Shaped[np.ndarray, "frames things"]:
        """In the step before each frame; zeros if the game does not count it."""
        if values is None:
            return np.zeros((len(alive), things), int)
        return np.concatenate([np.zeros_like(values[:1]), values])

    def events(name: str, things: int) -> Shaped[np.ndarray, "frames things"]:
        return happened(getattr(getattr(outcomes, "events", None), name, None), things)

    world_size = float(getattr(game, "half_side", getattr(game, "world_size", 1.0)))
    return Replay(
        game=game.name,
        population=str(game.population),
        title=title,
        roles=tuple(
            ReplayRole(role.name, role.colour, role.size, count)
            for role, count in zip(game.roles, game.population.counts, strict=True)
        ),
        world_size=world_size,
        walls=getattr(game, "walls", True),
        food_name=getattr(game, "food_name", "food"),
        food_size=getattr(game, "food_size", 0.03 * world_size),
        obstacle_size=getattr(game, "obstacle_size", 0.2 * world_size),
        position=np.asarray(scene.position),
        alive=alive,
        food=np.asarray(scene.food),
        obstacles=np.asarray(scene.obstacles[0]),
        reward=happened(getattr(outcomes, "reward", None), game.num_agents),
        occupied=events("occupied", scene.food.shape[1]),
        **{name: events(name, game.num_agents) for name in AGENT_EVENTS},
    )
