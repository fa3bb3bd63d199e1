"""The paper's experiment with one game: all methods, populations and seeds, as runs in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from epcx import concurrent_runs, methods, presets, trainer
from epcx.callbacks import Callback
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError, whole_number
from epcx.execution.executor import Executor
from epcx.runs.run import RunFolder

MAX_SEEDS = 100
SNAPSHOTS = {"paper": 20, "best": 20, "large": 20, "quick": 5, "smoke": 2}
# Episodes of each game of the evaluation:
EPISODES = {"paper": 10_000, "best": 10_000, "large": 2_000, "quick": 2_000, "smoke": 100}
SEEDS = {"paper": 3, "best": 3, "large": 1, "quick": 1, "smoke": 1}


@dataclass(frozen=True)
class Task:
    """One run of the experiment, in a folder of this name."""

    name: str
    config: TrainConfig

    @property
    def trials(self) -> int:
        return 1 if self.config.selects else self.config.matches or 1


def plan(
    folder: Path,
    game: str,
    preset: presets.Preset,
    names: Sequence[str] = (),
    population: tuple[str, ...] = (),
    seeds: int | None = None,
    budget: methods.Budget = "lineage",
) -> list[Task]:
    """All runs, those that are in the folder already first of their kind.

    Trainings of one method from scratch share a run, as its matches: they train in parallel. With
    the budget `total`, methods from scratch are also trained in as many matches as EPC, of which
    the fittest is taken.
    """
    seeds = SEEDS[preset] if seeds is None else seeds
    whole_number("seeds", seeds, 1, MAX_SEEDS)
    chosen = names or default_methods(preset)
    snapshots = SNAPSHOTS[preset]
    stages = presets.make_config(game, "epc", preset, population).population
    tasks = []
    for method in dict.fromkeys(chosen):
        if methods.find(method).grows:
            growing = presets.make_config(game, method, preset, stages)
            for seed in range(seeds):
                wanted = replace(growing, seed=seed, snapshots=snapshots)
                tasks.append(Task(f"{method}-seed{seed}", wanted))
            continue
        for stage in stages:
            scratch = presets.make_config(game, method, preset, (stage,), stages=stages)
            kept_policies = snapshots if stage in stages[1:2] else 0
            seed = 0
            while seed < seeds:
                name = f"{method}-{stage}-seed{seed}"
                matches: int | None = seeds - seed
                if RunFolder.exists(folder / name):
                    matches = TrainConfig.of(RunFolder.open(folder / name)).matches
                wanted = replace(scratch, seed=seed, matches=matches, snapshots=kept_policies)
                tasks.append(Task(name, wanted))
                seed += tasks[-1].trials
            if budget == "total":
                control = presets.make_config(game, method, preset, (stage,), budget, stages)
                tasks += [
                    Task(f"{method}-{stage}-total-seed{seed}", replace(control, seed=seed))
                    for seed in range(seeds)
                ]
    for task in tasks:
        task.config.check()
        check(folder / task.name, task.config)
    return tasks


def default_methods(preset: presets.Preset) -> tuple[str, ...]:
    """The paper's; where its learner is not the preset's, those that go with any."""
    return methods.CURRICULA if preset in presets.LEARNERS else methods.PAPER


def check(path: Path, wanted: TrainConfig) -> None:
    """Refuses to take a run for what it is not."""
    if not RunFolder.exists(path):
        return
    found = TrainConfig.of(RunFolder.open(path)).to_json()
    for name, value in wanted.to_json().items():
        if found[name] != value:
            raise InputError(
                f"{path} was trained with other settings ({name} {found[name]!r}, not {value!r}): "
                "choose another --out, or remove it"
            )


def train_all(
    folder: Path, tasks: Sequence[Task], executor: Executor, callback: Callback
) -> tuple[list[RunFolder], list[str]]:
    """Trains the missing runs, and resumes interrupted ones.

    Gives the runs that are finished, and why others failed: a baseline that diverges is a result.
    """
    runs: list[RunFolder] = []
    failures: list[str] = []
    for number, task in enumerate(tasks, 1):
        path, config = folder / task.name, task.config
        if RunFolder.is_finished(path):
            runs.append(RunFolder.open(path))
            continue
        where = " ".join(config.populations)
        callback.on_message(f"run {number} of {len(tasks)}: {config.method} at {where}, in {path}")
        try:
            if RunFolder.exists(path):
                runs.append(trainer.resume(path, executor, callback))
            else:
                runs.append(trainer.train(config, path, executor, callback))
        except RunError as error:
            failures.append(f"{task.name}: {error}")
            callback.on_message(f"{task.name} failed: {error}")
    return runs, failures


def train_at_once(
    folder: Path, tasks: Sequence[Task], number: int, devices: int | None, callback: Callback
) -> tuple[list[RunFolder], list[str]]:
    """As `train_all`, so many runs at a time, each in a process of its own."""
    wanted = [(folder / task.name, task.config) for task in tasks]
    failures = concurrent_runs.train(wanted, number, devices, callback)
    runs = [RunFolder.open(path) for path, _ in wanted if path not in failures]
    return runs, [f"{path.name}: {why}" for path, why in failures.items()]
