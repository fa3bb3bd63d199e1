"""Commands that take agents elsewhere: published runs, and policies without epcx."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from epcx import export, library, publish
from epcx.errors import printable
from epcx.execution.devices import format_bytes
from epcx.options import Positional
from epcx.runs.run import RunFolder


@dataclass(frozen=True)
class Publish:
    """Copy a finished run for others: the policies of its best sets, and fewer lines of its log.

    The copy can be evaluated, replayed and compared, but not trained.
    """

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run."""

    out: Path
    """The folder of the copy."""

    sets: int | None = None
    """How many sets of each role, the best ones; by default all that were kept."""

    lines: int = 25
    """Lines of the log for each match and stage, at most: means over those of the run."""

    def run(self) -> None:
        copy = publish.publish(RunFolder.open(self.run_folder), self.out, self.sets, self.lines)
        size = sum(path.stat().st_size for path in copy.path.rglob("*") if path.is_file())
        path = printable(copy.path)
        print(f"{path}: {format_bytes(size)}; try: epcx evaluate {path}")


@dataclass(frozen=True)
class Export:
    """Write the policies of a run for use without epcx, in NumPy or in JAX."""

    run_folder: Annotated[str, Positional("RUN")]
    """The folder of a run."""

    out: Path
    """The file to write: .npz (weights, for NumPy) or .jaxexport (a program for JAX)."""

    population: str | None = None
    """How many agents each role has, by default as in the last stage. Where a role has more seats
    than agents, agents take several (attention networks only)."""

    stage: str | None = None
    """The stage whose agents are meant; by default that of the population, or the last."""

    match: int = 0
    """Which match; 0 has the best set of each role."""

    inputs: export.Inputs = "observations"
    """What a program takes: observations (of each role) or worlds (the arrays of the game)."""

    greedy: bool = False
    """A program takes the most probable actions; by default it samples them."""

    def run(self) -> None:
        team = library.load(self.run_folder, self.population, self.stage, self.match)
        team.export(self.out, self.inputs, self.greedy)
        size = format_bytes(self.out.stat().st_size)
        print(f"wrote {printable(self.out)}: {team.game.name} {team.game.population}, {size}")
