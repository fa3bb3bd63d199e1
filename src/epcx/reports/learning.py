"""The sections of a report about learning: training curves, and evaluation in the second stage."""

from typing import Any

import numpy as np

from epcx.evaluation.results import CURVE
from epcx.evaluation.study import CURVE_EPISODES
from epcx.reports import figures
from epcx.reports.figures import Curve, Values, label
from epcx.reports.report_data import ReportData, Section, slug
from epcx.reports.tables import CsvRow, ReportTable
from epcx.teams import RunPlayers

SMOOTHING = 5  # log lines in the moving average of a learning curve


def learning_curves(data: ReportData) -> Section:
    """Rewards during training, for every population and role."""
    text = [
        "Task reward during training, of the matches whose agents are evaluated above (moving "
        f"average over {SMOOTHING} log lines). Episodes accumulate over the stages of a curriculum."
    ]
    if data.has_opponents:
        text.append(
            "All roles learn at the same time, so a falling curve need not mean that agents get "
            "worse; compare scores against fixed opponents instead."
        )
    section = Section("curves", "Learning curves", text)
    logs = {run.path: run.metrics() for run in data.study.runs}
    csv_rows: list[CsvRow] = []
    for population, methods in data.study.trials.items():
        for role in (role.name for role in data.study.game.roles):
            lines: dict[str, list[Curve]] = {}
            for method, trials in methods.items():
                for number, trial in enumerate(trials):
                    points = logged_rewards(logs[trial.run.path], trial, role)
                    lines.setdefault(method, []).append(smooth(*np.array(points).T))
                    labels: CsvRow = {"population": population, "role": role, "method": method}
                    csv_rows += [
                        {**labels, "trial": number, "episodes": int(x), "reward": y}
                        for x, y in points
                    ]
            caption = "Thin: training runs. Thick: their mean." * (data.trials > 1)
            section.charts.append(
                figures.curves(
                    f"curves-{population}-{role}",
                    f"{role} at {population}",
                    "reward in training",
                    lines,
                    data.colours,
                    caption,
                )
            )
    section.tables.append(ReportTable("learning-curves", "", [], [], csv_rows))
    return section


def logged_rewards(
    rows: list[dict[str, Any]], trial: RunPlayers, role: str
) -> list[tuple[float, float]]:
    """Episodes and rewards of the match that a trial comes from; NaN after it diverged."""
    place, name = (trial.stage, trial.origin(role)), f"reward/{role}"
    points = [
        (float(row["episodes"]), np.nan if row.get(name) is None else float(row[name]))
        for row in rows
        if (row.get("population"), row.get("match")) == place
    ]
    return points or [(0.0, np.nan)]


def smooth(x: Values, y: Values) -> Curve:
    width = min(SMOOTHING, len(y))
    weights = np.ones(width) / width
    return np.convolve(x, weights, "valid"), np.convolve(y, weights, "valid")


def second_stage(data: ReportData) -> Section | None:
    """Convergence and stability: scores of snapshots against the reference's final agents."""
    study = data.study
    results = [result for result in data.results if result.purpose == CURVE]
    if not results:
        return None
    population = results[0].population
    reference, episodes = study.reference(population), min(CURVE_EPISODES, data.episodes)
    final = f"the final agents of {label(reference)}"
    opponents = f" against {final if reference in data.configs else f'{reference} players'}"
    text = (
        f"Scores of policies during training at {population} agents{opponents * data.has_opponents}"
        f", over {episodes:,} episodes each. Curricula start from the agents of the first stage, "
        "other methods from scratch."
    )
    section = Section("second-stage", "Convergence in the second stage", [text])
    points: dict[tuple[str, str, int], dict[int, list[float]]] = {}
    for result in results:
        assert result.trained is not None
        role = study.merged or result.role
        rewards = points.setdefault((role, result.method, result.trial), {})
        rewards.setdefault(result.trained, []).append(result.statistics["reward"]["mean"])
    csv_rows: list[CsvRow] = []
    for role in dict.fromkeys(role for role, _, _ in points):
        lines: dict[str, list[Curve]] = {}
        for (other, method, trial), rewards in points.items():
            if other == role:
                x = np.array(sorted(rewards), float)
                y = np.array([np.mean(rewards[episode]) for episode in sorted(rewards)])
                lines.setdefault(method, []).append((x, y))
                labels: CsvRow = {"role": role, "method": method, "trial": trial}
                csv_rows += [
                    {**labels, "episodes": int(a), "reward": b}
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)
                ]
        name, title = f"convergence-{slug(role)}", f"Convergence: {role}"
        section.charts.append(figures.curves(name, title, "reward", lines, data.colours))
        growing = {method: trials for method, trials in lines.items() if data.configs[method].grows}
        if any(len(trials) > 1 for trials in growing.values()):
            section.charts.append(
                figures.curves(
                    f"stability-{slug(role)}",
                    f"Stability: {role}",
                    "reward",
                    growing,
                    data.colours,
                    "Mean and standard deviation over training runs.",
                    band=True,
                )
            )
    section.tables.append(ReportTable("second-stage", "", [], [], csv_rows))
    return section
