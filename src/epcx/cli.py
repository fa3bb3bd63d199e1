"""The command `epcx`."""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

import epcx
from epcx import games
from epcx.errors import InputError
from epcx.evaluation.scripted import PLAYERS
from epcx.reports import replay
from epcx.reports.recording import record


@dataclass(frozen=True)
class Games:
    """List the games: roles, populations and rules."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        if self.json:
            print(json.dumps([describe(game) for game in games.GAMES.values()], indent=2))
            return
        table = Table(show_lines=True)
        for heading in ("game", "roles", "stages"):
            table.add_column(heading, no_wrap=True)
        table.add_column("rules")
        for game in games.GAMES.values():
            table.add_row(
                f"[bold]{game.name}[/bold]",
                "\n".join(f"[{role.colour}]●[/] {role.name}" for role in game.roles),
                "\n".join(game.stages),
                "\n".join(f"• {rule}" for rule in game.rules),
            )
        Console().print(table)


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

    source: Annotated[str, tyro.conf.Positional]
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
        recording = self.load() if self.source.endswith(".json") else self.play()
        replay.write(recording, self.out)
        what = f"{recording.game} {recording.population}, {recording.steps} steps"
        print(f"wrote {self.out}: {what}")

    def play(self) -> replay.Replay:
        game = games.make(self.source, self.population)
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed {self.seed} is not a whole number from 0 to {2**32 - 1}")
        title = self.title or f"{self.players} players".capitalize()
        act = PLAYERS[self.players](game)
        return record(game, act, jax.random.key(self.seed), title)

    def load(self) -> replay.Replay:
        if self.population is not None:
            raise InputError(
                f"--population {self.population} does not go with the recorded replay "
                f"{self.source}: leave it out, or name a game"
            )
        recording = replay.load(Path(self.source))
        return dataclasses.replace(recording, title=self.title) if self.title else recording


Command = (
    Annotated[Games, tyro.conf.subcommand("games")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; bad input ends with one sentence and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["--version"], ["-V"]):
        print(f"epcx {epcx.__version__}")
        return
    try:
        command: Games | Replay = tyro.cli(
            Command,
            prog="epcx",
            description="Grow large teams of agents by Evolutionary Population Curriculum.",
            args=arguments,
        )
        command.run()
    except InputError as error:
        print(f"epcx: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("epcx: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
