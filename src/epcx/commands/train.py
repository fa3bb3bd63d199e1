"""Commands that train."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from epcx import presets, trainer
from epcx.commands.where import Where
from epcx.errors import InputError
from epcx.interrupts import Interrupts
from epcx.reports.progress import EpisodeProgress
from epcx.reports.tables import print_plan, print_result
from epcx.training import Training, plan


@dataclass(frozen=True)
class Train:
    """Train agents for a game, by EPC or another method, and keep them as a run."""

    training: Annotated[Training, tyro.conf.arg(name="")]

    preset: presets.Preset = "paper"
    """Where the other defaults come from: paper (the paper's schedule), best (the same with better
    settings), quick (minutes on a laptop) or smoke (seconds, to see whether it works)."""

    budget: presets.Budget = "lineage"
    """Episodes of methods without a curriculum, by default: as many as EPC has accumulated along
    one lineage, or in total, in all its matches."""

    out: Path | None = None
    """The folder of the run; by default in runs/, named after game, population, method and seed."""

    checkpoint_minutes: float = 3.0
    """Between two checkpoints, at least."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard, too (needs the extra `track`)."""

    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)

    dry_run: bool = False
    """Print the plan, and train nothing."""

    json: bool = False
    """Print the plan or the result as JSON."""

    def with_defaults(self) -> "Train":
        """The same command with everything as its preset has it, for a second look."""
        asked = self.training
        wanted = presets.make(asked.game, asked.method, self.preset, asked.population, self.budget)
        return dataclasses.replace(self, training=wanted)

    def run(self) -> None:
        pause = checkpoint_seconds(self.checkpoint_minutes)
        rows = plan(self.training)
        if self.dry_run:
            print_plan(self.training, rows, self.json)
            return
        last = rows[-1].population
        name = f"{self.training.game}-{last}-{self.training.method}-seed{self.training.seed}"
        folder = self.out or Path("runs") / name
        with (
            self.where.site(pause) as site,
            EpisodeProgress() as progress,
            Interrupts() as interrupts,
        ):
            run = trainer.train(
                self.training, folder, self.tensorboard, progress, interrupts, pause, site
            )
        print_result(run, self.json)


@dataclass(frozen=True)
class Resume:
    """Go on with a training that was interrupted or killed."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    checkpoint_minutes: float = 3.0
    """Between two checkpoints, at least."""

    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        pause = checkpoint_seconds(self.checkpoint_minutes)
        with (
            self.where.site(pause) as site,
            EpisodeProgress() as progress,
            Interrupts() as interrupts,
        ):
            run = trainer.resume(self.run_folder, progress, interrupts, pause, site)
        print_result(run, self.json)


def checkpoint_seconds(minutes: float) -> float:
    if not 0 <= minutes < float("inf"):
        raise InputError(f"checkpoint-minutes {minutes} is negative or no number")
    return 60 * minutes
