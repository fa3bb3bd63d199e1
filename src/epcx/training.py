"""Trains matches of one game with one method, and keeps the result as a run."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epcx import games, learners
from epcx.engines.local import LocalEngine
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.games import Game
from epcx.interrupts import Interrupts
from epcx.learners import MADDPG, Hyperparameters
from epcx.runs.run import Run

SAVE_SECONDS = 60.0  # at least between two copies of the agents: what a sudden death can cost
CHUNK_SECONDS = 2.0  # between two looks at the clock, the keyboard and the progress bar
LOG_LINES = 100  # per match, over the whole training
MAX_MATCHES = 10_000
MAX_EPISODES = 10**9
SCORED = ("reward", "shaping")  # metrics that are pooled as scores; the others are means


@dataclass(frozen=True)
class Training:
    """What is asked for: everything that decides the outcome."""

    game: str
    method: str = "att-maddpg"
    population: str | None = None
    episodes: int = 50_000
    matches: int = 1
    seed: int = 0
    hyper: Hyperparameters = field(default_factory=Hyperparameters)

    def __post_init__(self) -> None:
        whole_number("episodes", self.episodes, 1, MAX_EPISODES)
        whole_number("matches", self.matches, 1, MAX_MATCHES)
        whole_number("seed", self.seed, 0, MAX_SEED)

    def learner(self) -> MADDPG:
        return learners.make(self.method, games.make(self.game, self.population), self.hyper)

    def config(self) -> dict[str, Any]:
        game = games.make(self.game, self.population)
        return {**asdict(self), "population": str(game.population)}


def train(
    training: Training,
    folder: Path,
    tensorboard: bool = False,
    report: Callable[[int, dict[str, float]], None] = lambda episodes, rewards: None,
    announce: Callable[[str], None] = lambda line: None,
    interrupts: Interrupts | None = None,
) -> Run:
    """Trains in chunks of seconds, and reports episodes and rewards per role after each.

    An interrupt ends it after a chunk, with the agents saved.
    """
    interrupts = interrupts or Interrupts()
    learner = training.learner()
    total = learner.updates(training.episodes)
    engine = LocalEngine(learner, training.matches)
    engine.check_memory(lambda: advice(training, engine))
    run = Run.create(folder, training.config(), tensorboard)
    announce(engine.in_words())
    clock = Clock()
    done, ended = 0, "failed"
    stopped = np.zeros(training.matches, bool)
    log = Log(run, learner.game, training.matches)
    saved = time.monotonic()
    try:
        engine.start(jax.random.key(training.seed))
        for mark in marks(total):
            while done < mark and not stopped.all():
                interrupts.check()
                updates = clock.updates(mark - done)
                metrics = clock.time(engine.advance, updates)
                done += updates
                log.add(metrics, updates)
                episodes = learner.episodes(done)
                for match in np.flatnonzero(engine.diverged() & ~stopped):
                    stopped[match] = True
                    announce(
                        f"match {match} stopped near episode {episodes}: its weights would no "
                        "longer be finite; those from before are kept"
                    )
                report(episodes, log.rewards(metrics))
                if time.monotonic() - saved > SAVE_SECONDS:
                    save_agents(run, learner, engine.agents())
                    saved = time.monotonic()
            if log.weight:
                log.write(learner.episodes(done), done, stopped)
        ended = "diverged" if stopped.all() else "finished"
    except KeyboardInterrupt:
        ended = "interrupted"
        announce(f"interrupted: the agents are in {run.path}")
        raise
    finally:
        try:
            # A second interrupt may have come within a chunk, whose old state is gone by then.
            with contextlib.suppress(*([RuntimeError] if ended == "interrupted" else [])):
                if engine.turns:
                    save_agents(run, learner, engine.agents())
        finally:
            run.finish(
                {
                    "ended": ended,
                    "episodes": learner.episodes(done),
                    "updates": done,
                    "seconds": round(clock.total, 3),
                    "diverged_matches": np.flatnonzero(stopped).tolist(),
                }
            )
    return run


def marks(total: int) -> list[int]:
    """The updates after which a line is logged."""
    return sorted({math.ceil(total * (i + 1) / LOG_LINES) for i in range(LOG_LINES)})


def advice(training: Training, engine: LocalEngine) -> str:
    """The options that would make the replay fit."""
    share = 0.8 * engine.free / engine.bytes
    fewer = int(training.matches * share)
    options = [f"--matches {fewer} or fewer"] if fewer else []
    smaller = int(training.hyper.replay * share) // 1000 * 1000
    if smaller >= training.hyper.batch:
        less = replace(training, hyper=replace(training.hyper, replay=smaller))
        needed = LocalEngine(less.learner(), training.matches, engine.devices).bytes
        if needed <= engine.free:
            options.insert(0, f"--replay {smaller} or less")
    return "use " + (", or ".join(options) or "fewer worlds, or a smaller population")


class Clock:
    """Finds chunks of about CHUNK_SECONDS. The first is short, as it is compiled, too."""

    def __init__(self) -> None:
        self.total = 0.0
        self.chunks = 0
        self.rate = 0.0

    def updates(self, most: int) -> int:
        return max(1, min(most, int(self.rate * CHUNK_SECONDS)))

    def time(self, advance: Any, updates: int) -> Any:
        begin = time.perf_counter()
        result = advance(updates)
        seconds = time.perf_counter() - begin
        self.total += seconds
        self.chunks += 1
        if self.chunks > 1:
            self.rate = updates / seconds
        return result


class Log:
    """Gathers metrics between two log lines. Rewards are scored as in evaluation."""

    def __init__(self, run: Run, game: Game, matches: int):
        self.run, self.game, self.matches = run, game, matches
        self.sums: dict[str, np.ndarray] = {}
        self.weight = 0
        self.begin = time.perf_counter()

    def add(self, metrics: dict[str, np.ndarray], updates: int) -> None:
        self.weight += updates
        for name, values in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.astype(float) * updates

    def rewards(self, metrics: dict[str, np.ndarray]) -> dict[str, float]:
        return {
            role: float(self.game.score(metrics["reward"][:, members], axis=1).mean())
            for role, members in self.game.members.items()
        }

    def write(self, episodes: int, updates: int, stopped: np.ndarray) -> None:
        seconds = round(time.perf_counter() - self.begin, 3)
        rows = []
        for match in range(self.matches):
            row: dict[str, Any] = {"match": match, "episodes": episodes, "updates": updates}
            row["seconds"] = seconds
            for name, sums in self.sums.items():
                for role, members in self.game.members.items():
                    values = sums[match, members] / self.weight
                    pooled = self.game.score(values) if name in SCORED else values.mean()
                    row[f"{name}/{role}"] = float(pooled)
            if stopped[match]:
                row["diverged"] = True
            rows.append(row)
        self.run.log(rows)
        self.sums, self.weight = {}, 0


def about(learner: MADDPG, role: str) -> dict[str, str]:
    """What the weights of an agent set are for."""
    return {
        "game": learner.game.name,
        "role": role,
        "architecture": learner.architecture.name,
    }


def save_agents(run: Run, learner: MADDPG, agents: Any) -> None:
    for match in range(len(jax.tree.leaves(agents)[0])):
        for role, members in learner.game.members.items():
            chosen = jax.tree.map(lambda x, m=match, s=members: x[m, s], agents)
            run.save_agents(match, role, chosen, about(learner, role))


def load_agents(run: Run, match: int, learner: MADDPG) -> Any:
    """The agents of a match for the seats of the learner's game.

    Where it has more seats of a role than there are agents, agents take several.
    """
    like = jax.eval_shape(learner.init, jax.random.key(0))
    sets = []
    for role, members in learner.game.members.items():
        agents = run.load_agents(match, role, like, about(learner, role))
        seats = np.arange(members.stop - members.start) % len(jax.tree.leaves(agents)[0])
        sets.append(jax.tree.map(lambda x, s=seats: x[s], agents))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *sets)


def trained(run: Run, population: str | None = None) -> MADDPG:
    """The learner whose agents a run holds, at the run's population or another one."""
    try:
        hyper = Hyperparameters(**run.setting("hyper"))
    except TypeError:
        raise InputError(
            f"{run.path} is damaged, or of another version: unknown settings"
        ) from None
    game, method = str(run.setting("game")), str(run.setting("method"))
    game_at = games.make(game, population or str(run.setting("population")))
    return learners.make(method, game_at, hyper)
