"""epcx as a library: train, resume, load, evaluate, crossplay, report and replay.

The command line is a thin layer over these functions.
"""

import contextlib
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax

from epcx import config_file, estimate, games, methods, presets, tracking, trainer
from epcx.callbacks import Callback
from epcx.config import TrainConfig
from epcx.errors import MAX_SEED, InputError, nearest, printable, whole_number
from epcx.evaluation.players import FIXED_PLAYERS, FixedPlayers, PlayerSource
from epcx.evaluation.study import MAIN_METHOD, Study, density_of, game_of
from epcx.evaluation.summary import Summary
from epcx.evaluation.tournament import CrossPlay, Tournament
from epcx.evaluation.tournament import crossplay as play_all
from epcx.evolution.lineage import Lineage
from epcx.execution.devices import use_all_cores
from epcx.execution.execution_options import ExecutionOptions
from epcx.games import Density, Game
from epcx.hub import is_hub_name, resolve
from epcx.reports import paper
from epcx.reports.progress import EpisodeProgress
from epcx.reports.recording import record
from epcx.reports.replay import Replay, check_destination, to_html, write
from epcx.reports.replay import load as load_replay
from epcx.runs.run import RunFolder
from epcx.teams import (
    MAX_EPISODES,
    RunPlayers,
    Team,
    matches_of,
    open_team,
    split_source,
    stage_of,
)


class Run:
    """A training and what it has produced: settings, metrics, lineage, and teams that play."""

    def __init__(self, path: str | Path):
        self.folder = RunFolder.open(resolve(path))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.of(self.folder)

    @property
    def result(self) -> dict[str, Any]:
        """How it ended; empty while it has not."""
        return self.folder.result

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return self.folder.metrics()

    def lineage(self) -> Lineage:
        return Lineage.from_json(self.folder.lineage())

    def team(
        self,
        population: str | None = None,
        stage: str | None = None,
        match: int = 0,
        density: Density | None = None,
    ) -> Team:
        """See `load`."""
        return open_team(self.folder, population, stage, match, density)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        config = self.config
        ended = self.result.get("ended", "not ended")
        facts = f"{config.game}, {config.method}, {' '.join(config.populations)}: {ended}"
        return f"<p><b>{html.escape(str(self.path))}</b>: {html.escape(facts)}</p>"


def configure(
    game: str | type[Game] | None = None,
    *,
    config: str | Path | None = None,
    method: str | None = None,
    preset: presets.Preset | None = None,
    learner: str | None = None,
    population: str | Iterable[str] = (),
    budget: methods.Budget | None = None,
    **settings: Any,
) -> TrainConfig:
    """The settings of a training: those of a preset (by default the paper's), over them those of
    the file `config`, such as the config.json of a run, and over them others by name.

    Settings are the fields of `TrainConfig` and of the learner's config, such as `episodes=1000`
    and `learning_rate=0.003`.
    """
    populations = (population,) if isinstance(population, str) else tuple(map(str, population))
    chosen: dict[str, Any] = {"game": game, "method": method, "learner": learner, "budget": budget}
    chosen = {
        k: v for k, v in {**chosen, "population": populations or None}.items() if v is not None
    }
    path = None if config is None else Path(config)
    return with_settings(config_file.make_config(path, preset, chosen), settings)


def with_settings(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """Other values of fields of `TrainConfig` and of the learner's config."""
    own = {field.name for field in fields(config)} - {"game", "learner_config"}
    theirs = {field.name for field in fields(config.learner_config)}
    for name in settings:
        if name not in own | theirs:
            raise InputError(f"unknown setting {name!r}{nearest(name, own | theirs)}")
    learner_config = replace(
        config.learner_config, **{k: v for k, v in settings.items() if k in theirs}
    )
    return replace(
        config, learner_config=learner_config, **{k: v for k, v in settings.items() if k in own}
    )


def train(
    game: str | type[Game] | TrainConfig | None = None,
    *,
    out: str | Path | None = None,
    callback: Callback | None = None,
    execution: ExecutionOptions | None = None,
    checkpoint_minutes: float = trainer.CHECKPOINT_SECONDS / 60,
    track: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Trains a new run in the folder `out`, by default in runs/.

    `game` is a name, "module:Class" or a class, with settings as in `configure`; or all of them as
    a `TrainConfig`. Progress goes to `callback`, by default a bar on the terminal, and metrics to
    the trackers that `track` names, "tensorboard" and "wandb".

    Without a preset, config file or `TrainConfig`, the paper's schedule is refused if it takes
    more than about an hour on this machine.
    """
    if isinstance(game, TrainConfig):
        config, asked_for = replace(game, **settings), True
    else:
        config = configure(game, **settings)
        asked_for = any(settings.get(name) is not None for name in ("preset", "config"))
    return train_config(config, asked_for, out, callback, execution, checkpoint_minutes, track)


def train_config(
    config: TrainConfig,
    asked_for: bool,
    out: str | Path | None = None,
    callback: Callback | None = None,
    execution: ExecutionOptions | None = None,
    checkpoint_minutes: float = trainer.CHECKPOINT_SECONDS / 60,
    track: Sequence[str] = (),
) -> Run:
    """As `train`; a schedule that was not asked for is refused if it takes long."""
    use_all_cores()
    execution = execution or ExecutionOptions()
    seconds = checkpoint_seconds(checkpoint_minutes)
    folder = default_folder(config) if out is None else Path(out)
    with (
        tracking.Tracking(track) as trackers,
        execution.executor(seconds) as executor,
        progress_bar(callback) as shown,
    ):
        if not asked_for:
            config.check_memory(executor)
            estimate.check_default(config, execution)
        run = Run(trainer.train(config, folder, executor, shown, seconds, trackers).path)
        trackers.show(lambda: ending(run))
    return run


def resume(
    run: str | Path | Run,
    *,
    callback: Callback | None = None,
    execution: ExecutionOptions | None = None,
    checkpoint_minutes: float = trainer.CHECKPOINT_SECONDS / 60,
) -> Run:
    """Resumes a training that was interrupted or killed; trackers follow it as before."""
    seconds = checkpoint_seconds(checkpoint_minutes)
    with (
        tracking.Tracking() as trackers,
        (execution or ExecutionOptions()).executor(seconds) as executor,
        progress_bar(callback) as shown,
    ):
        resumed = Run(trainer.resume(path_of(run), executor, shown, seconds, trackers).path)
        trackers.show(lambda: ending(resumed))
    return resumed


def load(
    run: str | Path | Run,
    population: str | None = None,
    stage: str | None = None,
    match: int = 0,
    density: Density | None = None,
) -> Team:
    """The agents of a run, or of hub:NAME, at a population, by default its last stage's, and at a
    density, by default the run's.

    `stage` names the stage that trained them, by default that of the population, or the last;
    match 0 has the best set of each role.
    """
    return open_team(RunFolder.open(path_of(run)), population, stage, match, density)


@dataclass(frozen=True)
class Evaluation:
    """What agents get and do: per match, role and statistic the mean and its standard error."""

    run: str
    game: str
    population: str
    stage: str
    method: str
    episodes: int
    paper: dict[str, dict[str, float]]  # what the paper reports of the method, by role
    matches: list[dict[str, Any]]
    greedy: bool = False  # whether actions are the most probable ones, not samples
    options: dict[str, Any] = field(default_factory=dict)  # of the game

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def roles(self, match: int = 0) -> Summary:
        """Of the k-th match that was played."""
        return self.matches[match]["roles"]


def evaluate(
    run: str | Path | Run,
    *,
    episodes: int = 2_000,
    population: str | None = None,
    stage: str | None = None,
    match: int | None = None,
    seed: int = 0,
    greedy: bool = False,
    density: Density | None = None,
) -> Evaluation:
    """Lets the agents of a run play; all matches that were kept, or one.

    They sample their actions, as in the paper, unless `greedy`: then they take the most probable.
    The density is by default the run's.
    """
    use_all_cores()
    whole_number("episodes", episodes, 1, MAX_EPISODES)
    whole_number("seed", seed, 0, MAX_SEED)
    folder = RunFolder.open(path_of(run))
    config = TrainConfig.of(folder)
    game = config.at(population, density)
    chosen = stage_of(folder, str(game.population), stage)
    tournament, matches = Tournament(game, seed), []
    for number in matches_of(folder, chosen, match):
        source = RunPlayers(str(number), folder, chosen, number, greedy)
        players = {role: source.player(game, role) for role in game.members}
        matches.append({"match": number, "roles": tournament.play(players, episodes)})
    return Evaluation(
        run=str(folder.path),
        game=game.reference,
        population=str(game.population),
        stage=chosen,
        method=config.method,
        episodes=episodes,
        paper=in_the_paper(game, config.method),
        matches=matches,
        greedy=greedy,
        options=games.options_of(game),
    )


def crossplay(
    players: Sequence[str | Path | Run],
    *,
    population: str | None = None,
    episodes: int = 10_000,
    seed: int = 0,
    density: Density | None = None,
    callback: Callback | None = None,
) -> CrossPlay:
    """Plays every player against every other, in every role.

    Players are runs, RUN@STAGE, RUN@STAGE:MATCH, "scripted" and "random". The density is by default
    that of the runs.
    """
    use_all_cores()
    whole_number("episodes", episodes, 1, MAX_EPISODES)
    whole_number("seed", seed, 0, MAX_SEED)
    sources = [player_source(player) for player in players]
    runs = [source.run for source in sources if isinstance(source, RunPlayers)]
    if not runs:
        raise InputError("no run is named: name at least one run folder")
    configs = [TrainConfig.of(run) for run in runs]
    game = games.make(
        game_of(configs),
        population or configs[0].populations[-1],
        density or density_of(configs),
    )
    with progress_bar(callback) as shown:
        counter = Counter(shown, f"cross-play at {game.population}", episodes)
        return play_all(Tournament(game, seed), with_short_names(sources), episodes, counter)


class Report(NamedTuple):
    """A report that was written: its page, and what it is made of."""

    page: Path
    data: Any


def report(
    runs: Sequence[str | Path | Run],
    *,
    out: str | Path = "report",
    episodes: int = 10_000,
    title: str | None = None,
    callback: Callback | None = None,
) -> Report:
    """Compares runs of one game in a page with scores, cross-play, curves and replays."""
    from epcx.reports.report import write_report  # matplotlib takes half a second

    use_all_cores()
    whole_number("episodes", episodes, 1, MAX_EPISODES)
    study = Study([RunFolder.open(path_of(run)) for run in runs])
    with progress_bar(callback) as shown:
        counter = Counter(shown, "evaluation", episodes)
        heading = title or f"epcx on {study.game.name}"
        return Report(*write_report(study, Path(out), episodes, heading, counter))


def replay(
    source: str | Path | Run | type[Game],
    *,
    out: str | Path | None = None,
    population: str | None = None,
    players: str | None = None,
    stage: str | None = None,
    match: int | None = None,
    seed: int | None = None,
    title: str | None = None,
    greedy: bool = False,
    density: Density | None = None,
) -> Replay:
    """Plays an episode of a run or of a game, or reads a recorded one (.json).

    A game is played by `players`, "scripted" (by default, if it has them) or "random", at the
    density "paper" unless another is given; a run by default at its own. With `out` it is written
    as a page, an animation, a picture or data, as the ending of the name says.
    """
    if out is not None:
        check_destination(Path(out))
    options = {"population": population, "players": players, "stage": stage, "match": match}
    options |= {"seed": seed, "greedy": "" if greedy else None, "density": density}

    def refuse(what: str, *names: str) -> None:
        for name in names:
            if options[name] is not None:
                given = f"--{name} {options[name]}".rstrip()
                raise InputError(f"{given} does not go with {what} {source}: leave it out")

    if isinstance(source, str | Path) and str(source).lower().endswith(".json"):
        refuse("the recorded replay", *options)
        recording = load_replay(Path(source))
    else:
        key = jax.random.key(whole_number("seed", seed or 0, 0, MAX_SEED))
        if isinstance(source, Run) or is_run_name(source):
            refuse("the run", "players")
            folder = RunFolder.open(path_of(source))
            team = open_team(folder, population, stage, match or 0, density)
            game, chosen = team.game, team.acting(greedy)
            name = (
                f"run {printable(folder.path.resolve().name)}: {folder.setting('method')} of stage "
                f"{team.stage}, match {match or 0}"
            )
        else:
            refuse("the game", "stage", "match", "greedy")
            named = str(source) if isinstance(source, Path) else source
            game = games.make(named, population, density or "paper")
            fixed = FixedPlayers(players or ("scripted" if game.has_script else "random"))
            chosen = {role: fixed.player(game, role) for role in game.members}
            name = f"{fixed.name} players".capitalize()
        recording = record(game, chosen, key, name)
    if title is not None:
        recording = replace(recording, title=title)
    if out is not None:
        write(recording, Path(out))
    return recording


# Details


def ending(run: Run) -> tracking.Ending:
    """With an episode of its best team, unless the game has no scene to draw."""
    from epcx.reports.drawing import to_png  # Pillow takes time to import

    try:
        episode = replay(run)
    except InputError:
        return tracking.Ending(run.result, None, None)
    return tracking.Ending(run.result, to_html(episode), to_png(episode))


@contextlib.contextmanager
def progress_bar(callback: Callback | None) -> Iterator[Callback]:
    """The callback itself, or a bar on the terminal."""
    if callback is not None:
        yield callback
    else:
        with EpisodeProgress() as bar:
            yield bar


def in_the_paper(game: Game, method: str) -> dict[str, dict[str, float]]:
    """What the paper reports of a method's agents among themselves, by role and statistic.

    In games with opponents these are EPC's only: all scores of the paper are against them.
    """
    if games.options_of(game) or (len(game.roles) > 1 and method != MAIN_METHOD):
        return {}
    found: dict[str, dict[str, float]] = {}
    for name in paper.STATISTICS:
        scores = paper.scores(game.name, name)
        for role in game.members:
            for shown in (role, " and ".join(game.members)):  # the latter where teams are the same
                by_method = scores.get((str(game.population), shown), {})
                if method in by_method:
                    found.setdefault(role, {})[name] = by_method[method]
    return found


class Counter:
    """Shows games of as many episodes each as the progress of one stage."""

    def __init__(self, callback: Callback, name: str, episodes: int):
        self.callback, self.name, self.episodes = callback, name, episodes
        self.begun = False

    def __call__(self, done: int, total: int) -> None:
        if not self.begun:
            self.callback.on_stage(self.name, total * self.episodes)
            self.begun = True
        self.callback.on_progress(done * self.episodes, {})


def path_of(run: str | Path | Run) -> Path:
    """Its folder; hub:NAME is a run of the hub."""
    return run.path if isinstance(run, Run) else resolve(run)


def is_run_name(source: object) -> TypeGuard[str | Path]:
    """Whether a run is named, and not a game."""
    return isinstance(source, str | Path) and (is_hub_name(source) or Path(source).is_dir())


def default_folder(config: TrainConfig) -> Path:
    name = config.games[-1].name
    return Path("runs") / f"{name}-{config.populations[-1]}-{config.method}-seed{config.seed}"


def checkpoint_seconds(minutes: float) -> float:
    if not 0 <= minutes < float("inf"):
        raise InputError(f"checkpoint-minutes {minutes} is negative or no number")
    return 60 * minutes


def player_source(player: str | Path | Run) -> PlayerSource:
    """A run, perhaps with a stage and a match; or fixed players."""
    text = str(player.path if isinstance(player, Run) else player)
    if text in FIXED_PLAYERS and not Path(text).is_dir():
        return FixedPlayers(text)
    folder, place = split_source(text)
    stage, _, match = place.partition(":")
    if match and not match.isdecimal():
        raise InputError(f"match {match!r} in {text} is not a whole number: write {folder}@6-4:1")
    if not Path(folder).exists() and (meant := nearest(text, FIXED_PLAYERS)):
        raise InputError(f"{text} is no folder of a run, nor a fixed player{meant}")
    return RunPlayers(text, RunFolder.open(resolve(folder)), stage or None, int(match or 0))


def with_short_names(sources: Sequence[PlayerSource]) -> list[PlayerSource]:
    """With runs under the shortest names that are distinct."""
    given = [source.name for source in sources]
    for name in given:
        if given.count(name) > 1:
            raise InputError(f"{name} is named twice: name every player once")

    def method(source: RunPlayers) -> str:
        return TrainConfig.of(source.run).method

    def last_part(source: RunPlayers) -> str:
        return Path(source.name).name

    for shorten in (method, last_part, attrgetter("name")):
        named = [
            replace(source, name=shorten(source)) if isinstance(source, RunPlayers) else source
            for source in sources
        ]
        if len({source.name for source in named}) == len(named):
            break
    return named
