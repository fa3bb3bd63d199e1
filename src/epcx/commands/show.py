"""Commands that show what there is: games, replays, and what a run holds."""

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.table import Table

from epcx import games, library
from epcx.errors import InputError, Notice, printable
from epcx.evolution import lineage
from epcx.hub import resolve
from epcx.options import Positional
from epcx.reports.lineage_tree import print_lineage
from epcx.runs.files import json_digest
from epcx.runs.run import RunFolder

NARROW = 70  # columns: too few for a table


@dataclass(frozen=True)
class Games:
    """List the games: roles, populations and rules."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        known = []
        for name in games.names():
            try:
                known.append(games.find(name))
            except InputError as error:  # a plug-in that does not work keeps no other from view
                warnings.warn(str(error), Notice, stacklevel=1)
        if self.json:
            print(json.dumps([describe(game) for game in known], indent=2))
            return
        console = Console(highlight=False)
        narrow = console.width < NARROW
        table = Table(show_lines=True)
        for heading in ("game", "roles", "stages"):
            table.add_column(heading, no_wrap=True)
        table.add_column("rules")
        for game in known:
            name = f"[bold]{game.name}[/bold]"
            roles = "\n".join(f"[{role.colour}]●[/] {role.name}" for role in game.roles)
            rules = "\n".join(f"• {rule}" for rule in game.rules)
            if narrow:
                console.print(f"{name}: {' '.join(game.stages)}", roles, rules, sep="\n")
            else:
                table.add_row(name, roles, "\n".join(game.stages), rules)
        if not narrow:
            console.print(table)


def describe(game: type[games.Game]) -> dict[str, object]:
    return {
        "name": game.name,
        "roles": [role.name for role in game.roles],
        "populations": list(game.stages),
        "actions": [role.num_actions for role in game.roles],
        "horizon": game.horizon,
        "rules": list(game.rules),
    }


@dataclass(frozen=True)
class Lineage:
    """Show where the best agent sets of a run come from."""

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run, or hub:NAME (see `epcx teams`)."""

    json: bool = False
    """Print all agent sets of all stages as JSON."""

    def run(self) -> None:
        run = RunFolder.open(resolve(self.run_folder))
        found = lineage.Lineage.from_json(run.lineage())
        if self.json:
            print(json.dumps(found.to_json(), indent=2))
        else:
            print_lineage(found, Console(highlight=False))


@dataclass(frozen=True)
class Digest:
    """Print a checksum of what a run has trained: equal for equal results."""

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run."""

    json: bool = False
    """Print the checksum of every part, too, as JSON."""

    accept: bool = False
    """Trust the weights as they are now, also those that were changed after the training."""

    def run(self) -> None:
        run = RunFolder.open(resolve(self.run_folder))
        for path in run.accept_weights() if self.accept else ():
            print(f"{printable(path)} is trusted as it is now", file=sys.stderr)
        parts = run.digests()
        whole = json_digest(parts)
        print(json.dumps({"digest": whole, "parts": parts}, indent=2) if self.json else whole)


@dataclass(frozen=True)
class Replay:
    """Play an episode, or read a recorded one, and write it as something to watch."""

    source: Annotated[str, Positional("GAME|RUN|FILE")]
    """A game (see `epcx games`, or module:Class), the folder of a run, hub:NAME (see `epcx teams`),
    or a replay as .json."""

    out: Path = Path("replay.html")
    """The file to write: .html (a page that plays it), .gif, .mp4 (needs ffmpeg, or the extra
    `video`), .png (a strip) or .json."""

    population: str | None = None
    """How many agents each role has, such as 24-16; by default the game's first stage, or the
    run's."""

    players: Literal["scripted", "random"] | None = None
    """Who plays, if no run is named; by default scripted players, if the game has them."""

    stage: str | None = None
    """The stage of the run whose agents play; by default that of the population, or the last."""

    match: int | None = None
    """Which match of the run plays; by default 0, which has the best set of each role."""

    seed: int | None = None
    """Fixes the episode; by default 0."""

    greedy: bool = False
    """Agents of a run take their most probable actions; by default they sample them."""

    density: games.Density | None = None
    """paper (worlds of one size) or constant (they grow with the population); by default that of
    the run, else paper."""

    title: str | None = None
    """A heading for the page."""

    def run(self) -> None:
        recording = library.replay(
            self.source,
            out=self.out,
            population=self.population,
            players=self.players,
            stage=self.stage,
            match=self.match,
            seed=self.seed,
            title=self.title,
            greedy=self.greedy,
            density=self.density,
        )
        what = f"{recording.game} {recording.population}, {recording.steps} steps"
        print(f"wrote {printable(self.out)}: {what} ({printable(recording.title)})")
