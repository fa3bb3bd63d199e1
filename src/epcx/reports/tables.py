"""What commands print: plans, results and comparisons, for a terminal or as JSON."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx.engines.devices import in_words
from epcx.evaluation.tournament import CrossPlay
from epcx.games import Game
from epcx.reproduce import Task
from epcx.runs.run import Run
from epcx.training import PlannedStage, Training, describe_plan, plan


def print_plan(training: Training, rows: list[PlannedStage], as_json: bool) -> None:
    whole = describe_plan(rows)
    if as_json:
        print(json.dumps({**training.config(), "plan": whole}, indent=2))
        return
    console = Console(highlight=False)
    kept = f", K = {training.sets}" if training.grows else ""
    console.print(f"{training.game}, {training.method}{kept}, seed {training.seed}", style="bold")
    table = Table(box=None, padding=(0, 2), header_style="")
    headings = ("stage", "matches", "episodes each", "in total", "updates each", "replay")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.population,
            f"{row.matches}",
            f"{row.episodes:,}",
            f"{row.episodes * row.matches:,}",
            f"{row.updates:,}",
            in_words(row.replay_bytes),
        )
    console.print(table)
    console.print(
        f"episodes: {whole['episodes_along_a_lineage']:,} along a lineage, "
        f"{whole['episodes_in_total']:,} in total"
    )
    games = sum(row.fitness_games for row in rows)
    if games:
        console.print(f"fitness: {games} games of {training.fitness_episodes:,} episodes")


def print_result(run: Run, as_json: bool) -> None:
    result = run.result
    if as_json:
        print(json.dumps({"run": str(run.path), **result}, indent=2))
        return
    minutes, seconds = divmod(round(result["seconds"]), 60)
    print(
        f"{result['ended']}: {result['episodes_along_a_lineage']} episodes along a lineage, "
        f"{result['episodes_in_total']} in total, in {minutes} min {seconds} s; "
        f"try: epcx evaluate {run.path}"
    )


def print_evaluation(
    game: Game, results: list[dict[str, Any]], published: dict[str, float] | None = None
) -> None:
    """A block per match and a line per statistic: fits a narrow terminal.

    Beside them is what the paper reports, if it does.
    """
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
        if published:
            table.add_column("in the paper", justify="right", no_wrap=True)
        columns = list(result["roles"].values())
        for name in columns[0]:
            if any(column[name]["mean"] or column[name]["error"] for column in columns):
                cells = (f"{c[name]['mean']:.2f} ± {c[name]['error']:.2f}" for c in columns)
                theirs = f"{published[name]:.2f}" if published and name in published else ""
                table.add_row(name, *cells, *[theirs] * bool(published))
        console.print(table)


def print_crossplay(game: Game, played: CrossPlay, per_agent: bool) -> None:
    """A table per role: rows play it, columns all others."""
    console = Console(highlight=False)
    team = "agent" if per_agent or played.alone else "team"
    console.print(
        f"{game.name} {game.population}: task reward per {team} and episode ± standard error, "
        f"{played.episodes:,} episodes per pairing",
        style="bold",
    )
    columns = ["alone"] if played.alone else [f"against {name}" for name in played.names]
    for role in played.counts:
        mean, error = played.matrix(role)
        size = 1 / game.per_member(1.0, role) if per_agent else 1
        table = Table(box=None, padding=(0, 2), header_style="")
        table.add_column(f"[{game.role(role).colour}]●[/] {role} by")
        for column in columns:
            table.add_column(escape(column), justify="right")
        for name, means, errors in zip(played.names, mean / size, error / size, strict=True):
            cells = (f"{m:.2f} ± {e:.2f}" for m, e in zip(means, errors, strict=True))
            table.add_row(escape(name), *cells)
        console.print(table)


def print_tasks(tasks: list[Task], as_json: bool) -> None:
    """The runs of an experiment."""
    if as_json:
        print(json.dumps({task.name: task.training.config() for task in tasks}, indent=2))
        return
    table = Table(box=None, padding=(0, 2), header_style="")
    for heading in ("run", "agents"):
        table.add_column(heading, no_wrap=True)
    for heading in ("trainings", "episodes each", "in total"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task in tasks:
        whole = describe_plan(plan(task.training))
        table.add_row(
            task.name,
            " ".join(row["population"] for row in whole["stages"]),
            f"{task.trials}",
            f"{whole['episodes_along_a_lineage']:,}",
            f"{whole['episodes_in_total']:,}",
        )
    Console(highlight=False).print(table)
