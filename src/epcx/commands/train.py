"""Commands that train."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from epcx import learners, library, methods, presets
from epcx.config import TrainConfig
from epcx.execution.execution_options import ExecutionOptions
from epcx.options import Flatten, Positional
from epcx.reports.terminal import print_plan, print_result
from epcx.teams import initial_generation
from epcx.trainer import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Train:
    """Train agents for a game, by EPC or another method, and keep them as a run."""

    config: Annotated[TrainConfig, Flatten]

    preset: presets.Preset = "paper"
    """Where the other defaults come from: paper (the paper's schedule), best (the same with better
    settings), quick (minutes on a laptop) or smoke (seconds, to see whether it works)."""

    out: Path | None = None
    """The folder of the run; by default in runs/, named after game, population, method and seed."""

    checkpoint_minutes: float = CHECKPOINT_SECONDS / 60
    """Between two checkpoints, at least; SIGUSR1 asks for one at once."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard, too (needs the extra `track`)."""

    execution: Annotated[ExecutionOptions, Flatten] = field(default_factory=ExecutionOptions)

    dry_run: bool = False
    """Print the plan, and train nothing."""

    json: bool = False
    """Print the plan or the result as JSON."""

    @staticmethod
    def types(given: dict[str, Any]) -> dict[str, type]:
        """The options of the learner depend on which one it is."""
        asked = given.get("config", {})
        fixed = methods.METHODS.get(asked.get("method", "epc"), methods.Method()).learner
        name = asked.get("learner", fixed or methods.DEFAULT_LEARNER)
        return {"learner_config": learners.find(name).Config}

    @classmethod
    def default(cls, given: dict[str, Any]) -> "Train | None":
        """Everything as the preset has it, for the game and method that are given."""
        asked = given.get("config", {})
        if "game" not in asked:
            return None
        config = presets.make_config(
            asked["game"],
            asked.get("method", "epc"),
            given.get("preset", "paper"),
            asked.get("population", ()),
            asked.get("budget", "lineage"),
            learner=asked.get("learner"),
        )
        return cls(config)

    def run(self) -> None:
        if self.dry_run:
            initial_generation(self.config, lambda message: None)  # whether it can be started from
            print_plan(self.config, self.config.plan, self.json)
            return
        run = library.train(
            self.config,
            out=self.out,
            execution=self.execution,
            checkpoint_minutes=self.checkpoint_minutes,
            tensorboard=self.tensorboard,
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
