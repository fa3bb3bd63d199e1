"""The paper's experiment with one game: all methods, populations and seeds, as runs in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from epcx import presets, trainer
from epcx.engines.work import Site
from epcx.errors import InputError, RunError, whole_number
from epcx.interrupts import Interrupts
from epcx.runs.run import Run
from epcx.study import ORDER
from epcx.training import GROWING, METHODS, Training

MAX_SEEDS = 100
SNAPSHOTS = {"paper": 20, "best": 20, "quick": 5, "smoke": 2}
EPISODES = {
    "paper": 10_000,
    "best": 10_000,
    "quick": 2_000,
    "smoke": 100,
}  # of each game of the evaluation


@dataclass(frozen=True)
class Task:
    """One run of the experiment, in a folder of this name."""

    name: str
    training: Training

    @property
    def trials(self) -> int:
        return 1 if self.training.grows else self.training.matches or 1


def plan(
    folder: Path,
    game: str,
    preset: presets.Preset,
    methods: Sequence[str] = (),
    population: tuple[str, ...] = (),
    seeds: int = 1,
    budget: presets.Budget = "lineage",
) -> list[Task]:
    """All runs, those that are in the folder already first of their kind.

    Trainings from scratch that differ in their seed only share a run: they train side by side.
    """
    whole_number("seeds", seeds, 1, MAX_SEEDS)
    chosen = methods or tuple(reversed(ORDER))
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}: the methods are {', '.join(METHODS)}")
    snapshots = SNAPSHOTS[preset]
    stages = presets.make(game, "epc", preset, population).population
    tasks = []
    for method in dict.fromkeys(chosen):
        if method in GROWING:
            growing = presets.make(game, method, preset, stages, budget)
            for seed in range(seeds):
                wanted = replace(growing, seed=seed, snapshots=snapshots)
                tasks.append(Task(f"{method}-seed{seed}", wanted))
            continue
        for stage in stages:
            scratch = presets.make(game, method, preset, (stage,), budget, stages)
            seed = 0
            while seed < seeds:
                name = f"{method}-{stage}-seed{seed}"
                matches: int | None = seeds - seed
                if (folder / name).exists():
                    matches = Training.of(Run.open(folder / name)).matches
                kept_policies = snapshots if stage in stages[1:2] else 0
                wanted = replace(scratch, seed=seed, matches=matches, snapshots=kept_policies)
                tasks.append(Task(name, wanted))
                seed += tasks[-1].trials
    for task in tasks:
        check(folder / task.name, task.training)
    return tasks


def check(path: Path, wanted: Training) -> None:
    """Refuses to take a run for what it is not."""
    if not path.exists():
        return
    found = Training.of(Run.open(path)).config()
    for name, value in wanted.config().items():
        if found[name] != value:
            raise InputError(
                f"{path} was trained with other settings ({name} {found[name]!r}, not {value!r}): "
                "choose another --out, or remove it"
            )


def train_all(
    folder: Path,
    tasks: Sequence[Task],
    watcher: trainer.Watcher,
    interrupts: Interrupts,
    site: Site | None = None,
) -> tuple[list[Run], list[str]]:
    """Trains what is missing, and goes on with what was interrupted.

    Gives the runs that are finished, and why others failed: a baseline that diverges is a result.
    """
    runs: list[Run] = []
    failures: list[str] = []
    for number, task in enumerate(tasks, 1):
        path, training = folder / task.name, task.training
        if path.exists() and Run.open(path).result.get("ended") == "finished":
            runs.append(Run.open(path))
            continue
        where = " ".join(str(game.population) for game in training.games)
        watcher.say(f"run {number} of {len(tasks)}: {training.method} at {where}, in {path}")
        try:
            if path.exists():
                runs.append(trainer.resume(path, watcher, interrupts, site=site))
            else:
                runs.append(trainer.train(training, path, False, watcher, interrupts, site=site))
        except RunError as error:
            failures.append(f"{task.name}: {error}")
            watcher.say(f"{task.name} failed: {error}")
    return runs, failures
