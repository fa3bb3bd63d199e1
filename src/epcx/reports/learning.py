"""The sections of a report about learning: training curves, and evaluation in the second stage."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from epcx.evaluation.results import CURVE
from epcx.evaluation.study import game_episodes
from epcx.reports import figures
from epcx.reports.chart import Chart, label
from epcx.reports.figures import Curve, Values
from epcx.reports.report_data import ReportData, Section, slug
from epcx.reports.tables import CsvRow, ReportTable
from epcx.reports.words import among, count_trainings, selection_note
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
    study = data.study
    for population, methods in study.trials.items():
        for role in (role.name for role in study.game.roles):
            lines: dict[str, list[Curve]] = {}
            for method, trials in methods.items():
                for number, trial in enumerate(trials):
                    points = logged_rewards(logs[trial.run.path], trial, role)
                    lines.setdefault(method, []).append(smooth(*np.array(points).T))
                    labels: CsvRow = {
                        "population": population,
                        "role": role,
                        "method": method,
                        "trial": number,
                        "training": study.training_names[trial],
                    }
                    csv_rows += [{**labels, "episodes": int(x), "reward": y} for x, y in points]
            section.charts += curve_charts(
                data,
                population,
                "learning-curves",
                f"curves-{population}-{role}",
                f"{role} at {population}",
                "reward in training",
                lines,
            )
    section.tables.append(ReportTable("learning-curves", "", [], [], csv_rows))
    return section


def curve_charts(
    data: ReportData,
    population: str,
    table: str,
    name: str,
    title: str,
    unit: str,
    lines: Mapping[str, list[Curve]],
    band: bool = False,
) -> list[Chart]:
    """A chart for each setting; `table` names the CSV file with the numbers."""
    charts = []
    for group in data.groups:
        chosen = among(lines, group.methods)
        if chosen:
            file, heading = name + group.suffix, title + group.heading
            caption = curves_caption(chosen, band)
            names = {method: data.training_names(population, method) for method in chosen}
            chart = figures.curves(file, heading, unit, chosen, data.looks, names, caption, band)
            chart.table = table
            charts.append(chart)
    return charts


def curves_caption(lines: Mapping[str, list[Curve]], band: bool) -> str:
    """What is drawn of several trainings, and how many each method has."""
    numbers = count_trainings((label(method), len(trials)) for method, trials in lines.items())
    if all(len(trials) == 1 for trials in lines.values()):
        return numbers
    if band:
        return f"Mean and standard deviation over trainings, where there are several. {numbers}"
    return f"Thin: trainings. Thick: their mean. {numbers}"


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
    reference, episodes = study.reference(population), game_episodes(CURVE, data.episodes)
    final = f"the final agents of {label(reference)}"
    opponents = f" against {final if reference in data.configs else f'{reference} players'}"
    text = [
        f"Scores of policies during training at {population} agents{opponents * data.has_opponents}"
        f", over {episodes:,} episodes each. Curricula start from the agents of the first stage, "
        "other methods from scratch.",
        selection_note(study, population, dict.fromkeys(r.method for r in results)),
        "Normalised scores are as in the paper: 0 is the lowest and 1 the highest of all mean "
        "points in the chart.",
    ]
    section = Section("second-stage", "Convergence in the second stage", [x for x in text if x])
    points: dict[tuple[str, str, int, str], dict[int, list[float]]] = {}
    for result in results:
        assert result.trained is not None
        place = study.merged or result.role, result.method, result.trial, result.training or ""
        rewards = points.setdefault(place, {})
        rewards.setdefault(result.trained, []).append(result.statistics["reward"]["mean"])
    csv_rows: list[CsvRow] = []
    charts = partial(curve_charts, data, population, "second-stage")
    for role in dict.fromkeys(role for role, *_ in points):
        lines: dict[str, list[Curve]] = {}
        for (other, method, trial, training), rewards in points.items():
            if other == role:
                x = np.array(sorted(rewards), float)
                y = np.array([np.mean(rewards[episode]) for episode in sorted(rewards)])
                lines.setdefault(method, []).append((x, y))
                labels: CsvRow = {
                    "role": role,
                    "method": method,
                    "trial": trial,
                    "training": training,
                }
                csv_rows += [
                    {**labels, "episodes": int(a), "reward": b}
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)
                ]
        name, title = f"convergence-{slug(role)}", f"Convergence: {role}"
        section.charts += charts(name, title, "reward", lines)
        scaled = normalise_settings(data, lines)
        section.charts += charts(
            f"{name}-normalised", f"{title}, normalised", "normalised score", scaled
        )
        name, title = f"stability-{slug(role)}", f"Stability: {role}"
        growing = repeated_curricula(data, lines)
        section.charts += charts(name, title, "reward", growing, band=True)
    section.tables.append(ReportTable("second-stage", "", [], [], csv_rows))
    return section


def repeated_curricula(
    data: ReportData, lines: Mapping[str, list[Curve]]
) -> dict[str, list[Curve]]:
    """The curves of curricula, of settings in which one of them has several trainings."""
    found: dict[str, list[Curve]] = {}
    for group in data.groups:
        growing = among(lines, [m for m in group.methods if data.configs[m].grows])
        if any(len(trials) > 1 for trials in growing.values()):
            found |= growing
    return found


def normalise_settings(
    data: ReportData, lines: Mapping[str, list[Curve]]
) -> dict[str, list[Curve]]:
    """With all curves of a setting on one scale."""
    scaled: dict[str, list[Curve]] = {}
    for group in data.groups:
        scaled |= normalise_curves(among(lines, group.methods))
    return scaled


def normalise_curves(lines: Mapping[str, list[Curve]]) -> dict[str, list[Curve]]:
    """With the lowest point of all mean curves at 0, and the highest at 1."""
    means = [y for trials in lines.values() for y in mean_curves(trials)]
    if not means:
        return {}
    low, high = np.nanmin(np.concatenate(means)), np.nanmax(np.concatenate(means))
    span = high - low if high > low else 1.0
    return {m: [(x, (y - low) / span) for x, y in trials] for m, trials in lines.items()}


def mean_curves(trials: Sequence[Curve]) -> list[Values]:
    """The mean of all trials, if they have points at the same episodes; else each by itself."""
    if figures.same_episodes(trials):
        return [np.mean([y for _, y in trials], 0)]
    return [y for _, y in trials]
