"""The agents that a run has kept, ready to play."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epcx import games
from epcx.errors import InputError, whole_number
from epcx.learners import MADDPG
from epcx.runs.run import Run
from epcx.training import Training


def about(learner: MADDPG, role: str) -> dict[str, str]:
    """What the weights of an agent set are for."""
    return {
        "game": learner.game.name,
        "role": role,
        "architecture": learner.architecture.name,
    }


def learner_of(run: Run, population: str | None = None) -> MADDPG:
    """The learner whose agents a run holds, at a population, by default its last stage's."""
    training = Training.of(run)
    stage = population or str(training.games[-1].population)
    return training.learner(games.make(training.game, stage))


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


def load_agents(run: Run, learner: MADDPG, stage: str, match: int) -> Any:
    """The agents of a match for the seats of the learner's game.

    Where it has more seats of a role than there are agents, agents take several.
    """
    like = jax.eval_shape(learner.init, jax.random.key(0))
    sets = []
    for role, members in learner.game.members.items():
        agents = run.load_agents(stage, match, role, like, about(learner, role))
        seats = np.arange(members.stop - members.start) % len(jax.tree.leaves(agents)[0])
        sets.append(jax.tree.map(lambda x, s=seats: x[s], agents))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *sets)
