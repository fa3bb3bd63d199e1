"""Commands that measure and compare: evaluation, cross-play, reports, the paper's experiments."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from epcx import games, library, presets, reproduce
from epcx.callbacks import Callback
from epcx.concurrent_runs import MAX_AT_ONCE, leave_memory
from epcx.errors import InputError, RunError, printable, whole_number
from epcx.execution.execution_options import ExecutionOptions
from epcx.methods import Budget
from epcx.options import Flatten, Positional
from epcx.reports.terminal import print_crossplay, print_evaluation, print_tasks
from epcx.runs.run import RunFolder
from epcx.teams import MAX_EPISODES
from epcx.trainer import CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Evaluate:
    """Play the agents of a run, and show their rewards and statistics."""

    run_folder: Annotated[Path, Positional("RUN")]
    """The folder of a run, or hub:NAME (see `epcx teams`)."""

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

    greedy: bool = False
    """Take the most probable actions; by default they are sampled, as in the paper."""

    density: games.Density | None = None
    """constant (the world grows with the population) or paper, by default as it was trained."""

    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        found = library.evaluate(
            self.run_folder,
            episodes=self.episodes,
            population=self.population,
            stage=self.stage,
            match=self.match,
            seed=self.seed,
            greedy=self.greedy,
            density=self.density,
        )
        if self.json:
            print(json.dumps(found.to_json(), indent=2))
        else:
            game = games.make(found.game, found.population, **found.options)
            print_evaluation(game, found.matches, found.paper, found.stage)


@dataclass(frozen=True)
class Crossplay:
    """Play every player against every other, in every role, and show the rewards."""

    players: Annotated[tuple[str, ...], Positional("PLAYER")]
    """Runs (folders, or hub:NAME), and the fixed players `scripted` and `random`. RUN@6-4 takes the
    agents of stage 6-4, RUN@6-4:1 those of its match 1; by default the best of the population's
    stage, or the last."""

    population: str | None = None
    """How many agents each role has, by default as in the last stage of the first run. Where a
    role has more seats than agents, agents take several (attention networks only)."""

    episodes: int = 10_000
    """Episodes of each pairing."""

    per_agent: bool = False
    """Show means per agent instead of team sums."""

    seed: int = 0
    """Fixes the episodes, which are the same for all pairings."""

    density: games.Density | None = None
    """constant (the world grows with the population) or paper, by default as runs were trained."""

    json: bool = False
    """Print everything as JSON."""

    def run(self) -> None:
        played = library.crossplay(
            self.players,
            population=self.population,
            episodes=self.episodes,
            seed=self.seed,
            density=self.density,
        )
        if self.json:
            print(json.dumps(played.to_json(), indent=2))
        else:
            game = games.make(played.game, played.population, **played.options)
            print_crossplay(game, played, self.per_agent)


@dataclass(frozen=True)
class Report:
    """Compare runs of one game in a page with scores, cross-play, curves and replays."""

    run_folders: Annotated[tuple[Path, ...], Positional("RUN")]
    """Folders of finished runs, or hub:NAME: any methods, populations and seeds."""

    out: Path = Path("report")
    """The folder for the page and its tables and figures."""

    episodes: int = 10_000
    """Episodes of each pairing."""

    title: str | None = None
    """A heading for the page."""

    json: bool = False
    """Print the results of all games as JSON."""

    def run(self) -> None:
        written = library.report(
            self.run_folders, out=self.out, episodes=self.episodes, title=self.title
        )
        print_report(written, self.json)


def print_report(written: library.Report, as_json: bool) -> None:
    from epcx.reports.summary import print_scores  # matplotlib takes half a second

    if as_json:
        print(json.dumps([result.to_json() for result in written.data.results], indent=1))
        return
    print_scores(written.data)
    print(f"wrote {printable(written.page)}; its tables and figures are beside it")


@dataclass(frozen=True)
class Reproduce:
    """Train all methods of the paper for one game, compare them, and write the report.

    Runs that exist already are used, and interrupted ones are resumed.
    """

    game: Annotated[str, Positional("GAME")]
    """A game (see `epcx games`)."""

    preset: presets.Preset = "paper"
    """paper (the paper's schedule), best (the same with better settings), large (up to hundreds
    of agents, for a GPU), quick (minutes on a laptop) or smoke (to see whether it works)."""

    methods: tuple[str, ...] = ()
    """By default the five that the paper compares."""

    population: tuple[str, ...] = ()
    """One for each stage; by default the preset's."""

    seeds: int | None = None
    """Trainings of each method, by default the paper's three, in smaller presets one. More can be
    added later."""

    budget: Budget = "lineage"
    """lineage (the paper's comparison: methods from scratch get as many episodes as EPC has
    accumulated along one lineage), or total (beside it a control with equal total episodes: as many
    such matches from scratch as EPC's episodes in all its matches amount to, of which the fittest
    is taken)."""

    episodes: int | None = None
    """Episodes of each game of the evaluation; by default 10,000, less in smaller presets."""

    out: Path | None = None
    """The folder for runs and report; by default in reproductions/, named after game and preset."""

    at_once: int = 1
    """How many runs train at the same time, each in a process of its own with its share of the
    devices: for runs that leave room on a GPU, or for one run per GPU or core."""

    execution: Annotated[ExecutionOptions, Flatten] = field(default_factory=ExecutionOptions)

    dry_run: bool = False
    """Print the plan, and do nothing."""

    json: bool = False
    """Print the plan, or the results of all games, as JSON."""

    def run(self) -> None:
        if whole_number("at-once", self.at_once, 1, MAX_AT_ONCE) > 1:
            self.check_at_once()  # before a game of one's own is imported, which may use JAX
        game = games.find(self.game)
        folder = self.out or Path("reproductions") / f"{game.name}-{self.preset}"
        episodes = reproduce.EPISODES[self.preset] if self.episodes is None else self.episodes
        whole_number("episodes", episodes, 1, MAX_EPISODES)
        tasks = reproduce.plan(
            folder / "runs",
            self.game,
            self.preset,
            self.methods,
            self.population,
            self.seeds,
            self.budget,
        )
        if self.dry_run:
            print_tasks(tasks, self.json)
            return
        from epcx.reports.report import make_folder  # matplotlib takes half a second

        make_folder(folder / "report")  # what is wrong with it is found before days of training
        with library.progress_bar(None) as callback:
            runs, failures = self.train(folder / "runs", tasks, callback)
        if runs:
            title = f"epcx on {game.name}, preset {self.preset}"
            paths = [run.path for run in runs]
            written = library.report(paths, out=folder / "report", episodes=episodes, title=title)
            print_report(written, self.json)
        if failures:
            raise RunError(f"{len(failures)} of {len(tasks)} runs failed: {'; '.join(failures)}")

    def check_at_once(self) -> None:
        self.execution.check()
        if self.execution.engine != "local":
            raise InputError(
                f"at-once {self.at_once} does not go with engine {self.execution.engine}, which "
                "trains the matches of a run at the same time"
            )
        leave_memory()

    def train(
        self, folder: Path, tasks: list[reproduce.Task], callback: Callback
    ) -> tuple[list[RunFolder], list[str]]:
        if self.at_once == 1:
            with self.execution.executor(CHECKPOINT_SECONDS) as executor:
                return reproduce.train_all(folder, tasks, executor, callback)
        return reproduce.train_at_once(
            folder, tasks, self.at_once, self.execution.devices, callback
        )
