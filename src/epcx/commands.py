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

from epcx import demo, games, presets, trained, trainer
from epcx.engines.arena import Arena
from epcx.engines.devices import use_all_cores
from epcx.errors import MAX_SEED, InputError, whole_number
from epcx.evaluation.evaluate import summarise
from epcx.evaluation.scripted import PLAYERS, Act
from epcx.evolution import lineage
from epcx.interrupts import Interrupts
from epcx.reports import replay
from epcx.reports.family import print_lineage
from epcx.reports.progress import EpisodeProgress
from epcx.reports.recording import record
from epcx.reports.tables import print_comparison, print_evaluation, print_plan, print_result
from epcx.runs.files import json_digest
from epcx.runs.run import Run
from epcx.training import Training, plan

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
    """Train agents for a game, by EPC or another method, and keep them as a run."""

    training: Annotated[Training, tyro.conf.arg(name="")]

    preset: presets.Preset = "paper"
    """Where the other defaults come from: paper (the paper's schedule), quick (minutes on a
    laptop) or smoke (seconds, to see whether it works)."""

    budget: presets.Budget = "lineage"
    """Episodes of methods without a curriculum, by default: as many as EPC has accumulated along
    one lineage, or in total, in all its matches."""

    out: Path | None = None
    """The folder of the run; by default in runs/, named after game, population, method and seed."""

    checkpoint_minutes: float = 3.0
    """Between two checkpoints, at least."""

    tensorboard: bool = False
    """Write the metrics for TensorBoard, too (needs the extra `track`)."""

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
        use_all_cores()
        pause = checkpoint_seconds(self.checkpoint_minutes)
        rows = plan(self.training)
        if self.dry_run:
            print_plan(self.training, rows, self.json)
            return
        last = rows[-1].population
        name = f"{self.training.game}-{last}-{self.training.method}-seed{self.training.seed}"
        folder = self.out or Path("runs") / name
        with EpisodeProgress() as progress, Interrupts() as interrupts:
            run = trainer.train(
                self.training, folder, self.tensorboard, progress, interrupts, pause
            )
        print_result(run, self.json)


@dataclass(frozen=True)
class Resume:
    """Go on with a training that was interrupted or killed."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    checkpoint_minutes: float = 3.0
    """Between two checkpoints, at least."""

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> None:
        use_all_cores()
        pause = checkpoint_seconds(self.checkpoint_minutes)
        with EpisodeProgress() as progress, Interrupts() as interrupts:
            run = trainer.resume(self.run_folder, progress, interrupts, pause)
        print_result(run, self.json)


def checkpoint_seconds(minutes: float) -> float:
    if not 0 <= minutes < float("inf"):
        raise InputError(f"checkpoint-minutes {minutes} is negative or no number")
    return 60 * minutes


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
class Evaluate:
    """Let the agents of a run play, and count what they get and do."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""

    episodes: int = 2_000
    """Episodes per match."""

    population: str | None = None
    """Play at this population, by default the last stage's. Where a role has more seats than
    agents, agents take several (attention networks only)."""

    stage: str | None = None
    """The stage whose agents play, such as 6-4; by default that of the population, or the last."""

    match: int | None = None
    """One match: match 0 has the best set of each role. By default all that were kept."""

    seed: int = 0
    """Fixes the episodes."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        use_all_cores()
        episodes = whole_number("episodes", self.episodes, 1, MAX_EVALUATION)
        key = jax.random.key(whole_number("seed", self.seed, 0, MAX_SEED))
        run = Run.open(self.run_folder)
        learner = trained.learner_of(run, self.population)
        game = learner.game
        stage = trained.stage_of(run, str(game.population), self.stage)
        chosen = trained.matches_of(run, stage, self.match)
        sets = [trained.load_agents(run, learner, stage, match) for match in chosen]
        played = Arena(game, learner.act).play(sets, key, episodes)
        results = [
            {"match": match, "roles": summarise(game, counts)}
            for match, counts in zip(chosen, played, strict=True)
        ]
        if self.json:
            about = {
                "run": str(self.run_folder),
                "game": game.name,
                "population": str(game.population),
                "stage": stage,
                "method": run.setting("method"),
                "episodes": episodes,
            }
            print(json.dumps({**about, "matches": results}, indent=2))
        else:
            print_evaluation(game, results)


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
        self.refuse("the game", "stage", "match")
        game = games.make(self.source, self.population)
        return game, PLAYERS[self.players](game), f"{self.players} players".capitalize()

    def of_run(self) -> tuple[games.Game, Act, str]:
        self.refuse("the run", "players")
        run = Run.open(Path(self.source))
        learner = trained.learner_of(run, self.population)
        stage = trained.stage_of(run, str(learner.game.population), self.stage)
        (match,) = trained.matches_of(run, stage, self.match)
        agents = trained.load_agents(run, learner, stage, match)

        def act(key: jax.Array, world: games.World) -> jax.Array:
            batch = jax.tree.map(lambda x: x[..., None], world)
            return learner.act(key, agents, batch)[..., 0]

        method = str(run.setting("method"))
        return learner.game, act, f"{method} of stage {stage}, match {match}"

    def refuse(self, what: str, *options: str) -> None:
        for option in options:
            value = getattr(self, option)
            if value != getattr(Replay, option):
                raise InputError(
                    f"--{option} {value} does not go with {what} {self.source}: leave it out"
                )


@dataclass(frozen=True)
class Demo:
    """Grow collectors by a small curriculum, and compare them with training from scratch."""

    out: Path = Path("demo")
    """The folder for runs and pictures. What is there already is used."""

    preset: presets.Preset = "quick"
    """How long it takes: quick (minutes), smoke (a minute, and nothing is learnt) or paper."""

    def run(self) -> None:
        use_all_cores()
        with EpisodeProgress() as progress, Interrupts() as interrupts:
            runs = demo.train_all(self.out, self.preset, progress, interrupts)
        console = Console(highlight=False)
        print_comparison(demo.compare(runs), console)
        console.print("\n[bold]Where the best set comes from[/bold]")
        print_lineage(lineage.Lineage.from_json(runs["epc"].lineage()), console)
        page = self.out / "collectors.html"
        Replay(str(runs["epc"].path), page, title="Collectors grown by EPC").run()
        print(f"open {page} in a browser")


Command = (
    Annotated[Games, tyro.conf.subcommand("games")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Lineage, tyro.conf.subcommand("lineage")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
    | Annotated[Digest, tyro.conf.subcommand("digest")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
)
