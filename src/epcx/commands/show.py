"""Commands that show what there is: games, replays, and what a run holds."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from epcx import games, publish, trained
from epcx.engines.devices import in_words
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.players import Script, Side
from epcx.evolution import lineage
from epcx.reports import replay
from epcx.reports.family import print_lineage
from epcx.reports.recording import record
from epcx.runs.files import json_digest
from epcx.runs.run import Run

NARROW = 70  # columns: too few for a table


@dataclass(frozen=True)
class Games:
    """List the games: roles, populations and rules."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        if self.json:
            print(json.dumps([describe(game) for game in games.GAMES.values()], indent=2))
            return
        console = Console(highlight=False)
        narrow = console.width < NARROW
        table = Table(show_lines=True)
        for heading in ("game", "roles", "stages"):
            table.add_column(heading, no_wrap=True)
        table.add_column("rules")
        for game in games.GAMES.values():
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
        "entity_types": [kind.name for kind in game.entity_types],
        "horizon": game.horizon,
        "rules": list(game.rules),
    }


@dataclass(frozen=True)
class Lineage:
    """Show where the best agent sets of a run come from."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    json: bool = False
    """Print all agent sets of all stages as JSON."""

    def run(self) -> None:
        run = Run.open(self.run_folder)
        found = lineage.Lineage.from_json(run.lineage())
        if self.json:
            print(json.dumps(found.to_json(), indent=2))
        else:
            print_lineage(found, Console(highlight=False))


@dataclass(frozen=True)
class Digest:
    """Print a checksum of what a run has trained: equal for equal results."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    json: bool = False
    """Print the checksum of every part, too, as JSON."""

    def run(self) -> None:
        parts = Run.open(self.run_folder).digests()
        whole = json_digest(parts)
        print(json.dumps({"digest": whole, "parts": parts}, indent=2) if self.json else whole)


@dataclass(frozen=True)
class Publish:
    """Copy a finished run for others: the policies of its best sets, and fewer lines of its log.

    The copy can be evaluated, replayed and compared, but not trained.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    out: Path
    """The folder of the copy."""

    sets: int | None = None
    """How many sets of each role, the best ones; by default all that were kept."""

    lines: int = 25
    """Lines of the log for each match and stage, at most: means over those of the run."""

    def run(self) -> None:
        copy = publish.publish(Run.open(self.run_folder), self.out, self.sets, self.lines)
        size = sum(path.stat().st_size for path in copy.path.rglob("*") if path.is_file())
        print(f"{copy.path}: {in_words(size)}; try: epcx evaluate {copy.path}")


@dataclass(frozen=True)
class Replay:
    """Play an episode, or read a recorded one, and write it as something to watch."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME|RUN|FILE")]
    """A game (see `epcx games`), the folder of a run, or a replay that was saved as .json."""

    out: Path = Path("replay.html")
    """The file to write: .html (a page that plays it), .gif, .png (a strip) or .json."""

    population: str | None = None
    """How many agents each role has, such as 24-16; by default the game's first stage, or the
    run's."""

    players: Literal["scripted", "random"] = "scripted"
    """Who plays, if no run is named."""

    stage: str | None = None
    """The stage of the run whose agents play; by default that of the population, or the last."""

    match: int = 0
    """Which match of the run plays: 0 has the best set of each role."""

    seed: int = 0
    """Fixes the episode."""

    title: str | None = None
    """A heading for the page."""

    def run(self) -> None:
        replay.check_destination(self.out)
        if self.source.lower().endswith(".json"):
            self.refuse("the recorded replay", "population", "players", "stage", "match", "seed")
            recording = replay.load(Path(self.source))
        else:
            game, sides, title = self.of_game() if self.is_game() else self.of_run()
            seed = whole_number("seed", self.seed, 0, MAX_SEED)
            recording = record(game, sides, jax.random.key(seed), title)
        if self.title is not None:
            recording = dataclasses.replace(recording, title=self.title)
        replay.write(recording, self.out)
        what = f"{recording.game} {recording.population}, {recording.steps} steps"
        print(f"wrote {self.out}: {what}")

    def is_game(self) -> bool:
        return self.source in games.GAMES or not Path(self.source).is_dir()

    def of_game(self) -> tuple[games.Game, dict[str, Side], str]:
        self.refuse("the game", "stage", "match")
        game, players = games.make(self.source, self.population), Script(self.players)
        sides = {role: players.side(game, role) for role in game.members}
        return game, sides, f"{self.players} players".capitalize()

    def of_run(self) -> tuple[games.Game, dict[str, Side], str]:
        self.refuse("the run", "players")
        team = trained.load(self.source, self.population, self.stage, self.match)
        method = Run.open(Path(self.source)).setting("method")
        return team.game, team.sides, f"{method} of stage {team.stage}, match {self.match}"

    def refuse(self, what: str, *options: str) -> None:
        for option in options:
            value = getattr(self, option)
            if value != getattr(Replay, option):
                raise InputError(
                    f"--{option} {value} does not go with {what} {self.source}: leave it out"
                )
