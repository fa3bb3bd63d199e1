"""Algorithm 1: Evolutionary Population Curriculum, around any learner and any executor."""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import cycle, islice
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from epcx.errors import RunError
from epcx.evolution.lineage import Lineage, Record, name_of
from epcx.evolution.mix_and_match import Mixture, join, mix_and_match, parents_needed
from epcx.evolution.selection import fitness, fittest, pairings
from epcx.games import Game

Parents = tuple[tuple[str, ...], ...]  # for each role, the names of the sets that were joined
MIXING, FITTING, LEARNING, PLAYING = range(4)  # purposes of random numbers, each with its own


@dataclass(frozen=True)
class Stage:
    """Training at one population."""

    number: int
    game: Game
    matches: int | None  # at most; none: all mixtures
    episodes: int

    def __str__(self) -> str:
        return str(self.game.population)


@dataclass(frozen=True)
class Curriculum:
    """The stages, and how many sets of each role go from one to the next (K)."""

    stages: tuple[Stage, ...]
    sets: int | None  # none: no evolution, all matches are kept as they are
    seed: int = 0
    rounds: int | None = None  # of games for the fitness; none: all pairings
    stream: str = ""  # trainings of different methods with one seed have nothing in common

    def rng(self, stage: Stage, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *self._purpose(stage, purpose)])

    def key(self, stage: Stage, purpose: int) -> Key[Array, ""]:
        return reduce(jax.random.fold_in, self._purpose(stage, purpose), jax.random.key(self.seed))

    def _purpose(self, stage: Stage, purpose: int) -> tuple[int, int, int]:
        return zlib.crc32(self.stream.encode()), stage.number, purpose


class AgentSet(NamedTuple):
    """The agents of one role, stacked, and where they come from."""

    record: Record
    agents: PyTree


@dataclass(frozen=True)
class Generation:
    """What a stage leaves behind: the promoted sets of each role, best first."""

    sets: dict[str, list[AgentSet]] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)


class Mutants(NamedTuple):
    """The matches of a stage after training."""

    agents: PyTree  # [matches, agents, ...]
    diverged: Bool[np.ndarray, "matches"]


@runtime_checkable
class Trainer(Protocol):
    """What evolution needs: training and evaluation of matches."""

    def fine_tune(self, stage: Stage, matches: list[PyTree] | None, key: Key[Array, ""]) -> Mutants:
        """Trains matches, each given as its agents [agents, ...]; or fresh ones."""

    def play(
        self, stage: Stage, teams: Iterable[PyTree], pairings: int, key: Key[Array, ""]
    ) -> Float[np.ndarray, "pairings agents"]:
        """The mean reward of every agent in each pairing; teams are agents [agents, ...]."""


def evolve(
    curriculum: Curriculum,
    trainer: Trainer,
    begin: Generation | None = None,
    keep: Callable[[Stage, Generation], None] = lambda stage, generation: None,
) -> Generation:
    """Grows the population stage by stage; the last generation begins with the best sets.

    `begin` is the generation to start from, that of earlier stages or of another run; `keep` is
    called with the generation of every stage.
    """
    generation = begin or Generation()
    for stage in curriculum.stages[generation.lineage.stages :]:
        matches, parents = crossover(curriculum, stage, generation)
        mutants = trainer.fine_tune(stage, matches, curriculum.key(stage, LEARNING))
        records = measure(curriculum, stage, trainer, mutants, parents)
        generation = select(curriculum, stage, mutants, records, generation.lineage)
        keep(stage, generation)
    return generation


def crossover(
    curriculum: Curriculum, stage: Stage, before: Generation
) -> tuple[list[PyTree] | None, list[Parents] | None]:
    """Mix-and-match: the matches of the stage, and the sets that each is made of.

    The first stage has fresh agents, unless it starts from those of another run; then mixtures
    are repeated until there are as many matches as it asks for.
    """
    if not before.sets:
        return None, None
    counts = dict(zip(before.sets, stage.game.population.counts, strict=True))
    sizes = {role: len(jax.tree.leaves(sets[0].agents)[0]) for role, sets in before.sets.items()}
    mixtures = mix_and_match(
        curriculum.rng(stage, MIXING),
        min(len(sets) for sets in before.sets.values()),
        [parents_needed(sizes[role], counts[role]) for role in before.sets],
        stage.matches,
    )
    if stage.number == 0:
        mixtures = list(islice(cycle(mixtures), stage.matches))

    def match(mixture: Mixture) -> PyTree:
        joined = [
            join([sets[k].agents for k in chosen], counts[role])
            for chosen, (role, sets) in zip(mixture, before.sets.items(), strict=True)
        ]
        return jax.tree.map(lambda *x: np.concatenate(x), *joined)

    parents = [
        tuple(
            tuple(sets[k].record.name for k in chosen)
            for chosen, sets in zip(mixture, before.sets.values(), strict=True)
        )
        for mixture in mixtures
    ]
    return [match(mixture) for mixture in mixtures], parents


def measure(
    curriculum: Curriculum,
    stage: Stage,
    trainer: Trainer,
    mutants: Mutants,
    parents: list[Parents] | None,
) -> list[Record]:
    """The records of all mutants, with their fitness where there is evolution.

    Matches that have diverged do not play.
    """
    game, matches = stage.game, len(mutants.diverged)
    alive = np.flatnonzero(~mutants.diverged)
    if not len(alive):
        raise RunError(
            f"all {matches} matches at {stage} have diverged: their weights would no longer be "
            "finite; try a smaller learning rate"
        )
    scores = np.full((len(game.roles), matches), np.nan)
    played = np.empty((0, len(game.roles)), int)
    if curriculum.sets is not None:
        rng = curriculum.rng(stage, FITTING)
        played = alive[pairings(rng, len(alive), len(game.roles), curriculum.rounds)]
        teams = (team(game, mutants.agents, chosen) for chosen in played)
        rewards = trainer.play(stage, teams, len(played), curriculum.key(stage, PLAYING))
        sums = np.stack(
            [game.score(rewards[:, who], role, axis=1) for role, who in game.members.items()], 1
        )
        scores = fitness(played, sums, matches)

    def record(role: int, match: int) -> Record:
        name, score = game.roles[role].name, scores[role, match]
        others = {
            (other, int(pairing[other]))
            for pairing in played[played[:, role] == match]
            for other in range(len(game.roles))
            if other != role
        }
        return Record(
            name=name_of(name, stage.number, match),
            role=name,
            stage=stage.number,
            population=str(stage),
            match=match,
            parents=() if parents is None else parents[match][role],
            fitness=float(score) if np.isfinite(score) else None,
            opponents=tuple(
                name_of(game.roles[other].name, stage.number, who) for other, who in sorted(others)
            ),
            diverged=bool(mutants.diverged[match]),
        )

    return [record(role, match) for role in range(len(game.roles)) for match in range(matches)]


def team(game: Game, agents: PyTree, chosen: Int[np.ndarray, "roles"]) -> PyTree:
    """The agents of one pairing: those of role i from match chosen[i]."""
    slices = list(zip(chosen.tolist(), game.members.values(), strict=True))
    return jax.tree.map(
        lambda x: np.concatenate([x[match, members] for match, members in slices]), agents
    )


def select(
    curriculum: Curriculum,
    stage: Stage,
    mutants: Mutants,
    records: list[Record],
    lineage: Lineage,
) -> Generation:
    """The top K of each role go on; without evolution, all matches that have not diverged."""
    sets: dict[str, list[AgentSet]] = {}
    ranks: dict[str, int] = {}
    for role, members in stage.game.members.items():
        mine = [record for record in records if record.role == role]
        if curriculum.sets is None:
            chosen = [record.match for record in mine if not record.diverged]
        else:
            scores = np.array([np.nan if r.fitness is None else r.fitness for r in mine])
            chosen = fittest(scores, curriculum.sets)
        if not chosen:
            raise RunError(
                f"no set of {role} at {stage} has a finite fitness: the rewards are not finite"
            )
        ranks |= {mine[match].name: rank for rank, match in enumerate(chosen)}
        sets[role] = [
            AgentSet(
                replace(mine[match], rank=rank),
                jax.tree.map(lambda x, m=match, s=members: x[m, s], mutants.agents),
            )
            for rank, match in enumerate(chosen)
        ]
    ranked = [replace(record, rank=ranks.get(record.name)) for record in records]
    return Generation(sets, lineage + ranked)
