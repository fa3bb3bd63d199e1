"""The agents that a run has kept: ready to play, or to start another training from."""

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from epcx import learners
from epcx.config import TrainConfig
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.players import Act, Player
from epcx.evaluation.summary import Summary
from epcx.evaluation.tournament import Tournament, act_in_one_world, add_batch_axis
from epcx.evolution.curriculum import AgentSet, Generation
from epcx.evolution.lineage import Lineage, Record, name_of
from epcx.games import Density, Game, World
from epcx.hub import resolve
from epcx.learners import Learner
from epcx.learners.learner import greedy_option
from epcx.runs.files import json_digest
from epcx.runs.run import RunFolder
from epcx.runs.weights import digest, holds_all, load_weights

if TYPE_CHECKING:
    from epcx.export import Inputs

MAX_EPISODES = 10_000_000  # of a game that is played for its result


def weights_metadata(learner: Learner, role: str) -> dict[str, str]:
    """What the weights of an agent set are for."""
    return {
        "game": learner.game.reference,
        "role": role,
        "architecture": learner.architecture,
    }


@dataclass(frozen=True)
class RunPlayers:
    """One match of a run under a name, at whatever population it is asked to play."""

    name: str
    run: RunFolder
    stage: str | None = None  # None: that of the population, or the last
    match: int = 0
    greedy: bool = False  # the most probable actions instead of samples

    def stage_at(self, game: Game) -> str:
        return stage_of(self.run, str(game.population), self.stage)

    def origin(self, role: str) -> int:
        """The match in which the agents of a role were trained."""
        wanted = self.stage, role, self.match
        for record in Lineage.from_json(self.run.lineage()).records:
            if record.stage >= 0 and (record.population, record.role, record.rank) == wanted:
                return record.match
        raise InputError(f"{self.run.path} has no lineage of {role} at {self.stage}")

    def learner(self, game: Game) -> Learner:
        config = TrainConfig.of(self.run)
        if config.game != game.reference:
            raise InputError(f"{self.run.path} is a run of {config.game}, not of {game.reference}")
        return config.make_learner(game)

    def player(self, game: Game, role: str) -> Player:
        """Where a role has more seats than there are agents, agents take several."""
        learner, stage = self.learner(game), self.stage_at(game)
        if stage != str(game.population) and not learner.any_population:
            raise InputError(
                f"{self.run.path} was trained at {stage}, and its networks fit no other population "
                f"such as {game.population}"
            )
        (match,) = matches_of(self.run, stage, self.match)
        path = self.run.weights(stage, match, game.role(role).name)
        if not path.exists():
            raise InputError(f"{self.run.path} has no agents of {role} at {stage}, match {match}")
        like = jax.eval_shape(learner.init, jax.random.key(0))
        metadata = weights_metadata(learner, role)
        policies = load_weights(path, like, metadata, learner.policies)
        player = player_of(learner, role, policies, path)
        return greedy_player(learner, role, player) if self.greedy else player


@dataclass(frozen=True)
class SnapshotPlayers:
    """The policies of a match after some episodes of a stage, if its run has kept them."""

    name: str
    run: RunFolder
    stage: str
    match: int
    episodes: int

    def player(self, game: Game, role: str) -> Player:
        learner = TrainConfig.of(self.run).make_learner(game)
        like = learner.policies(jax.eval_shape(learner.init, jax.random.key(0)))
        path = self.run.snapshot(self.stage, self.episodes, self.match, role)
        return player_of(
            learner, role, load_weights(path, like, weights_metadata(learner, role)), path
        )


def player_of(learner: Learner, role: str, policies: PyTree, path: Path) -> Player:
    members = learner.game.members[role]
    seats = np.arange(members.stop - members.start) % len(jax.tree.leaves(policies)[0])

    seated = jax.tree.map(lambda x: jnp.asarray(x[seats]), policies)
    config = json_digest(asdict(learner.config))[:12]  # actions may depend on all of it
    kind = f"{learners.full_name(type(learner))} {learner.architecture} {config}"
    return Player(kind, act_of(learner, role), seated, digest(path))


def greedy_player(learner: Learner, role: str, player: Player) -> Player:
    """The same agents, which take their most probable actions: players of another kind."""
    return replace(player, kind=f"{player.kind} greedy", act=act_of(learner, role, greedy=True))


def act_of(learner: Learner, role: str, greedy: bool = False) -> Act:
    how = greedy_option(learner, greedy)

    def act(key: Key[Array, ""], policies: PyTree, worlds: World) -> Array:
        return learner.act(key, policies, learner.observe(worlds, role), role, **how)

    return act


class Team:
    """The agents of one match, in the seats of a game."""

    def __init__(self, source: RunPlayers, game: Game):
        self.game, self.source = game, source
        self.stage = source.stage_at(game)
        self.learner = source.learner(game)
        self.players = {role: source.player(game, role) for role in game.members}
        self.roles = {role: TeamRole(role, self.learner, p) for role, p in self.players.items()}

    def role(self, name: str) -> "TeamRole":
        return self.roles[self.game.role(name).name]

    def act(
        self, key: Key[Array, ""], world: World, greedy: bool = False
    ) -> Float[Array, "agents actions"]:
        """The actions of all agents in one world: samples, or the most probable ones."""
        agents = tuple(player.agents for player in self.players.values())
        return self._act(key, agents, world, greedy=greedy)

    @cached_property
    def _act(self) -> Callable[..., Array]:
        def act(key: Key[Array, ""], agents: PyTree, world: World, greedy: bool) -> Array:
            return act_in_one_world(list(self.acting(greedy).values()))(key, agents, world)

        return jax.jit(act, static_argnames="greedy")

    def acting(self, greedy: bool) -> dict[str, Player]:
        """The players of each role, which sample their actions or take the most probable ones."""
        if not greedy:
            return self.players
        return {role: greedy_player(self.learner, role, p) for role, p in self.players.items()}

    def play(self, episodes: int = 2_000, seed: int = 0, greedy: bool = False) -> Summary:
        """Per role and statistic, the mean over the episodes and its standard error."""
        whole_number("episodes", episodes, 1, MAX_EPISODES)
        whole_number("seed", seed, 0, MAX_SEED)
        return Tournament(self.game, seed).play(self.acting(greedy), episodes)

    def export(
        self, path: str | Path, inputs: "Inputs" = "observations", greedy: bool = False
    ) -> None:
        """Writes the policies for use without epcx: .npz for NumPy, .jaxexport for JAX."""
        from epcx.export import export  # which takes a team

        export(self, Path(path), inputs, greedy)

    def __repr__(self) -> str:
        method = self.source.run.setting("method")
        return f"Team({self.game.name} {self.game.population}, {method} of stage {self.stage})"

    def _repr_html_(self) -> str:
        """For notebooks: an episode of the team."""
        from epcx.reports.recording import record  # a picture is drawn only when one is shown

        try:
            return record(self.game, self.players, jax.random.key(0), repr(self))._repr_html_()
        except InputError as error:
            return f"<p>{html.escape(repr(self))}: {html.escape(str(error))}</p>"


@dataclass(frozen=True)
class TeamRole:
    """The agents of one role. Everything is for one world; vmap it for many."""

    name: str
    learner: Learner
    player: Player

    def observe(self, world: World) -> PyTree:
        """What they see: their rows of what the learner observes."""
        return self._observe(world)

    @cached_property
    def _observe(self) -> Callable[[World], PyTree]:
        def observe(world: World) -> PyTree:
            seen = self.learner.observe(add_batch_axis(world), self.name)
            return jax.tree.map(lambda x: x[..., 0], seen)

        return jax.jit(observe)

    def act(
        self, key: Key[Array, ""], observation: PyTree, greedy: bool = False
    ) -> Float[Array, "members actions"]:
        """Their actions, given what they see: samples, or the most probable ones."""
        return self._act(key, self.player.agents, observation, greedy=greedy)

    @cached_property
    def _act(self) -> Callable[..., Array]:
        def act(key: Key[Array, ""], policies: PyTree, observation: PyTree, greedy: bool) -> Array:
            seen, how = add_batch_axis(observation), greedy_option(self.learner, greedy)
            return self.learner.act(key, policies, seen, self.name, **how)[..., 0]

        return jax.jit(act, static_argnames="greedy")


def stage_of(run: RunFolder, population: str, stage: str | None = None) -> str:
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


def matches_of(run: RunFolder, stage: str, match: int | None = None) -> list[int]:
    """Match k has the k-th set of each role: all that were kept, or one."""
    kept = run.ranks(stage)
    if match is None:
        return list(range(kept))
    return [whole_number("match", match, 0, kept - 1)]


def split_source(text: str) -> tuple[str, str]:
    """RUN@STAGE as the folder and what follows the last @; a folder may have one in its name."""
    folder, at, place = text.rpartition("@")
    return (folder, place) if at and not Path(text).is_dir() else (text, "")


def open_team(
    run: RunFolder,
    population: str | None = None,
    stage: str | None = None,
    match: int = 0,
    density: Density | None = None,
) -> Team:
    """The agents of a run at a population and density, by default those of its last stage."""
    game = TrainConfig.of(run).at(population, density)
    return Team(RunPlayers(str(run.path), run, stage, match), game)


def initial_generation(config: TrainConfig, notify: Callable[[str], None]) -> Generation:
    """The agent sets that a run starts from, if `init_from` names some; best first."""
    if config.init_from is None:
        return Generation()
    folder, place = split_source(config.init_from)
    run = RunFolder.open(resolve(folder))
    first = config.games[0]
    source, stage = TrainConfig.of(run), stage_of(run, str(first.population), place or None)
    learner = source.make_learner(source.at(stage))
    wanted = config.make_learner(first)
    for name, theirs, ours in (
        ("game", source.game, config.game),
        ("learner", source.learner, config.learner),
        ("networks", learner.architecture, wanted.architecture),
    ):
        if theirs != ours:
            raise InputError(f"init-from {config.init_from} has {name} {theirs}, not {ours}")
    sizes = zip(learner.game.population.counts, first.population.counts, strict=True)
    same = stage == str(first.population)
    if not same and (not wanted.any_population or any(old > new for old, new in sizes)):
        raise InputError(
            f"init-from {config.init_from} has agents of {stage}, which cannot become "
            f"{first.population}: name a stage of at most as many agents of each role"
        )
    fresh = jax.device_get(learner.init(jax.random.key(config.seed)))
    records: list[Record] = []
    sets: dict[str, list[AgentSet]] = {}
    policies_only = False
    for role, members in learner.game.members.items():
        sets[role] = []
        for rank in range(min(run.ranks(stage), config.sets)):
            path, metadata = run.weights(stage, rank, role), weights_metadata(learner, role)
            agents = jax.tree.map(lambda x, who=members: x[who], fresh)
            if holds_all(path, agents):
                agents = load_weights(path, agents, metadata)
            else:
                policies = load_weights(path, agents, metadata, learner.policies)
                agents, policies_only = learner.with_policies(agents, policies), True
            record = Record(name_of(role, -1, rank), role, -1, stage, rank, rank=rank)
            records.append(record)
            sets[role].append(AgentSet(record, agents))
    if policies_only:
        notify(f"{config.init_from} has policies only: the rest of its agents starts afresh")
    return Generation(sets, Lineage(tuple(records)))
