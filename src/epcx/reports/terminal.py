"""Output of commands: plans, results and comparisons, for a terminal or as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx.config import PlannedStage, TrainConfig, plan_json
from epcx.errors import one_line, printable
from epcx.estimate import Estimate, format_duration
from epcx.evaluation.summary import Summary
from epcx.evaluation.tournament import CrossPlay
from epcx.execution.devices import format_bytes
from epcx.games import Game, options_of
from epcx.presets import name_settings
from epcx.reproduce import Task
from epcx.runs.run import RESULT, RunFolder
from epcx.typed_json import from_json


def print_plan(
    config: TrainConfig, rows: list[PlannedStage], estimate: Estimate, as_json: bool
) -> None:
    totals = plan_json(rows)
    if as_json:
        plan = {**totals, **estimate.to_json()}
        print(json.dumps({**config.to_json(), "plan": plan}, indent=2))
        return
    console = Console(highlight=False)
    sets = f", K = {config.sets}" if config.grows else ""
    density = f", density {config.density}" if config.density != "paper" else ""
    heading = f"{config.game}, {config.method}{sets}{density}, seed {config.seed}"
    console.print(heading, style="bold")
    table = Table(box=None, padding=(0, 1), header_style="")
    headings = ["stage", "matches", "episodes each", "in total", "updates each", "memory"]
    times = [format_duration(seconds) for seconds in estimate.stages]
    for column in headings + ["time"] * bool(times):
        table.add_column(column, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(
            row.population,
            f"{row.matches}",
            f"{row.episodes:,}",
            f"{row.episodes * row.matches:,}",
            f"{row.updates:,}",
            format_bytes(row.state_bytes),
            *times[number : number + 1],
        )
    console.print(table)
    console.print(
        f"episodes: {totals['episodes_along_a_lineage']:,} along a lineage, "
        f"{totals['episodes_in_total']:,} in total"
    )
    games = sum(row.fitness_games for row in rows)
    if games:
        console.print(f"fitness: {games} games of {config.fitness_episodes:,} episodes")
    if estimate.reason:
        console.print(f"time: no estimate, because {estimate.reason}")
    else:
        without = "compilation and fitness" if games else "compilation"
        console.print(
            f"time: about {format_duration(estimate.total)} on this machine if it is idle, give or "
            f"take a factor of 2 or 3, without {without}"
        )


@dataclass(frozen=True)
class Ending:
    """What is shown of a result."""

    ended: str
    seconds: float
    episodes_along_a_lineage: int
    episodes_in_total: int


def print_result(run: RunFolder, as_json: bool) -> None:
    result = run.result
    if as_json:
        print(json.dumps({"run": str(run.path), **result}, indent=2))
        return
    known = {field.name: result.get(field.name) for field in fields(Ending)}
    ending = from_json(known, Ending, f"{run.path / RESULT} is damaged")
    minutes, seconds = divmod(round(ending.seconds), 60)
    print(
        f"{one_line(ending.ended)}: {ending.episodes_along_a_lineage} episodes along a lineage, "
        f"{ending.episodes_in_total} in total, in {minutes} min {seconds} s; "
        f"try: epcx evaluate {printable(run.path)}"
    )


def print_evaluation(
    game: Game,
    results: list[dict[str, Any]],
    published: Mapping[str, Mapping[str, float]] | None,
    stage: str,
) -> None:
    """A table per match with a row per statistic, and the paper's numbers if there are any.

    Agents of another stage than that of the population are named.
    """
    console = Console(highlight=False)
    per = "team" if len(game.roles) > 1 else "agent"
    agents = "" if stage == str(game.population) else f", agents of stage {stage}"
    heading = f"{title_of(game)}{agents}: means per {per} and episode ± standard error"
    console.print(heading, style="bold")
    for result in results:
        table = Table(box=None, padding=(0, 2), header_style="")
        table.add_column(f"match {result['match']}", no_wrap=True)
        for role in result["roles"]:
            colour = game.role(role).colour
            table.add_column(f"[{colour}]●[/] {escape(role)}", justify="right", no_wrap=True)
            if role in (published or {}):
                table.add_column("paper", justify="right", no_wrap=True)
        columns = result["roles"]
        for name in next(iter(columns.values())):
            if any(column[name]["mean"] or column[name]["error"] for column in columns.values()):
                table.add_row(name, *statistic_cells(name, columns, published or {}))
        console.print(table)


def statistic_cells(
    name: str, columns: Summary, published: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """A statistic of every role, each followed by the paper's where that has any of the role."""
    for role, column in columns.items():
        mean, error = column[name]["mean"], column[name]["error"]
        digits = 3 if 0 < error < 0.01 else 2
        yield f"{mean:.{digits}f} ± {error:.{digits}f}"
        if role in published:
            yield f"{published[role][name]:.2f}" if name in published[role] else ""


def title_of(game: Game) -> str:
    """Such as "grassland 48-32, density constant"."""
    options = (f"{name.replace('_', '-')} {value}" for name, value in options_of(game).items())
    return ", ".join([f"{game.name} {game.population}", *options])


def print_crossplay(game: Game, played: CrossPlay, per_agent: bool) -> None:
    """A table per role: the player of the row has that role, that of the column all others."""
    console = Console(highlight=False)
    team = "agent" if per_agent or played.alone else "team"
    console.print(
        f"{title_of(game)}: task reward per {team} and episode ± standard error, "
        f"{played.episodes:,} episodes per pairing",
        style="bold",
    )
    columns = ["alone"] if played.alone else [f"against {name}" for name in played.names]
    for role in played.counts:
        mean, error = played.matrix(role)
        size = 1 / game.per_member(1.0, role) if per_agent else 1
        table = Table(box=None, padding=(0, 2), header_style="")
        table.add_column(f"[{game.role(role).colour}]●[/] {escape(role)} by")
        for column in columns:
            table.add_column(escape(one_line(column)), justify="right")
        for name, means, errors in zip(played.names, mean / size, error / size, strict=True):
            cells = (f"{m:.2f} ± {e:.2f}" for m, e in zip(means, errors, strict=True))
            table.add_row(escape(one_line(name)), *cells)
        console.print(table)


def print_tasks(tasks: list[Task], as_json: bool) -> None:
    """The runs of an experiment: settings, trainings, and their episodes along a lineage and in
    total; then what EPC has in total, as a multiple of what other methods have."""
    if as_json:
        shown = {
            task.name: {**task.config.to_json(), "plan": plan_json(task.config.plan)}
            for task in tasks
        }
        print(json.dumps(shown, indent=2))
        return
    console = Console(highlight=False)
    settings = [name_settings(task.config) for task in tasks]
    same = len(set(settings)) == 1
    if same:
        console.print(f"settings of all methods: {settings[0]}", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("run", no_wrap=True, min_width=max(len(task.name) for task in tasks))
    for heading in ("agents", *["settings"] * (not same)):
        table.add_column(heading)
    for heading in ("trainings", "episodes each", "in all matches"):
        table.add_column(heading, justify="right")
    for task, setting in zip(tasks, settings, strict=True):
        populations = task.config.populations
        table.add_row(
            task.name,
            " ".join(populations),
            *[setting] * (not same),
            f"{task.trials}",
            *(f"{episodes:,}" for episodes in task.config.accumulated(populations[-1])),
        )
    console.print(table)
    for line in episode_ratios([task.config for task in tasks]):
        console.print(line)


def episode_ratios(configs: Sequence[TrainConfig]) -> list[str]:
    """For each method that selects among matches: its total episodes, in multiples of a lineage."""
    shown: dict[str, list[str]] = {}
    for config in configs:
        if config.selects and config.seed == 0 and max(config.stage_matches) > 1:
            name = config.method if config.grows else f"{config.method} with budget total"
            for population in config.populations:
                lineage, total = config.accumulated(population)
                shown.setdefault(name, []).append(f"{total / lineage:.1f} at {population}")
    return [
        f"{name} trains in all its matches {', '.join(ratios)} times the episodes of a lineage"
        for name, ratios in shown.items()
    ]
