"""What `epcx` can do: one dataclass per command, whose fields are its options."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from epcx import games, training
from epcx.engines.devices import keep_compiled_programs, use_all_cores
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.evaluate import play_episodes, summarise
from epcx.evaluation.scripted import PLAYERS, Act
from epcx.interrupts import Interrupts
from epcx.learners import Hyperparameters
from epcx.reports import replay
from epcx.reports.progress import EpisodeProgress
from epcx.reports.recording import record
from epcx.runs.run import Run

NARROW = 70  # columns: too few for a table
MAX_EVALUATION = 10_000_000  # episodes


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
class Train:
    """Train matches of a game from scratch, and keep them as a run."""

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """A game (see `epcx games`)."""

    method: str = "att-maddpg"
    """att-maddpg (attention networks), maddpg or mean-field."""

    population: str | None = None
    """How many agents each role has, such as 3-2; by default the game's first stage."""

    episodes: int = 50_000
    """Episodes per match, the warm-up included."""

    matches: int = 1
    """Matches that train side by side, with seeds of their own."""

    seed: int = 0
    """Fixes everything: the same seed gives the same weights."""

    name: str | None = None
    """Name of the run; by default made of game, population, method and seed."""

    runs: Path = Path("runs")
    """The folder that runs are kept in."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard, too (needs the extra `track`)."""

    json: bool = False
    """Print the result as JSON."""

    hyper: Annotated[Hyperparameters, tyro.conf.arg(name="")] = field(
        default_factory=Hyperparameters
    )

    def run(self) -> None:
        use_all_cores()
        wanted = training.Training(
            self.game,
            self.method,
            self.population,
            self.episodes,
            self.matches,
            self.seed,
            self.hyper,
        )
        config = wanted.config()
        name = self.name or f"{self.game}-{config['population']}-{self.method}-seed{self.seed}"
        if Path(name).name != name or name == "..":
            raise InputError(
                f"name {name!r} is not the name of a folder: --runs says where it goes"
            )
        learner = wanted.learner()
        total = learner.episodes(learner.updates(self.episodes))
        progress = EpisodeProgress(config["population"], total)
        with progress, Interrupts() as interrupts:
            run = training.train(
                wanted,
                self.runs / name,
                self.tensorboard,
                progress.show,
                progress.say,
                interrupts,
            )
        result = run.result
        if self.json:
            print(json.dumps({"run": str(run.path), **result}, indent=2))
        else:
            minutes, seconds = divmod(round(result["seconds"]), 60)
            print(
                f"{result['ended']}: {result['episodes']} episodes in {minutes} min {seconds} s; "
                f"see {run.path}, or try: epcx evaluate {run.path}"
            )
        if result["ended"] == "diverged":
            raise SystemExit(1)


@dataclass(frozen=True)
class Evaluate:
    """Let the agents of a run play, and count what they get and do."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    episodes: int = 2_000
    """Episodes per match."""

    population: str | None = None
    """Play at another population (attention networks only); agents then take several seats."""

    match: int | None = None
    """One match of the run; by default all of them."""

    seed: int = 0
    """Fixes the episodes."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        keep_compiled_programs()
        episodes = whole_number("episodes", self.episodes, 1, MAX_EVALUATION)
        key = jax.random.key(whole_number("seed", self.seed, 0, MAX_SEED))
        run = Run.open(self.run_folder)
        learner = training.trained(run, self.population)
        chosen = chosen_matches(run, self.match)
        sets = [training.load_agents(run, match, learner) for match in chosen]
        results = []
        for match, agents in zip(chosen, sets, strict=True):
            played = play_episodes(learner.game, learner.act, agents, key, episodes)
            results.append({"match": match, "roles": summarise(learner.game, played)})
        if self.json:
            about = {
                "run": str(self.run_folder),
                "game": learner.game.name,
                "population": str(learner.game.population),
                "method": run.setting("method"),
                "episodes": episodes,
            }
            print(json.dumps({**about, "matches": results}, indent=2))
        else:
            print_evaluation(learner.game, results)


def chosen_matches(run: Run, match: int | None) -> list[int]:
    number = whole_number("matches", run.setting("matches"), 1, training.MAX_MATCHES)
    if match is None:
        return list(range(number))
    return [whole_number("match", match, 0, number - 1)]


def print_evaluation(game: games.Game, results: list[dict[str, Any]]) -> None:
    """A block per match and a line per statistic: fits a narrow terminal."""
    console = Console(highlight=False)
    per = "team" if len(game.roles) > 1 else "agent"
    console.print(
        f"{game.name} {game.population}: means per {per} and episode ± standard error", style="bold"
    )
    for result in results:
        table = Table(box=None, padding=(0, 2), header_style="")
        table.add_column(f"match {result['match']}", no_wrap=True)
        for role in result["roles"]:
            colour = game.role(role).colour
            table.add_column(f"[{colour}]●[/] {role}", justify="right", no_wrap=True)
        columns = list(result["roles"].values())
        for name in columns[0]:
            if any(column[name]["mean"] or column[name]["error"] for column in columns):
                cells = (f"{c[name]['mean']:.2f} ± {c[name]['error']:.2f}" for c in columns)
                table.add_row(name, *cells)
        console.print(table)


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

    match: int = 0
    """Which match of the run plays."""

    seed: int = 0
    """Fixes the episode."""

    title: str | None = None
    """A heading for the page."""

    def run(self) -> None:
        replay.check_destination(self.out)
        if self.source.lower().endswith(".json"):
            self.refuse("the recorded replay", "population", "players", "match", "seed")
            recording = replay.load(Path(self.source))
        else:
            game, act, title = self.of_game() if self.is_game() else self.of_run()
            seed = whole_number("seed", self.seed, 0, MAX_SEED)
            recording = record(game, act, jax.random.key(seed), title)
        if self.title is not None:
            recording = dataclasses.replace(recording, title=self.title)
        replay.write(recording, self.out)
        what = f"{recording.game} {recording.population}, {recording.steps} steps"
        print(f"wrote {self.out}: {what}")

    def is_game(self) -> bool:
        return self.source in games.GAMES or not Path(self.source).is_dir()

    def of_game(self) -> tuple[games.Game, Act, str]:
        self.refuse("the game", "match")
        game = games.make(self.source, self.population)
        return game, PLAYERS[self.players](game), f"{self.players} players".capitalize()

    def of_run(self) -> tuple[games.Game, Act, str]:
        self.refuse("the run", "players")
        run = Run.open(Path(self.source))
        learner = training.trained(run, self.population)
        (match,) = chosen_matches(run, self.match)
        agents = training.load_agents(run, match, learner)

        def act(key: jax.Array, world: games.World) -> jax.Array:
            batch = jax.tree.map(lambda x: x[..., None], world)
            return learner.act(key, agents, batch)[..., 0]

        return learner.game, act, f"{run.setting('method')}, match {match}"

    def refuse(self, what: str, *options: str) -> None:
        for option in options:
            value = getattr(self, option)
            if value != getattr(Replay, option):
                raise InputError(
                    f"--{option} {value} does not go with {what} {self.source}: leave it out"
                )


Command = (
    Annotated[Games, tyro.conf.subcommand("games")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
)
