"""The agents that a run has kept, ready to play."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epcx import games
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.evaluate import Summary
from epcx.evaluation.players import Side
from epcx.evaluation.tournament import Tournament, batch_of_one, in_one_world
from epcx.evolution.lineage import Lineage
from epcx.games import Game, World
from epcx.learners import MADDPG
from epcx.runs.run import Run
from epcx.runs.weights import digest, load_weights
from epcx.training import Training

MOST_PLAYED = 10_000_000  # episodes of a game that is played for its result


def load(
    run: str | Path, population: str | None = None, stage: str | None = None, match: int = 0
) -> "Team":
    """The agents of a run at a population, by default its last stage's.

    `stage` names the stage that trained them, by default that of the population, or the last;
    match 0 has the best set of each role.
    """
    opened = Run.open(Path(run))
    training = Training.of(opened)
    game = games.make(training.game, population or str(training.games[-1].population))
    return Team(Entrant(str(run), opened, stage, match), game)


def about(learner: MADDPG, role: str) -> dict[str, str]:
    """What the weights of an agent set are for."""
    return {
        "game": learner.game.name,
        "role": role,
        "architecture": learner.architecture.name,
    }


@dataclass(frozen=True)
class Entrant:
    """One match of a run under a name, at whatever population it is asked to play."""

    name: str
    run: Run
    stage: str | None = None  # none: that of the population, or the last
    match: int = 0

    def stage_at(self, game: Game) -> str:
        return stage_of(self.run, str(game.population), self.stage)

    def origin(self, role: str) -> int:
        """The match in which the agents of a role were trained."""
        for record in Lineage.from_json(self.run.lineage()).records:
            if (record.population, record.role, record.rank) == (self.stage, role, self.match):
                return record.match
        raise InputError(f"{self.run.path} has no lineage of {role} at {self.stage}")

    def learner(self, game: Game) -> MADDPG:
        training = Training.of(self.run)
        if training.game != game.name:
            raise InputError(f"{self.run.path} is a run of {training.game}, not of {game.name}")
        return training.learner(game)

    def side(self, game: Game, role: str) -> Side:
        """Where a role has more seats than there are agents, agents take several."""
        learner, stage = self.learner(game), self.stage_at(game)
        (match,) = matches_of(self.run, stage, self.match)
        like = jax.eval_shape(learner.init, jax.random.key(0))
        path = self.run.weights(stage, match, game.role(role).name)
        if not path.exists():
            raise InputError(f"{self.run.path} has no agents of {role} at {stage}, match {match}")
        policies = load_weights(path, like, about(learner, role), learner.policies)
        return side_of(learner, role, policies, path)


@dataclass(frozen=True)
class Snapshot:
    """What a match had learnt by some episode of a stage, if its run has kept that."""

    name: str
    run: Run
    stage: str
    match: int
    episodes: int

    def side(self, game: Game, role: str) -> Side:
        learner = Training.of(self.run).learner(game)
        like = learner.policies(jax.eval_shape(learner.init, jax.random.key(0)))
        path = self.run.snapshot(self.stage, self.episodes, self.match, role)
        return side_of(learner, role, load_weights(path, like, about(learner, role)), path)


def side_of(learner: MADDPG, role: str, policies: Any, path: Path) -> Side:
    members = learner.game.members[role]
    seats = np.arange(members.stop - members.start) % len(jax.tree.leaves(policies)[0])

    def act(key: Array, policies: Any, worlds: World) -> Array:
        return learner.act(key, policies, learner.observe(worlds, role))

    seated = jax.tree.map(lambda x: jnp.asarray(x[seats]), policies)
    return Side(learner.architecture.kind, act, seated, digest(path))


class Team:
    """The agents of one match, in the seats of a game."""

    def __init__(self, entrant: Entrant, game: Game):
        self.game = game
        self.stage = entrant.stage_at(game)
        learner = entrant.learner(game)
        self.sides = {role: entrant.side(game, role) for role in game.members}
        self.members = {role: Members(role, learner, side) for role, side in self.sides.items()}

    def role(self, name: str) -> "Members":
        return self.members[self.game.role(name).name]

    def act(self, key: Array, world: World) -> Float[Array, "agents 5"]:
        """What everybody does in one world."""
        return self._act(key, tuple(side.agents for side in self.sides.values()), world)

    @cached_property
    def _act(self) -> Any:
        return jax.jit(in_one_world(list(self.sides.values())))

    def play(self, episodes: int = 2_000, seed: int = 0) -> Summary:
        """Per role and statistic, the mean over the episodes and its standard error."""
        whole_number("episodes", episodes, 1, MOST_PLAYED)
        whole_number("seed", seed, 0, MAX_SEED)
        return Tournament(self.game, seed).play(self.sides, episodes)


@dataclass(frozen=True)
class Members:
    """The agents of one role. Everything is for one world; vmap it for many."""

    name: str
    learner: MADDPG
    side: Side

    def observe(self, world: World) -> Any:
        """What they see: their part of `game.observe`, or of `game.observe_flat` for MLPs."""
        return self._observe(world)

    @cached_property
    def _observe(self) -> Any:
        def observe(world: World) -> Any:
            seen = self.learner.observe(batch_of_one(world), self.name)
            return jax.tree.map(lambda x: x[..., 0], seen)

        return jax.jit(observe)

    def act(self, key: Array, observation: Any) -> Float[Array, "members 5"]:
        """What they do about it: for each the weights of none, +x, -x, +y, -y."""
        return self._act(key, self.side.agents, observation)

    @cached_property
    def _act(self) -> Any:
        def act(key: Array, policies: Any, observation: Any) -> Array:
            return self.learner.act(key, policies, batch_of_one(observation))[..., 0]

        return jax.jit(act)


def stage_of(run: Run, population: str, stage: str | None = None) -> str:
    """The stage whose agents play: the one named, the one of that population, or the last."""
    kept = run.stages()
    if not kept:
        raise InputError(
            f"{run.path} has no agents yet: no stage is finished; epcx resume {run.path} goes on"
        )
    if stage is None:
        return population if population in kept else kept[-1]
    if stage not in kept:
        raise InputError(f"stage {stage!r} is not in {run.path}: it has {', '.join(kept)}")
    return stage


def matches_of(run: Run, stage: str, match: int | None = None) -> list[int]:
    """Match k has the k-th set of each role: all that were kept, or one."""
    kept = run.ranks(stage)
    if match is None:
        return list(range(kept))
    return [whole_number("match", match, 0, kept - 1)]
