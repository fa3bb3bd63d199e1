"""Trains a run stage by stage, in chunks of seconds, and keeps what is needed to go on."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from epcx.callbacks import Callback, NullCallback
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError
from epcx.evolution.curriculum import AgentSet, Generation, Mutants, Stage, evolve
from epcx.evolution.lineage import Lineage
from epcx.execution.executor import Executor
from epcx.execution.tasks import Progress, TrainTask
from epcx.interrupts import Interrupts
from epcx.learners import Learner, ScheduledLearner
from epcx.metrics_log import MetricsLog, evenly_spaced
from epcx.networks import kernels
from epcx.runs import provenance
from epcx.runs.checkpoint import Arrays, Checkpoint, MatchUpdate
from epcx.runs.files import json_digest
from epcx.runs.run import LINEAGE, METRICS, RunFolder
from epcx.runs.weights import named, unnamed
from epcx.stage_progress import StageProgress
from epcx.teams import initial_generation, weights_metadata
from epcx.tracking import Tracking

CHECKPOINT_SECONDS = 30.0
MAX_CHECKPOINT_SHARE = 0.03  # of the time, that training waits for copies to the host


def train(
    config: TrainConfig,
    folder: Path,
    executor: Executor,
    callback: Callback | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    tracking: Tracking | None = None,
) -> RunFolder:
    """A new run."""
    config.check_memory(executor)
    callback = callback or NullCallback()
    generation = initial_generation(config, callback.on_message)
    made_with = {**provenance.describe(), "kernels": kernels.describe()}
    run = RunFolder.create(folder, config.to_json(), made_with)
    trainer = RunTrainer(run, config, executor, callback, checkpoint_seconds, tracking)
    trainer.generation = generation
    trainer.train()
    return run


def resume(
    folder: Path,
    executor: Executor,
    callback: Callback | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    tracking: Tracking | None = None,
) -> RunFolder:
    """Resumes a run from its newest intact checkpoint, unless it is finished."""
    run = RunFolder.open(folder)
    run.lock()
    if run.result.get("ended") == "finished":
        run.unlock()
        return run
    run.check_logs()
    config = TrainConfig.of(run)
    trainer = RunTrainer(run, config, executor, callback, checkpoint_seconds, tracking)
    checkpoint = run.checkpoints.load(trainer.callback.on_message)
    if checkpoint is None:
        if run.stages() or (run.path / LINEAGE).exists():
            run.unlock()
            raise InputError(
                f"{run.path} has agents, but no checkpoint to go on from: it was finished or "
                "published, and is not trained over"
            )
        trainer.callback.on_message("there is no checkpoint yet: from the beginning")
        trainer.generation = initial_generation(trainer.config, trainer.callback.on_message)
    trainer.train(checkpoint)
    return run


class RunTrainer:
    """One run in training. It is the `Trainer` that evolution asks for.

    A checkpoint holds the sets that a stage begins with and, within it, the state of all matches,
    or their agents once they are trained.
    """

    def __init__(
        self,
        run: RunFolder,
        config: TrainConfig,
        executor: Executor,
        callback: Callback | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        tracking: Tracking | None = None,
    ):
        self.run, self.config, self.executor = run, config, executor
        self.curriculum = config.curriculum
        self.settings_digest = json_digest(config.to_json())
        self.callback = callback or NullCallback()
        self.interrupts = Interrupts()
        self.clock = Clock()
        self.seconds = 0.0  # of training, before this process
        self.stage_totals: list[dict[str, Any]] = []  # matches and episodes of stages so far
        self.generation = Generation()
        self.checkpoint_seconds = checkpoint_seconds
        self.saved_at = time.monotonic()
        self.save_seconds = 0.0
        self.loaded: Checkpoint | None = None
        self.tracking = tracking or Tracking()

    def train(self, checkpoint: Checkpoint | None = None) -> None:
        """From the beginning, or from a checkpoint."""
        self.loaded = checkpoint
        if checkpoint:
            if checkpoint.about["settings"] != self.settings_digest:
                self.run.unlock()
                raise InputError(f"{self.run.path}: its checkpoints are of other settings")
            self.seconds = checkpoint.about["seconds"]
            self.stage_totals = checkpoint.about["stages"]
            self.generation = self._generation(checkpoint)
        if not self.run.truncate_metrics(checkpoint.about["metrics"] if checkpoint else 0):
            self.callback.on_message(
                f"{self.run.path / METRICS} has lost lines since the checkpoint; agents have not"
            )
        ended, cause = "failed", None
        try:
            self.tracking.start(self.run)
            with self.interrupts:
                if self.generation.sets and checkpoint is None:
                    self._save("stage")  # what it starts from may be gone later
                evolve(self.curriculum, self, self.generation, self._keep)
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            self.callback.on_message(f"to go on: epcx resume {self.run.path}")
            raise
        except (RunError, InputError) as error:
            cause = str(error)
            raise
        finally:
            self._finish(ended, cause)
        self.run.checkpoints.clear()

    def _finish(self, ended: str, cause: str | None) -> None:
        stages = self.stage_totals
        result = {
            "ended": ended,
            "cause": cause,
            "seconds": round(self.seconds + self.clock.total, 3),
            "episodes_along_a_lineage": sum(row["episodes"] for row in stages),
            "episodes_in_total": sum(row["episodes"] * row["matches"] for row in stages),
            "stages": stages,
        }
        if ended == "finished":
            result["best"] = {
                role: {"name": sets[0].record.name, "fitness": sets[0].record.fitness}
                for role, sets in self.generation.sets.items()
            }
        self.run.checkpoints.close()
        try:
            self.run.write_result(result)
        except RunError:
            if ended == "finished":
                raise
        finally:
            self.run.unlock()

    # What evolution asks for

    def fine_tune(self, stage: Stage, matches: list[PyTree] | None, key: Key[Array, ""]) -> Mutants:
        """Trains all matches of a stage; interrupts are met between two reports."""
        loaded, self.loaded = self.loaded, None
        learner = self._learner(stage)
        like = jax.eval_shape(learner.init, jax.random.key(0))
        if loaded and loaded.about["phase"] == "trained":
            stopped = np.array(loaded.about["stopped"])
            return Mutants(unnamed(loaded.arrays["agents"], like), stopped)
        number = len(matches) if matches else stage.matches
        assert number is not None
        updates = learner.updates(stage.episodes)
        before = sum(row["episodes"] for row in self.stage_totals)
        log = MetricsLog(self.run, stage, number, before, self.tracking.log)
        progress = StageProgress.fresh(log, number)
        halfway = loaded if loaded and loaded.about["phase"] == "training" else None
        tasks = []
        for ids in self.executor.slices(number):
            done, state = progress.restore(ids, halfway, like) if halfway else (0, None)
            if any(progress.agents[match] is None for match in ids):
                chosen = [matches[match] for match in ids] if matches else None
                tasks.append(
                    TrainTask(
                        name=self._task_name(stage, ids),
                        learner=learner,
                        matches=ids,
                        key=np.asarray(jax.random.key_data(key)),
                        agents=chosen and jax.tree.map(lambda *x: np.stack(x), *chosen),
                        updates=updates,
                        log_at=tuple(evenly_spaced(updates)),
                        snapshot_at=tuple(evenly_spaced(updates, self._snapshots(stage))),
                        done=done,
                        state=state,
                    )
                )
        if halfway:
            halfway.arrays.clear()
            halfway.rows.clear()
        label = f"{stage}  ({stage.number + 1}/{len(self.curriculum.stages)})"
        self.callback.on_stage(label, learner.episodes(updates))
        if tasks:
            self._run_tasks(stage, tasks, progress)
        episodes = learner.episodes(int(progress.done.max()))
        self.stage_totals.append(
            {"population": str(stage), "matches": number, "episodes": episodes}
        )
        agents = jax.tree.map(lambda *x: np.stack(x), *progress.agents)
        stopped = progress.stopped
        self._save("trained", {"stopped": stopped.tolist()}, {"agents": named(agents)})
        return Mutants(agents, stopped)

    def _run_tasks(self, stage: Stage, tasks: list[TrainTask], progress: StageProgress) -> None:
        """Has tasks executed; in between, interrupts are met and checkpoints written."""
        announced, ended = False, object()
        running = self.executor.train(tasks, self.callback.on_message)
        with contextlib.closing(running) as reports:
            while True:
                with self.clock.counting():
                    report: Any = next(reports, ended)
                if report is ended:
                    return
                if not announced:
                    announced = True
                    self.callback.on_message(f"{stage}: {self.executor.describe()}")
                    self._precompile(stage)
                if report is not None:
                    self._report(stage, tasks[report[0]], report[1], progress)
                if self.interrupts.noted or (self._due() and not progress.ended):
                    self._save_training(progress, tasks)
                    self.interrupts.check()

    def _report(
        self, stage: Stage, task: TrainTask, report: Progress, progress: StageProgress
    ) -> None:
        """Logs, keeps and shows the progress of a task."""
        learner, log, matches = task.learner, progress.log, list(task.matches)
        if report.done - report.updates != progress.done[matches[0]]:
            log.clear(matches)
        progress.done[matches] = report.done
        episodes = learner.episodes(report.done)
        if report.updates:
            log.add(matches, report.metrics, report.updates)
        for match in np.array(matches)[report.diverged & ~progress.stopped[matches]]:
            progress.stopped[match] = True
            self.callback.on_message(
                f"{stage}: match {match} stopped near episode {episodes}: its weights would no "
                "longer be finite; it will not be promoted"
            )
        if report.done in task.log_at or report.ended:
            seconds = self.seconds + self.clock.total
            log.write(matches, episodes, report.done, seconds, progress.stopped)
        if task.snapshot_at and report.done in (0, *task.snapshot_at):
            self._save_snapshots(stage, task, report.agents, log.before + episodes)
        if report.ended:
            for row, match in enumerate(matches):
                progress.agents[match] = jax.tree.map(lambda x, r=row: x[r], report.agents)
        if report.updates:
            shown = int(np.mean([learner.episodes(int(done)) for done in progress.done]))
            self.callback.on_progress(shown, log.rewards())

    def play(
        self, stage: Stage, teams: Iterable[PyTree], pairings: int, key: Key[Array, ""]
    ) -> Float[np.ndarray, "pairings agents"]:
        """Pairings for the fitness; interrupts are met between two of them."""
        episodes = self.config.fitness_episodes
        self.callback.on_stage(f"{stage}  fitness", pairings * episodes)

        def on_played(done: int) -> None:
            self.interrupts.check()
            self.callback.on_progress(done * episodes, {})

        learner = self._learner(stage)
        policies = map(learner.policies, teams)
        played = self.executor.play(learner, policies, key, episodes, on_played)
        self.callback.on_progress(pairings * episodes, {})
        shaping = float(self.config.shaped_fitness)
        return np.stack([(x["reward"] + shaping * x["shaping"]).mean(-1) for x in played])

    def _learner(self, stage: Stage) -> Learner:
        """That of a stage, which may know how long it is."""
        learner = self.config.make_learner(stage.game)
        if isinstance(learner, ScheduledLearner):
            return learner.with_updates(learner.updates(stage.episodes))
        return learner

    def _task_name(self, stage: Stage, matches: tuple[int, ...]) -> str:
        """For people who watch a task, or look for what went wrong."""
        some = f"es {matches[0]} to {matches[-1]}" if len(matches) > 1 else f" {matches[0]}"
        return f"{stage.game.name} {stage}, seed {self.config.seed}, match{some}"

    def _precompile(self, stage: Stage) -> None:
        """What comes after the training of a stage."""
        if self.curriculum.sets is not None:
            self.executor.precompile(self._learner(stage), None)
        for later in self.curriculum.stages[stage.number + 1 :][:1]:
            matches = self.config.stage_matches[later.number]
            self.executor.precompile(self._learner(later), matches)

    # What is kept

    def _keep(self, stage: Stage, generation: Generation) -> None:
        """At the end of a stage: agents, lineage, and a checkpoint from which the next begins."""
        self.generation = generation
        learner = self.config.make_learner(stage.game)
        for role, sets in generation.sets.items():
            metadata = weights_metadata(learner, role)
            for rank, chosen in enumerate(sets):
                self.run.save_agents(str(stage), rank, role, chosen.agents, metadata)
        self.run.write(LINEAGE, generation.lineage.to_json())
        self._save("stage")
        if self.curriculum.sets is not None:
            self._track_fitness(stage)
            for role in generation.sets:
                self.callback.on_message(f"{stage}: {self._promoted(stage, role)}")

    def _track_fitness(self, stage: Stage) -> None:
        """That of the best set of each role."""
        about = {"stage": stage.number, "population": str(stage)}
        episodes = sum(row["episodes"] for row in self.stage_totals)
        best = {
            f"fitness/{role}": sets[0].record.fitness for role, sets in self.generation.sets.items()
        }
        self.tracking.log([{**about, "episodes": episodes, **best}])

    def _snapshots(self, stage: Stage) -> int:
        wanted = stage.number == 1 or not self.config.grows
        return self.config.snapshots if wanted else 0

    def _save_snapshots(self, stage: Stage, task: TrainTask, agents: PyTree, episodes: int) -> None:
        """The policies of some matches; `episodes` counts along the lineage."""
        policies = task.learner.policies(agents)
        for row, match in enumerate(task.matches):
            for role, members in stage.game.members.items():
                mine = jax.tree.map(lambda x, r=row, who=members: x[r, who], policies)
                metadata = weights_metadata(task.learner, role)
                self.run.save_snapshot(str(stage), episodes, match, role, mine, metadata)

    def _promoted(self, stage: Stage, role: str) -> str:
        lineage = self.generation.lineage
        mine = lineage.of(stage.number, role)
        chosen = lineage.promoted(stage.number, role)
        shown = ", ".join(f"{record.name} ({record.fitness:.2f})" for record in chosen)
        return f"promoted {len(chosen)} of {len(mine)}, by fitness: {shown}"

    def _due(self) -> bool:
        """Whether it is time for a checkpoint: asked for, or long enough since the last one."""
        if self.interrupts.asked:
            return True
        pause = max(self.checkpoint_seconds, self.save_seconds / MAX_CHECKPOINT_SHARE)
        return not self.run.checkpoints.busy and time.monotonic() - self.saved_at >= pause

    def _save_training(self, progress: StageProgress, tasks: list[TrainTask]) -> None:
        """A checkpoint of matches in training, of which only copies to the host are waited for."""
        begin = time.monotonic()
        asked, self.interrupts.asked = self.interrupts.asked, False
        self.run.checkpoints.wait()
        snapshot = progress.snapshot(self.executor, tasks)
        if snapshot:
            about, agents, updates = snapshot
            self._begin_save("training", {"matches": about}, agents, updates)
        if asked or self.interrupts.noted or not self.checkpoint_seconds:
            self.run.checkpoints.wait()
        if asked:
            self.callback.on_message(f"{self.run.path}: a checkpoint was asked for and is written")
        self.saved_at = time.monotonic()
        if self.checkpoint_seconds:
            self.save_seconds = self.saved_at - begin

    def _save(
        self,
        phase: str,
        more: dict[str, Any] | None = None,
        files: dict[str, Arrays] | None = None,
    ) -> None:
        """A checkpoint between two parts of a stage; it is on disk when this returns."""
        self._begin_save(phase, more or {}, files or {})
        self.run.checkpoints.wait()
        self.saved_at = time.monotonic()

    def _begin_save(
        self,
        phase: str,
        more: dict[str, Any],
        files: dict[str, Arrays],
        updates: dict[str, MatchUpdate] | None = None,
    ) -> None:
        """A checkpoint: the sets that the stages before have left, and what is given."""
        sets = {
            f"{role}-{rank}": named(chosen.agents)
            for role, sets in self.generation.sets.items()
            for rank, chosen in enumerate(sets)
        }
        about = {
            "phase": phase,
            "settings": self.settings_digest,
            "lineage": self.generation.lineage.to_json(),
            "stages": list(self.stage_totals),
            "seconds": self.seconds + self.clock.total,
            "metrics": self.run.metrics_size(),
            **more,
        }
        self.run.checkpoints.save(about, {**sets, **files}, updates)

    def _generation(self, checkpoint: Checkpoint) -> Generation:
        """The generation that the stages before have left, or that the run started from."""
        lineage = Lineage.from_json(checkpoint.about["lineage"])
        if not lineage.records:
            return Generation()
        game = self.curriculum.stages[max(lineage.stages - 1, 0)].game
        like = jax.eval_shape(self.config.make_learner(game).init, jax.random.key(0))
        sets = {
            role: [
                AgentSet(record, unnamed(checkpoint.arrays[f"{role}-{rank}"], like))
                for rank, record in enumerate(lineage.promoted(lineage.stages - 1, role))
            ]
            for role in game.members
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
