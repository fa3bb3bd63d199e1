"""Trains what a run asks for, in chunks of seconds, and keeps what is needed to go on."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array

from epcx.engines.ahead import Ahead
from epcx.engines.arena import Arena, everybody
from epcx.engines.devices import free_memory, on_cpu
from epcx.engines.local import LocalEngine
from epcx.errors import InputError, RunError
from epcx.evolution.curriculum import AgentSet, Generation, Mutants, Stage, evolve
from epcx.evolution.lineage import Lineage
from epcx.interrupts import Interrupts
from epcx.log import Log, marks
from epcx.runs.checkpoint import Arrays, Checkpoint
from epcx.runs.run import LINEAGE, Run
from epcx.runs.weights import named, unnamed
from epcx.trained import about
from epcx.training import Training, check_memory, plan

CHUNK_SECONDS = 2.0  # between two looks at the clock, the keyboard and the progress bar
CHECKPOINT_SECONDS = 180.0
SHARE_OF_CHECKPOINTS = 0.05  # of the time, at most


@runtime_checkable
class Watcher(Protocol):
    """Who wants to know how it goes."""

    def begin(self, stage: str, total: int) -> None: ...

    def show(self, episodes: int, rewards: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


class Silence:
    """Nobody."""

    def begin(self, stage: str, total: int) -> None: ...

    def show(self, episodes: int, rewards: dict[str, float]) -> None: ...

    def say(self, line: str) -> None: ...


def train(
    training: Training,
    folder: Path,
    tensorboard: bool = False,
    watcher: Watcher | None = None,
    interrupts: Interrupts | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Run:
    """A new run."""
    check_memory(training)
    run = Run.create(folder, training.config(), tensorboard)
    RunTrainer(run, training, watcher, interrupts, checkpoint_seconds).train()
    return run


def resume(
    folder: Path,
    watcher: Watcher | None = None,
    interrupts: Interrupts | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Run:
    """A run that goes on from its newest checkpoint that is whole, if it is not finished."""
    run = Run.open(folder)
    run.hold()
    if run.result.get("ended") == "finished":
        run.release()
    else:
        training = Training.of(run)
        trainer = RunTrainer(run, training, watcher, interrupts, checkpoint_seconds)
        checkpoint = run.checkpoints.load(trainer.watcher.say)
        if checkpoint is None:
            trainer.watcher.say("there is no checkpoint yet: from the beginning")
        trainer.train(checkpoint)
    return run


class RunTrainer:
    """One run in training. It is the `Trainer` that evolution asks for.

    A checkpoint holds the sets that a stage begins with and, within it, the state of all matches,
    or what they have become.
    """

    def __init__(
        self,
        run: Run,
        training: Training,
        watcher: Watcher | None = None,
        interrupts: Interrupts | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ):
        self.run, self.training = run, training
        self.curriculum = training.curriculum()
        self.watcher = watcher or Silence()
        self.interrupts = interrupts or Interrupts()
        self.clock = Clock()
        self.seconds = 0.0  # of training, before this process
        self.ledger: list[dict[str, Any]] = []
        self.generation = Generation()
        self.checkpoint_seconds = checkpoint_seconds
        self.saved = time.monotonic()
        self.saving = 0.0
        self.loaded: Checkpoint | None = None
        self.free = free_memory(jax.local_devices())
        self.ahead = Ahead()

    def train(self, checkpoint: Checkpoint | None = None) -> None:
        """From the beginning, or from a checkpoint."""
        self.loaded = checkpoint
        self.run.cut_metrics(checkpoint.about["metrics"] if checkpoint else 0)
        if checkpoint:
            self.seconds, self.ledger = checkpoint.about["seconds"], checkpoint.about["ledger"]
            self.generation = self._generation(checkpoint)
        ended, cause = "failed", None
        try:
            evolve(self.curriculum, self, self.generation, self._keep)
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            self.watcher.say(f"to go on: epcx resume {self.run.path}")
            raise
        except (RunError, InputError) as error:
            cause = str(error)
            raise
        finally:
            self.ahead.close()
            self._finish(ended, cause)
        self.run.checkpoints.clear()

    def _finish(self, ended: str, cause: str | None) -> None:
        result = {
            "ended": ended,
            "cause": cause,
            "seconds": round(self.seconds + self.clock.total, 3),
            "episodes_along_a_lineage": sum(row["episodes"] for row in self.ledger),
            "episodes_in_total": sum(row["episodes"] * row["matches"] for row in self.ledger),
            "stages": self.ledger,
        }
        if ended == "finished":
            result["best"] = {
                role: {"name": sets[0].record.name, "fitness": sets[0].record.fitness}
                for role, sets in self.generation.sets.items()
            }
        try:
            self.run.finish(result)
        except RunError:
            if ended == "finished":
                raise
        finally:
            self.run.release()

    # What evolution asks for

    def fine_tune(self, stage: Stage, matches: list[Any] | None, key: Array) -> Mutants:
        """Trains all matches of a stage; interrupts are met between two chunks."""
        loaded, self.loaded = self.loaded, None
        learner = self.training.learner(stage.game)
        if loaded and loaded.about["phase"] == "trained":
            like = jax.eval_shape(learner.init, jax.random.key(0))
            stopped = np.array(loaded.about["stopped"])
            return Mutants(unnamed(loaded.arrays["agents"], like), stopped)
        number = len(matches) if matches else stage.matches
        assert number is not None
        halfway = loaded if loaded and loaded.about["phase"] == "training" else None
        log = Log(self.run, stage, number, sum(row["episodes"] for row in self.ledger))
        stopped = np.zeros(number, bool)
        total, done = learner.updates(stage.episodes), 0
        lines, pictures = marks(total), marks(total, self._snapshots(stage))
        name = f"{stage}  ({stage.number + 1}/{len(self.curriculum.stages)})"
        self.watcher.begin(name, learner.episodes(total))
        with self.clock.counting():
            make = partial(self._engine, stage, number, start=halfway is None)
            engine = self.ahead.get((stage.number, number), make)
        self.watcher.say(f"{stage}: {engine.in_words()}")
        self._look_ahead(stage)
        if halfway:
            engine.restore([halfway.arrays[f"match-{i}"] for i in range(number)])
            done = halfway.about["updates"]
            stopped = np.array(halfway.about["stopped"])
            log.restore(halfway.about["log"])
            halfway.arrays.clear()  # the replays are on the devices now
        else:
            stack = None if matches is None else jax.tree.map(lambda *x: np.stack(x), *matches)
            with self.clock.counting():
                engine.start(key, stack)
            if pictures:
                self._keep_policies(stage, engine.agents(), log.before + learner.episodes(0))
        self.clock.restart()

        def checkpoint() -> None:
            about = {"updates": done, "stopped": stopped.tolist(), "log": log.snapshot()}
            files = ((f"match-{i}", arrays) for i, arrays in enumerate(engine.snapshot()))
            self._save("training", about, files)

        ends = [some for some in (lines, pictures) if some]
        while done < total and not stopped.all():
            if self.interrupts.noted:
                checkpoint()
                self.interrupts.check()
            mark = min(next(mark for mark in some if mark > done) for some in ends)
            updates = self.clock.updates(mark - done)
            metrics = self.clock.time(engine.advance, updates)
            done += updates
            log.add(metrics, updates)
            episodes = learner.episodes(done)
            for match in np.flatnonzero(engine.diverged() & ~stopped):
                stopped[match] = True
                self.watcher.say(
                    f"{stage}: match {match} stopped near episode {episodes}: its weights would "
                    "no longer be finite; it will not be promoted"
                )
            if done in lines or stopped.all():
                log.write(episodes, done, self.seconds + self.clock.total, stopped)
            if done in pictures:
                self._keep_policies(stage, engine.agents(), log.before + episodes)
            self.watcher.show(episodes, log.rewards(metrics))
            if self._due() and done < total:
                checkpoint()
        self.ledger.append(
            {"population": str(stage), "matches": number, "episodes": learner.episodes(done)}
        )
        agents = engine.agents()
        self._save("trained", {"stopped": stopped.tolist()}, [("agents", named(agents))])
        return Mutants(agents, stopped)

    def play(self, stage: Stage, teams: Iterable[Any], games: int, key: Array) -> np.ndarray:
        """Games of the fitness; interrupts are met between two of them."""
        episodes = self.training.fitness_episodes
        self.watcher.begin(f"{stage}  fitness", games * episodes)

        def watched() -> Iterator[Any]:
            for number, team in enumerate(teams):
                self.interrupts.check()
                self.watcher.show(number * episodes, {})
                yield team

        arena = self.ahead.get((stage.number, "fitness"), partial(self._arena, stage))
        played = arena.play(watched(), key, episodes)
        self.watcher.show(games * episodes, {})
        shaping = float(self.training.shaped_fitness)
        return np.stack([(x["reward"] + shaping * x["shaping"]).mean(-1) for x in played])

    # Programs

    def _engine(self, stage: Stage, matches: int, start: bool = True) -> LocalEngine:
        """Whatever has been trained before: the memory of a GPU is free by then."""
        learner = self.training.learner(stage.game)
        if on_cpu():
            return LocalEngine(learner, matches)
        return LocalEngine(learner, matches, free=self.free).compile(start, not stage.number)

    def _arena(self, stage: Stage) -> Arena:
        learner = self.training.learner(stage.game)
        arena = Arena(stage.game, everybody(learner))
        return arena if on_cpu() else arena.compile(jax.eval_shape(learner.init, jax.random.key(0)))

    def _look_ahead(self, stage: Stage) -> None:
        """Compiles what comes after the training of a stage, while a GPU is busy with it."""
        if on_cpu():
            return
        if self.curriculum.sets is not None:
            self.ahead.prepare((stage.number, "fitness"), partial(self._arena, stage))
        for later in self.curriculum.stages[stage.number + 1 :][:1]:
            matches = plan(self.training)[later.number].matches
            make = partial(self._engine, later, matches)
            self.ahead.prepare((later.number, matches), make)

    # What is kept

    def _keep(self, stage: Stage, generation: Generation) -> None:
        """At the end of a stage: agents, lineage, and a checkpoint from which the next begins."""
        self.generation = generation
        learner = self.training.learner(stage.game)
        for role, sets in generation.sets.items():
            for rank, chosen in enumerate(sets):
                self.run.save_agents(str(stage), rank, role, chosen.agents, about(learner, role))
        self.run.write(LINEAGE, generation.lineage.to_json())
        self._save("stage", {}, [])
        if self.curriculum.sets is not None:
            for role in generation.sets:
                self.watcher.say(f"{stage}: {self._promoted(stage, role)}")

    def _snapshots(self, stage: Stage) -> int:
        wanted = stage.number == 1 or not self.training.grows
        return self.training.snapshots if wanted else 0

    def _keep_policies(self, stage: Stage, agents: Any, episodes: int) -> None:
        """Snapshots of all matches; `episodes` counts along the lineage."""
        learner = self.training.learner(stage.game)
        policies = learner.policies(agents)
        for match in range(len(jax.tree.leaves(policies)[0])):
            for role, members in stage.game.members.items():
                mine = jax.tree.map(lambda x, m=match, who=members: x[m, who], policies)
                kept = about(learner, role)
                self.run.save_snapshot(str(stage), episodes, match, role, mine, kept)

    def _promoted(self, stage: Stage, role: str) -> str:
        lineage = self.generation.lineage
        mine = lineage.of(stage.number, role)
        chosen = lineage.promoted(stage.number, role)
        shown = ", ".join(f"{record.name} ({record.fitness:.2f})" for record in chosen)
        return f"promoted {len(chosen)} of {len(mine)}, by fitness: {shown}"

    def _due(self) -> bool:
        pause = max(self.checkpoint_seconds, self.saving / SHARE_OF_CHECKPOINTS)
        return time.monotonic() - self.saved >= pause

    def _save(self, phase: str, more: dict[str, Any], files: Iterable[tuple[str, Arrays]]) -> None:
        """A checkpoint: the sets that the stages before have left, and the files given."""
        begin = time.monotonic()
        sets = (
            (f"{role}-{rank}", named(chosen.agents))
            for role, sets in self.generation.sets.items()
            for rank, chosen in enumerate(sets)
        )
        about = {
            "phase": phase,
            "lineage": self.generation.lineage.to_json(),
            "ledger": self.ledger,
            "seconds": self.seconds + self.clock.total,
            "metrics": self.run.metrics_size(),
            **more,
        }
        self.run.checkpoints.save(about, chain(sets, files))
        self.saved = time.monotonic()
        if self.checkpoint_seconds:
            self.saving = self.saved - begin

    def _generation(self, checkpoint: Checkpoint) -> Generation:
        """What the stages before have left."""
        lineage = Lineage.from_json(checkpoint.about["lineage"])
        if not lineage.stages:
            return Generation()
        stage = self.curriculum.stages[lineage.stages - 1]
        like = jax.eval_shape(self.training.learner(stage.game).init, jax.random.key(0))
        sets = {
            role: [
                AgentSet(record, unnamed(checkpoint.arrays[f"{role}-{rank}"], like))
                for rank, record in enumerate(lineage.promoted(stage.number, role))
            ]
            for role in stage.game.members
        }
        return Generation(sets, lineage)


class Clock:
    """Finds chunks of about CHUNK_SECONDS. The first is short, as it is compiled, too."""

    def __init__(self) -> None:
        self.total = 0.0
        self.restart()

    def restart(self) -> None:
        """Another program begins."""
        self.chunks = 0
        self.rate = 0.0

    def updates(self, most: int) -> int:
        return max(1, min(most, int(self.rate * CHUNK_SECONDS)))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """What is done within is part of the training."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.total += time.perf_counter() - begin

    def time(self, advance: Any, updates: int) -> Any:
        before = self.total
        with self.counting():
            result = advance(updates)
        seconds = self.total - before
        self.chunks += 1
        if self.chunks > 1:
            self.rate = updates / seconds
        return result
