"""Commands that take agents elsewhere: published runs, and policies without epcx."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx import export, games, library, publish
from epcx.cards import LICENCE, Card, headline, measure
from epcx.errors import printable, whole_number
from epcx.execution.devices import format_bytes
from epcx.hub import Index, open_hub, resolve
from epcx.options import Positional
from epcx.runs.run import RunFolder
from epcx.teams import MAX_EPISODES

WIDE = 160  # columns: enough for all of the table


@dataclass(frozen=True)
class Publish:
    """Copy a finished run for others: the policies of its best sets, and fewer lines of its log.

    The copy can be evaluated, replayed and compared, but not trained. Its README.md tells how it
    was trained and how well it plays.
    """

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run, or hub:NAME (see `epcx teams`)."""

    out: Path
    """The folder of the copy."""

    sets: int | None = None
    """How many sets of each role, the best ones; by default all that were kept."""

    population: tuple[str, ...] = ()
    """The stages whose agents are copied; by default all."""

    lines: int = 25
    """Lines of the log for each match and stage, at most: means over those of the run."""

    precision: publish.Precision = "float32"
    """How weights are stored: float32, float16 (half the size), int8 or int4 (27 or about 15%
    of it: integers, and a scale for each row). Scores are those of the weights of the copy."""

    episodes: int = 2_000
    """Episodes of each game for the scores: of all its stages, with themselves and with scripted
    players. With 0 there are no scores."""

    licence: str = LICENCE
    """Of the agents, as others may use them."""

    def run(self) -> None:
        whole_number("episodes", self.episodes, 0, MAX_EPISODES)
        run = RunFolder.open(resolve(self.run_folder))

        def card(copy: RunFolder) -> Card:
            scores = measure(copy, self.episodes) if self.episodes else ()
            return Card(self.licence, self.episodes, scores)

        copy = publish.publish(
            run, self.out, self.sets, self.lines, card, self.precision, self.population
        )
        size = sum(path.stat().st_size for path in copy.path.rglob("*") if path.is_file())
        path = printable(copy.path)
        print(f"{path}: {format_bytes(size)}; try: epcx evaluate {path}")


@dataclass(frozen=True)
class Teams:
    """List trained teams that can be used at once, as hub:NAME in place of a run."""

    hub: str | None = None
    """A folder or an address of http or https; by default what the variable EPCX_HUB names, else
    results/ of a checkout, or the teams that come with the package."""

    write_index: Path | None = None
    """Make the index of a folder of published runs, which makes it a hub."""

    json: bool = False
    """Print the index as JSON."""

    def run(self) -> None:
        if self.write_index is not None:
            index, place = publish.write_index(self.write_index), str(self.write_index)
        else:
            hub = open_hub(self.hub)
            index, place = hub.index(), str(hub.place)
        if self.json:
            print(json.dumps(asdict(index), indent=2))
        else:
            print_teams(index, place)


def print_teams(index: Index, place: str) -> None:
    """A table; without methods, seeds and standard errors where there is little room."""
    console = Console(highlight=False)
    wide = console.width >= WIDE
    table = Table(box=None, padding=(0, 1), header_style="")
    table.add_column("team", no_wrap=True)
    table.add_column("populations")
    if wide:
        table.add_column("method", no_wrap=True)
        table.add_column("seed", justify="right")
    for heading in ("score", "fixed players" if wide else "fixed", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for team in index.teams:
        best = headline(team.scores)
        roles = [f"{printable(role)} " if len(best) > 1 else "" for role, _, _ in best]
        mine, fixed = ([row[column] for row in best] for column in (1, 2))
        settings = team.trained_with if team.trained_with.startswith("preset ") else "own settings"
        trained = [printable(f"{team.method}, {settings}"), str(team.seed)]
        cells = [
            printable(team.name),
            printable(" ".join(team.populations)),
            *(trained if wide else []),
            score_cell(roles, mine, wide),
            score_cell(roles, fixed, wide),
            format_bytes(team.size),
        ]
        table.add_row(*map(escape, cells))
    console.print(f"{escape(printable(place))}: task reward at the largest population")
    console.print(table)
    if not wide:
        console.print(f"--json, or {WIDE} columns, show all: method, settings, seed and errors too")
    console.print("use one as hub:NAME, such as: epcx evaluate " + escape(f"hub:{example(index)}"))


def score_cell(roles: Sequence[str], scores: Sequence[Any], errors: bool) -> str:
    """A line for each role."""
    return "\n".join(
        f"{role}{score.mean:.1f}" + f" ± {score.error:.1f}" * errors
        for role, score in zip(roles, scores, strict=True)
        if score is not None
    )


def example(index: Index) -> str:
    return printable(next((team.name for team in index.teams if team.bundled), "NAME"))


@dataclass(frozen=True)
class Export:
    """Write the policies of a run for use without epcx, in NumPy or in JAX."""

    run_folder: Annotated[str, Positional("RUN")]
    """The folder of a run, or hub:NAME (see `epcx teams`)."""

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

    density: games.Density | None = None
    """constant (the world grows with the population) or paper, by default as it was trained."""

    def run(self) -> None:
        team = library.load(self.run_folder, self.population, self.stage, self.match, self.density)
        team.export(self.out, self.inputs, self.greedy)
        size = format_bytes(self.out.stat().st_size)
        print(f"wrote {printable(self.out)}: {team.game.name} {team.game.population}, {size}")
