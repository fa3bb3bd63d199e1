"""Trains what a run asks for, in chunks of seconds, and keeps what is needed to go on."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array

from epcx.engines.host import Host
from epcx.engines.work import Order, Report, Site
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

CHECKPOINT_SECONDS = 180.0
SHARE_OF_CHECKPOINTS = 0.05  # of the time, at most
ENDED: Any = object()


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
    site: Site | None = None,
) -> Run:
    """A new run."""
    check_memory(training, site or Host())
    run = Run.create(folder, training.config(), tensorboard)
    RunTrainer(run, training, watcher, interrupts, checkpoint_seconds, site).train()
    return run


def resume(
    folder: Path,
    watcher: Watcher | None = None,
    interrupts: Interrupts | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    site: Site | None = None,
) -> Run:
    """A run that goes on from its newest checkpoint that is whole, if it is not finished."""
    run = Run.open(folder)
    run.hold()
    if run.result.get("ended") == "finished":
        run.release()
    else:
        training = Training.of(run)
        trainer = RunTrainer(run, training, watcher, interrupts, checkpoint_seconds, site)
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
        site: Site | None = None,
    ):
        """The site is this machine, if none is given."""
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
        self.owns_site = site is None
        self.site: Site = site or Host()

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
            if self.owns_site:
                self.site.close()
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
        """Trains all matches of a stage; interrupts are met between two reports."""
        loaded, self.loaded = self.loaded, None
        learner = self.training.learner(stage.game)
        like = jax.eval_shape(learner.init, jax.random.key(0))
        if loaded and loaded.about["phase"] == "trained":
            stopped = np.array(loaded.about["stopped"])
            return Mutants(unnamed(loaded.arrays["agents"], like), stopped)
        number = len(matches) if matches else stage.matches
        assert number is not None
        total = learner.updates(stage.episodes)
        lines, pictures = marks(total), marks(total, self._snapshots(stage))
        tuned = FineTuning(
            Log(self.run, stage, number, sum(row["episodes"] for row in self.ledger)),
            np.zeros(number, int),
            np.zeros(number, bool),
            [None] * number,
        )
        halfway = loaded if loaded and loaded.about["phase"] == "training" else None
        orders = []
        for numbers in self.site.slices(number):
            done, state = tuned.restore(numbers, halfway, like) if halfway else (0, None)
            if any(tuned.agents[match] is None for match in numbers):
                chosen = [matches[match] for match in numbers] if matches else None
                orders.append(
                    Order(
                        name=self._name(stage, numbers),
                        learner=learner,
                        numbers=numbers,
                        key=np.asarray(jax.random.key_data(key)),
                        agents=chosen and jax.tree.map(lambda *x: np.stack(x), *chosen),
                        updates=total,
                        lines=tuple(lines),
                        pictures=tuple(pictures),
                        done=done,
                        state=state,
                    )
                )
        if halfway:
            halfway.arrays.clear()
        self.watcher.begin(
            f"{stage}  ({stage.number + 1}/{len(self.curriculum.stages)})", learner.episodes(total)
        )
        if orders:
            self._carry_out(stage, orders, tuned)
        updates = int(tuned.done.max())
        self.ledger.append(
            {"population": str(stage), "matches": number, "episodes": learner.episodes(updates)}
        )
        agents = jax.tree.map(lambda *x: np.stack(x), *tuned.agents)
        self._save("trained", {"stopped": tuned.stopped.tolist()}, [("agents", named(agents))])
        return Mutants(agents, tuned.stopped)

    def _carry_out(self, stage: Stage, orders: list[Order], tuned: "FineTuning") -> None:
        """Has orders carried out; in between, interrupts are met and checkpoints made."""
        told = False
        with contextlib.closing(self.site.train(orders, self.watcher.say)) as reports:
            while True:
                with self.clock.counting():
                    news = next(reports, ENDED)
                if news is ENDED:
                    return
                if not told:
                    told = True
                    self.watcher.say(f"{stage}: {self.site.in_words()}")
                    self._look_ahead(stage)
                if news is not None:
                    self._note(stage, orders[news[0]], news[1], tuned)
                if self.interrupts.noted or (self._due() and not tuned.ended):
                    about, files = tuned.snapshot(self.site, orders)
                    self._save("training", {"matches": about}, files)
                    self.interrupts.check()

    def _note(self, stage: Stage, order: Order, report: Report, tuned: "FineTuning") -> None:
        """Logs, keeps and shows what is reported of some matches."""
        learner, log = self.training.learner(stage.game), tuned.log
        numbers = list(order.numbers)
        if report.done - report.updates != tuned.done[numbers[0]]:
            log.clear(numbers)
        tuned.done[numbers] = report.done
        episodes = learner.episodes(report.done)
        if report.updates:
            log.add(numbers, report.metrics, report.updates)
        for match in np.array(numbers)[report.diverged & ~tuned.stopped[numbers]]:
            tuned.stopped[match] = True
            self.watcher.say(
                f"{stage}: match {match} stopped near episode {episodes}: its weights would no "
                "longer be finite; it will not be promoted"
            )
        if report.done in order.lines or report.ended:
            seconds = self.seconds + self.clock.total
            log.write(numbers, episodes, report.done, seconds, tuned.stopped)
        if order.pictures and report.done in (0, *order.pictures):
            self._keep_policies(stage, numbers, report.agents, log.before + episodes)
        if report.ended:
            for row, match in enumerate(numbers):
                tuned.agents[match] = jax.tree.map(lambda x, r=row: x[r], report.agents)
        if report.updates:
            shown = int(np.mean([learner.episodes(int(done)) for done in tuned.done]))
            self.watcher.show(shown, log.rewards())

    def play(self, stage: Stage, teams: Iterable[Any], games: int, key: Array) -> np.ndarray:
        """Games of the fitness; interrupts are met between two of them."""
        episodes = self.training.fitness_episodes
        self.watcher.begin(f"{stage}  fitness", games * episodes)

        def watch(done: int) -> None:
            self.interrupts.check()
            self.watcher.show(done * episodes, {})

        learner = self.training.learner(stage.game)
        policies = map(learner.policies, teams)
        played = self.site.play(learner, policies, key, episodes, watch)
        self.watcher.show(games * episodes, {})
        shaping = float(self.training.shaped_fitness)
        return np.stack([(x["reward"] + shaping * x["shaping"]).mean(-1) for x in played])

    def _name(self, stage: Stage, numbers: tuple[int, ...]) -> str:
        """Of a slice of matches, for people who watch it or search for what went wrong."""
        some = f"es {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f" {numbers[0]}"
        return f"{stage.game.name} {stage}, seed {self.training.seed}, match{some}"

    def _look_ahead(self, stage: Stage) -> None:
        """What comes after the training of a stage."""
        if self.curriculum.sets is not None:
            self.site.look_ahead(self.training.learner(stage.game), None)
        for later in self.curriculum.stages[stage.number + 1 :][:1]:
            matches = plan(self.training)[later.number].matches
            self.site.look_ahead(self.training.learner(later.game), matches)

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

    def _keep_policies(self, stage: Stage, numbers: list[int], agents: Any, episodes: int) -> None:
        """Snapshots of some matches; `episodes` counts along the lineage."""
        learner = self.training.learner(stage.game)
        policies = learner.policies(agents)
        for row, match in enumerate(numbers):
            for role, members in stage.game.members.items():
                mine = jax.tree.map(lambda x, r=row, who=members: x[r, who], policies)
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
    """Adds up the time of training."""

    def __init__(self) -> None:
        self.total = 0.0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """What is done within is part of the training."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.total += time.perf_counter() - begin


@dataclass
class FineTuning:
    """How far the matches of a stage are."""

    log: Log
    done: np.ndarray  # updates [matches]
    stopped: np.ndarray  # [matches]
    agents: list[Any]  # of matches that have ended; else none

    @property
    def ended(self) -> bool:
        return all(agents is not None for agents in self.agents)

    def snapshot(
        self, site: Site, orders: list[Order]
    ) -> tuple[list[dict[str, Any]], Iterator[tuple[str, Arrays]]]:
        """For a checkpoint: what there is to know of every match, and arrays to go on from."""
        states: dict[int, Iterator[Arrays]] = {}
        about: list[dict[str, Any]] = [
            {"updates": None, "ended": agents is not None, "stopped": bool(stopped)}
            | self.log.snapshot(match)
            for match, (agents, stopped) in enumerate(zip(self.agents, self.stopped, strict=True))
        ]
        for number, order in enumerate(orders):
            found = None if about[order.numbers[0]]["ended"] else site.states(number)
            if found:
                states[number] = found[1]
                for match in order.numbers:
                    about[match]["updates"] = found[0]
                    if found[0] != self.done[match]:  # a state of earlier, at a line of the log
                        about[match] |= {"weight": 0, "sums": {}}

        def files() -> Iterator[tuple[str, Arrays]]:
            for match, agents in enumerate(self.agents):
                if agents is not None:
                    yield f"match-{match}", named(agents)
            for number, arrays in states.items():
                for match, mine in zip(orders[number].numbers, arrays, strict=True):
                    yield f"match-{match}", mine

        return about, files()

    def restore(
        self, numbers: tuple[int, ...], checkpoint: Checkpoint, like: Any
    ) -> tuple[int, list[Arrays] | None]:
        """From where matches that train side by side can go on: none of them, if not all can."""
        saved = [checkpoint.about["matches"][match] for match in numbers]
        arrays = [checkpoint.arrays.get(f"match-{match}", {}) for match in numbers]
        updates = {match["updates"] for match in saved}
        whole = all(match["ended"] for match in saved)
        goes_on = not whole and len(updates) == 1 and None not in updates
        for match, known, mine in zip(numbers, saved, arrays, strict=True):
            self.log.restore(match, known, sums=goes_on)
            self.stopped[match] = known["stopped"] and (whole or goes_on)
            if whole:
                self.agents[match] = unnamed(mine, like)
            self.done[match] = known["logged"] if whole else known["updates"] if goes_on else 0
        return (int(self.done[numbers[0]]), arrays) if goes_on else (0, None)
