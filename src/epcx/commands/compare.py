"""Commands that measure and compare: evaluation, cross-play, reports, the paper's experiments."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import tyro

from epcx import games, presets, reproduce
from epcx.commands.where import Where
from epcx.engines.devices import use_all_cores
from epcx.errors import MAX_SEED, InputError, RunError, whole_number
from epcx.evaluation.players import SCRIPTS, Contestant
from epcx.evaluation.tournament import Tournament, crossplay
from epcx.interrupts import Interrupts
from epcx.reports import paper
from epcx.reports.progress import EpisodeProgress
from epcx.reports.tables import print_crossplay, print_evaluation, print_tasks
from epcx.runs.run import Run
from epcx.study import Study, game_of
from epcx.trained import MOST_PLAYED, Entrant, matches_of, stage_of
from epcx.training import Training


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
        episodes = whole_number("episodes", self.episodes, 1, MOST_PLAYED)
        seed = whole_number("seed", self.seed, 0, MAX_SEED)
        run = Run.open(self.run_folder)
        training = Training.of(run)
        game = games.make(training.game, self.population or training.population[-1])
        stage = stage_of(run, str(game.population), self.stage)
        tournament = Tournament(game, seed)
        results = []
        for match in matches_of(run, stage, self.match):
            entrant = Entrant(str(match), run, stage, match)
            sides = {role: entrant.side(game, role) for role in game.members}
            results.append({"match": match, "roles": tournament.play(sides, episodes)})
        published = in_the_paper(game, training.method)
        if self.json:
            about = {
                "run": str(self.run_folder),
                "game": game.name,
                "population": str(game.population),
                "stage": stage,
                "method": training.method,
                "episodes": episodes,
            }
            print(json.dumps({**about, "paper": published, "matches": results}, indent=2))
        else:
            print_evaluation(game, results, published)


def in_the_paper(game: games.Game, method: str) -> dict[str, float]:
    """What the paper reports of a method at this population, by statistic.

    Only of games without opponents: its other scores are against the paper's EPC.
    """
    if len(game.roles) > 1:
        return {}
    place = str(game.population), game.roles[0].name
    found = {name: paper.scores(game.name, name).get(place, {}) for name in paper.STATISTICS}
    return {name: scores[method] for name, scores in found.items() if method in scores}


@dataclass(frozen=True)
class Crossplay:
    """Let everybody play against everybody, in every role, and show who gets what."""

    players: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PLAYER")]
    """Runs, and the fixed players `scripted` and `random`. RUN@6-4 takes the agents of stage 6-4,
    RUN@6-4:1 those of its match 1; by default the best of the population's stage, or the last."""

    population: str | None = None
    """How many agents each role has, by default as in the last stage of the first run. Where a
    role has more seats than agents, agents take several (attention networks only)."""

    episodes: int = 10_000
    """Episodes of each pairing."""

    per_agent: bool = False
    """Show means per agent instead of team sums."""

    seed: int = 0
    """Fixes the episodes, which are the same for all pairings."""

    json: bool = False
    """Print everything as JSON."""

    def run(self) -> None:
        use_all_cores()
        episodes = whole_number("episodes", self.episodes, 1, MOST_PLAYED)
        seed = whole_number("seed", self.seed, 0, MAX_SEED)
        named = [contestant(player) for player in self.players]
        runs = [player.run for player in named if isinstance(player, Entrant)]
        if not runs:
            raise InputError("no run is named: name at least one run folder")
        trainings = [Training.of(run) for run in runs]
        game = games.make(game_of(trainings), self.population or trainings[0].population[-1])
        with EpisodeProgress() as progress:
            watch = progress.counter(f"cross-play at {game.population}", episodes)
            played = crossplay(Tournament(game, seed), distinct(named), episodes, watch)
        if self.json:
            print(json.dumps(played.to_json(), indent=2))
        else:
            print_crossplay(game, played, self.per_agent)


def contestant(text: str) -> Contestant:
    """A run, perhaps with a stage and a match; or fixed players."""
    for script in SCRIPTS:
        if text == script.name and not Path(text).is_dir():
            return script
    folder, at, place = text.rpartition("@")
    if not at or Path(text).is_dir():
        folder, place = text, ""
    stage, _, match = place.partition(":")
    if match and not match.isdecimal():
        raise InputError(f"match {match!r} in {text} is not a whole number: write {folder}@6-4:1")
    run = Run.open(Path(folder))
    return Entrant(text, run, stage or None, int(match or 0))


def distinct(players: Sequence[Contestant]) -> list[Contestant]:
    """With runs under the shortest names that tell all players apart."""
    given = [player.name for player in players]
    for name in given:
        if given.count(name) > 1:
            raise InputError(f"{name} is named twice: name every player once")
    for shorten in (method_of, last_part, attrgetter("name")):
        named = [
            replace(player, name=shorten(player)) if isinstance(player, Entrant) else player
            for player in players
        ]
        if len({player.name for player in named}) == len(named):
            break
    return named


def method_of(entrant: Entrant) -> str:
    return Training.of(entrant.run).method


def last_part(entrant: Entrant) -> str:
    return Path(entrant.name).name


@dataclass(frozen=True)
class Report:
    """Compare runs of one game in a page with scores, cross-play, curves and replays."""

    run_folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of finished runs: any methods, populations and seeds."""

    out: Path = Path("report")
    """The folder for the page and its tables and figures."""

    episodes: int = 10_000
    """Episodes of each pairing."""

    title: str | None = None
    """A heading for the page."""

    json: bool = False
    """Print the results of all games as JSON."""

    def run(self) -> None:
        use_all_cores()
        whole_number("episodes", self.episodes, 1, MOST_PLAYED)
        study = Study([Run.open(folder) for folder in self.run_folders])
        title = self.title or f"epcx on {study.name}"
        write(study, self.out, self.episodes, title, self.json)


def write(study: Study, folder: Path, episodes: int, title: str, as_json: bool) -> None:
    # Imported late: matplotlib takes half a second, which other commands do not need.
    from epcx.reports.report import write_report
    from epcx.reports.summary import print_scores

    with EpisodeProgress() as progress:
        watch = progress.counter("evaluation", episodes)
        page, findings = write_report(study, folder, episodes, title, watch)
    if as_json:
        print(json.dumps([result.to_json() for result in findings.results], indent=1))
        return
    print_scores(findings)
    print(f"wrote {page}; its tables and figures are beside it")


@dataclass(frozen=True)
class Reproduce:
    """Train all methods of the paper for one game, compare them, and write the report.

    What is there already is used, and what was interrupted goes on.
    """

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """A game (see `epcx games`)."""

    preset: presets.Preset = "paper"
    """paper (the paper's schedule), best (the same with better settings), quick (minutes on a
    laptop) or smoke (to see whether it works)."""

    methods: tuple[str, ...] = ()
    """By default all: epc, vanilla-pc, att-maddpg, mean-field, maddpg."""

    population: tuple[str, ...] = ()
    """One for each stage; by default the preset's."""

    seeds: int = 1
    """Trainings of each method. More can be added later."""

    budget: presets.Budget = "lineage"
    """Episodes of methods without a curriculum: as many as EPC has accumulated along one lineage,
    or in total, in all its matches."""

    episodes: int | None = None
    """Episodes of each game of the evaluation; by default 10,000, less in smaller presets."""

    out: Path | None = None
    """The folder for runs and report; by default in reproductions/, named after game and preset."""

    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)

    dry_run: bool = False
    """Print the plan, and do nothing."""

    json: bool = False
    """Print the plan, or the results of all games, as JSON."""

    def run(self) -> None:
        use_all_cores()
        game = games.make(self.game).name
        folder = self.out or Path("reproductions") / f"{game}-{self.preset}"
        episodes = reproduce.EPISODES[self.preset] if self.episodes is None else self.episodes
        whole_number("episodes", episodes, 1, MOST_PLAYED)
        tasks = reproduce.plan(
            folder / "runs",
            game,
            self.preset,
            self.methods,
            self.population,
            self.seeds,
            self.budget,
        )
        if self.dry_run:
            print_tasks(tasks, self.json)
            return
        with (
            self.where.site() as site,
            EpisodeProgress() as progress,
            Interrupts() as interrupts,
        ):
            runs, failures = reproduce.train_all(folder / "runs", tasks, progress, interrupts, site)
        if runs:
            title = f"epcx on {game}, preset {self.preset}"
            write(Study(runs), folder / "report", episodes, title, self.json)
        if failures:
            raise RunError(f"{len(failures)} of {len(tasks)} runs failed: {'; '.join(failures)}")
