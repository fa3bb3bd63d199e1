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

    def frame(world: World) -> Frame:
        return game.scene(world), game.alive(world)

    @jax.jit
    def play(agents: PyTree, key: Key[Array, ""]) -> tuple[Frame, PyTree]:
        def step(world: World, key: Key[Array, ""]) -> tuple[World, tuple[Frame, Outcome]]:
            act_key, step_key = jax.random.split(key)
            world, outcome = game.step(step_key, world, act(act_key, agents, world))
            return world, (frame(world), outcome)

        reset_key, steps_key = jax.random.split(key)
        world = game.reset(reset_key)
        step_keys = jax.random.split(steps_key, game.horizon)
        return frame(world), jax.lax.scan(step, world, step_keys)[1]

    agents = tuple(player.agents for player in ordered)
    first, (later, outcomes) = jax.device_get(play(agents, key))
    scene, alive = jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[None], b]), first, later)

    def events(name: str, like: Shaped[np.ndarray, "steps things"]) -> np.ndarray:
        """What happened in the step before each frame; zeros if the game does not count it."""
        values = getattr(outcomes.events, name, None)
        values = np.zeros(like.shape, int) if values is None else values
        return np.concatenate([np.zeros_like(values[:1]), values])

    happened = {name: events(name, outcomes.reward) for name in AGENT_EVENTS}
    happened["occupied"] = events("occupied", scene.food[1:, :, 0])
    reward = np.concatenate([np.zeros_like(outcomes.reward[:1]), outcomes.reward])
    return make_replay(game, title, scene, alive, reward=reward, **happened)


def record_start(game: Game, key: Key[Array, ""], title: str) -> Replay:
    """An episode of no steps: the initial world alone."""
    world = game.reset(key)
    scene, alive = jax.tree.map(
        lambda x: np.asarray(x)[None], jax.device_get((game.scene(world), game.alive(world)))
    )
    nothing = {name: np.zeros(alive.shape, int) for name in ("reward", *AGENT_EVENTS)}
    return make_replay(
        game, title, scene, alive, occupied=np.zeros(scene.food.shape[:2], int), **nothing
    )


def make_replay(
    game: Game,
    title: str,
    scene: Scene,
    alive: Bool[np.ndarray, "frames agents"],
    **happened: np.ndarray,
) -> Replay:
    """A replay of frames, the first axis of all arrays, with what happened before each."""
    world_size = float(getattr(game, "world_size", 1.0))
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
        **happened,
    )
