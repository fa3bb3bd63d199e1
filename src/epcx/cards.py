"""The card of a published run: how it was trained, how well it plays, and how to use it."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, get_args

from epcx import presets
from epcx.config import TrainConfig
from epcx.errors import one_line, printable
from epcx.evaluation.players import Player, fixed_players
from epcx.evaluation.tournament import Tournament
from epcx.games import Game
from epcx.hub import Score
from epcx.presets import Preset
from epcx.runs.run import RunFolder, read_json
from epcx.teams import RunPlayers
from epcx.typed_json import from_json

CARD = "card.json"
README = "README.md"
TEAM = "team"
LICENCE = "Apache-2.0"
VERSIONS = ("epcx", "jax", "python")


@dataclass(frozen=True)
class Card:
    """What the files of a run do not say."""

    licence: str = LICENCE
    episodes: int = 0  # behind every score
    scores: tuple[Score, ...] = ()

    @classmethod
    def of(cls, run: RunFolder) -> "Card | None":
        """That of a published run, if it has one."""
        found = read_json(run.path, CARD)
        return found and from_json(found, cls, f"{run.path / CARD} is damaged")


def measure(run: RunFolder, episodes: int) -> tuple[Score, ...]:
    """The agents of every stage with themselves and with fixed players, and these alone."""
    config = TrainConfig.of(run)
    scores: list[Score] = []
    for stage in run.stages():
        game = config.at(stage)
        tournament = Tournament(game)
        team, fixed = RunPlayers(TEAM, run, stage), fixed_players(game)[0]
        players: dict[str, dict[str, Player]] = {
            source.name: {role: source.player(game, role) for role in game.members}
            for source in (team, fixed)
        }
        for role in game.members:
            for mine, theirs in ((TEAM, TEAM), (TEAM, fixed.name), (fixed.name, fixed.name)):
                if len(game.roles) == 1 and mine != theirs:
                    continue
                chosen = {r: players[mine if r == role else theirs][r] for r in game.members}
                found = tournament.play(chosen, episodes)[role]["reward"]
                against = theirs if len(game.roles) > 1 else None
                scores.append(Score(stage, role, mine, against, found["mean"], found["error"]))
    return tuple(scores)


def headline(scores: Sequence[Score]) -> list[tuple[str, Score, Score | None]]:
    """At the largest population, of each role: the team with fixed players, and these alone."""
    if not scores:
        return []
    last = [score for score in scores if score.population == scores[-1].population]
    found = []
    for role in dict.fromkeys(score.role for score in last):
        mine = [s for s in last if s.role == role and s.player == TEAM and s.against != TEAM]
        fixed = [s for s in last if s.role == role and s.player != TEAM]
        found += [(role, score, next(iter(fixed), None)) for score in mine]
    return found


def to_json(card: Card) -> bytes:
    return (json.dumps(asdict(card), indent=1) + "\n").encode()


def to_markdown(run: RunFolder, card: Card) -> str:
    config = TrainConfig.of(run)
    game = config.at()
    lines = [
        f"# {game.name}: {config.method}, seed {config.seed}",
        "",
        f"{team_words(game)}, trained by epcx with the method `{config.method}`"
        + (f" at the populations {', '.join(config.populations)}." if config.grows else ".")
        + " The world grows with the population." * (config.density == "constant"),
        "",
        "## Use",
        "",
        "```",
        "import epcx",
        "",
        'team = epcx.load("FOLDER")  # this folder, or hub:NAME',
        "team.play(episodes=1_000)",
        "```",
        "",
        "On the command line: `epcx evaluate FOLDER`, `epcx replay FOLDER`. The folder has the",
        f"policies of {', '.join(run.stages())}, without critics.",
        "",
        *score_lines(game, card),
        "## Training",
        "",
        "```",
        train_command(config),
        "```",
        "",
        *training_lines(run),
        "",
        f"Licence: {card.licence}.",
        "",
    ]
    return "\n".join(map(printable, lines))


def team_words(game: Game) -> str:
    counts = zip(game.population.counts, game.roles, strict=True)
    return "A team of " + " and ".join(f"{n} {role.name} agents" for n, role in counts)


def score_lines(game: Game, card: Card) -> list[str]:
    """A table with a row for each population and role."""
    if not card.scores:
        return []
    fixed = next(score.player for score in card.scores if score.player != TEAM)
    columns: dict[tuple[str, str | None], str]
    columns = {(TEAM, None): "these agents", (fixed, None): f"{fixed} players"}
    if len(game.roles) > 1:
        columns = {
            (TEAM, TEAM): "against themselves",
            (TEAM, fixed): f"against {fixed} players",
            (fixed, fixed): f"{fixed} against {fixed}",
        }
    by_place = {(s.population, s.role, s.player, s.against): s for s in card.scores}
    rows = []
    for population, role in dict.fromkeys((s.population, s.role) for s in card.scores):
        found = [by_place[population, role, *column] for column in columns]
        cells = " | ".join(f"{s.mean:.2f} ± {s.error:.2f}" for s in found)
        rows.append(f"| {population} | {role} | {cells} |")
    per = "team" if len(game.roles) > 1 else "agent"
    return [
        "## Scores",
        "",
        f"Task reward per {per} and episode ± standard error; {card.episodes:,} episodes, actions "
        "are sampled.",
        "",
        f"| population | role | {' | '.join(columns.values())} |",
        "| --- | --- " + "| ---: " * len(columns) + "|",
        *rows,
        "",
    ]


def training_lines(run: RunFolder) -> list[str]:
    """Episodes, time, machine and versions, as far as they are known."""
    result, made = run.result, run.provenance
    facts = {
        "episodes along a lineage": grouped(result.get("episodes_along_a_lineage")),
        "episodes in total": grouped(result.get("episodes_in_total")),
        "seconds": grouped(result.get("seconds")),
        "device": f"{made.get('devices', 1)} x {made['device']}" if "device" in made else None,
        "versions": ", ".join(f"{name} {made[name]}" for name in VERSIONS if made.get(name)),
        "commit": made.get("commit"),
        "date": made.get("date"),
    }
    rows = [f"| {name} | {one_line(value)} |" for name, value in facts.items() if value]
    return ["| | |", "| --- | --- |", *rows]


def grouped(number: Any) -> str | None:
    return f"{round(number):,}" if isinstance(number, int | float) else None


def train_command(config: TrainConfig) -> str:
    """The command with these settings, by the preset from which the fewest of them differ."""
    options = {preset: differences(config, preset) for preset in get_args(Preset)}
    preset = min(options, key=lambda name: len(options[name]))
    words = ["epcx", "train", config.game, "--method", config.method, "--preset", preset]
    return shlex.join([*words, *options[preset], "--seed", str(config.seed)])


def differences(config: TrainConfig, preset: Preset) -> list[str]:
    """The options that lead from a preset to these settings."""
    usual = partial(presets.make_config, config.game, config.method, preset)
    default = usual(config.populations, config.budget, learner=config.learner)
    words = []
    if config.learner != usual().learner:
        words += option_words("learner", config.learner)
    if config.populations != usual().populations:
        words += option_words("population", config.populations)
    if config.budget != usual().budget:
        words += option_words("budget", config.budget)
    decided = {"population", "seed", "learner_config"}
    for ours, theirs in ((config, default), (config.learner_config, default.learner_config)):
        for name in (field.name for field in fields(ours) if field.name not in decided):
            value = getattr(ours, name)
            if value is not None and value != getattr(theirs, name):
                words += option_words(name, value)
    return words


def option_words(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{flag}", *map(str, values)]
