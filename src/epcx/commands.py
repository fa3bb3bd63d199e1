"""What `epcx` can do: one dataclass per command, whose fields are its options."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from epcx import games
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.scripted import PLAYERS
from epcx.reports import replay
from epcx.reports.recording import record

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
class Replay:
    """Play an episode, or read a recorded one, and write it as something to watch."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME|FILE")]
    """A game (see `epcx games`), or a replay that was saved as .json."""

    out: Path = Path("replay.html")
    """The file to write: .html (a page that plays it), .gif, .png (a strip) or .json."""

    population: str | None = None
    """How many agents each role has, such as 24-16; by default the game's first stage."""

    players: Literal["scripted", "random"] = "scripted"
    """Who plays."""

    seed: int = 0
    """Fixes the episode."""

    title: str | None = None
    """A heading for the page."""

    def run(self) -> None:
        replay.check_destination(self.out)
        saved = self.source.lower().endswith(".json")
        recording = self.load() if saved else self.play()
        if self.title is not None:
            recording = dataclasses.replace(recording, title=self.title)
        replay.write(recording, self.out)
        what = f"{recording.game} {recording.population}, {recording.steps} steps"
        print(f"wrote {self.out}: {what}")

    def play(self) -> replay.Replay:
        game = games.make(self.source, self.population)
        seed = whole_number("seed", self.seed, 0, MAX_SEED)
        act = PLAYERS[self.players](game)
        return record(game, act, jax.random.key(seed), f"{self.players} players".capitalize())

    def load(self) -> replay.Replay:
        for option in ("population", "players", "seed"):
            value = getattr(self, option)
            if value != getattr(Replay, option):
                raise InputError(
                    f"--{option} {value} does not go with the recorded replay {self.source}: "
                    "leave it out, or name a game"
                )
        return replay.load(Path(self.source))


Command = (
    Annotated[Games, tyro.conf.subcommand("games")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
)
