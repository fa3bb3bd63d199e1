"""Commands that train."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from epcx import config_file, learners, library, presets, tracking
from epcx.config import TrainConfig
from epcx.estimate import estimate
from epcx.execution.execution_options import ExecutionOptions
from epcx.options import Flatten, Positional
from epcx.reports.terminal import print_plan, print_result
from epcx.teams import initial_generation
from epcx.trainer import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Train:
    """Train agents for a game, by EPC or another method, and keep them as a run."""

    settings: Annotated[TrainConfig, Flatten]

    config: Path | None = None
    """A file with settings, such as the config.json of a run; other options override it, and GAME
    may be left out."""

    preset: presets.Preset | None = None
    """Where the other defaults come from: paper (the paper's schedule; without this option it is
    taken if it does not take more than an hour on this machine), best (the same schedule with the
    best learner and networks known), large (up to hundreds of agents, with neighbourhoods; for a
    GPU), quick (minutes on a laptop) or smoke (a minute, to see whether it works)."""

    out: Path | None = None
    """The folder of the run; by default in runs/, named after game, population, method and seed."""

    checkpoint_minutes: float = CHECKPOINT_SECONDS / 60
    """Between two checkpoints, at least; SIGUSR1 asks for one at once."""

    track: tuple[tracking.Name, ...] = ()
    """Follow the training by tensorboard, wandb (Weights & Biases) or both, beside the metrics in
    the run's folder (needs the extra `track`)."""

    execution: Annotated[ExecutionOptions, Flatten] = field(default_factory=ExecutionOptions)

    dry_run: bool = False
    """Print the plan and how long it would take on this machine, roughly, and train nothing."""

    json: bool = False
    """Print the plan or the result as JSON."""

    @staticmethod
    def types(given: dict[str, Any]) -> dict[str, type]:
        """The options of the learner depend on which one it is."""
        path, preset = given.get("config"), given.get("preset")
        name = config_file.learner_of(path, preset, given.get("settings", {}))
        return {"learner_config": learners.find(name).Config}

    @classmethod
    def default(cls, given: dict[str, Any]) -> "Train | None":
        """Everything as preset and file have it, for the game and method that are given."""
        asked, path = given.get("settings", {}), given.get("config")
        if "game" not in asked and path is None:
            return None
        names = ("game", "method", "learner", "population", "budget")
        chosen = {name: asked[name] for name in names if name in asked}
        return cls(config_file.make_config(path, given.get("preset"), chosen))

    def run(self) -> None:
        if self.dry_run:
            # Whether it can be started from.
            initial_generation(self.settings, lambda message: None)
            plan = self.settings.plan
            print_plan(self.settings, plan, estimate(self.settings, self.execution), self.json)
            return
        run = library.train_config(
            self.settings,
            asked_for=self.preset is not None or self.config is not None,
            out=self.out,
            execution=self.execution,
            checkpoint_minutes=self.checkpoint_minutes,
            track=self.track,
        )
        print_result(run.folder, self.json)


@dataclass(frozen=True)
class Resume:
    """Resume a training that was interrupted or killed."""

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run."""

    checkpoint_minutes: float = CHECKPOINT_SECONDS / 60
    """Between two checkpoints, at least; SIGUSR1 asks for one at once."""

    execution: Annotated[ExecutionOptions, Flatten] = field(default_factory=ExecutionOptions)

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        run = library.resume(
            self.run_folder,
            execution=self.execution,
            checkpoint_minutes=self.checkpoint_minutes,
        )
        print_result(run.folder, self.json)
