"""The sections of a report about learning: curves as they were logged, and the second stage."""

from typing import Any

import numpy as np

from epcx.evaluation.results import CURVE
from epcx.reports import figures
from epcx.reports.figures import Line, label
from epcx.reports.findings import Findings, Section, slug
from epcx.reports.grids import Grid
from epcx.study import CURVE_EPISODES, base
from epcx.trained import Entrant
from epcx.training import GROWING

SMOOTH = 5  # log lines that a point of a learning curve averages


def learning_curves(findings: Findings) -> Section:
    """Rewards in training, of every population and role."""
    text = [
        "Task reward in training, of the matches that became the agents above, smoothed over "
        f"{SMOOTH} log lines. A curriculum's stage starts where the stages before it ended."
    ]
    if not findings.alone:
        text.append(
            "Both sides learn, so that a curve may fall while everybody gets better; scores "
            "against fixed opponents tell more."
        )
    section = Section("curves", "Learning curves", text)
    logs = {run.path: run.metrics() for run in findings.study.runs}
    file = []
    for population, methods in findings.study.trials.items():
        for role in (role.name for role in findings.study.game.roles):
            lines: dict[str, list[Line]] = {}
            for method, trials in methods.items():
                for number, trial in enumerate(trials):
                    points = logged(logs[trial.run.path], trial, role)
                    lines.setdefault(method, []).append(smooth(*np.array(points).T))
                    told = {"population": population, "role": role, "method": method}
                    file += [
                        {**told, "trial": number, "episodes": int(x), "reward": y}
                        for x, y in points
                    ]
            caption = "Thin lines are trainings, thick ones their mean." * (findings.trials > 1)
            section.charts.append(
                figures.curves(
                    f"curves-{population}-{role}",
                    f"{role} at {population}",
                    "reward in training",
                    lines,
                    findings.colours,
                    caption,
                )
            )
    section.grids.append(Grid("learning-curves", "", [], [], file))
    return section


def logged(rows: list[dict[str, Any]], trial: Entrant, role: str) -> list[tuple[float, float]]:
    """Episodes and rewards of the match that became a trial; NaN where it had diverged."""
    place, name = (trial.stage, trial.origin(role)), f"reward/{role}"
    points = [
        (float(row["episodes"]), np.nan if row.get(name) is None else float(row[name]))
        for row in rows
        if (row.get("population"), row.get("match")) == place
    ]
    return points or [(0.0, np.nan)]


def smooth(x: np.ndarray, y: np.ndarray) -> Line:
    width = min(SMOOTH, len(y))
    weights = np.ones(width) / width
    return np.convolve(x, weights, "valid"), np.convolve(y, weights, "valid")


def second_stage(findings: Findings) -> Section | None:
    """Stability and convergence: scores through the second stage against a fixed opponent."""
    study = findings.study
    results = [result for result in findings.results if result.purpose == CURVE]
    if not results:
        return None
    population = results[0].population
    whom = "" if findings.alone else f" against the final {label(study.yardstick(population))}"
    episodes = min(CURVE_EPISODES, findings.episodes)
    text = (
        f"What policies score{whom} at {population} agents on their way, in {episodes:,} episodes "
        "each: those of curricula, that were grown from the first stage, and those from scratch."
    )
    section = Section("second-stage", "Through the second stage", [text])
    points: dict[tuple[str, str, int], dict[int, list[float]]] = {}
    for result in results:
        assert result.trained is not None
        role = study.merged or result.role
        found = points.setdefault((role, result.method, result.trial), {})
        found.setdefault(result.trained, []).append(result.statistics["reward"]["mean"])
    file: list[dict[str, Any]] = []
    for role in dict.fromkeys(role for role, _, _ in points):
        lines: dict[str, list[Line]] = {}
        for (who, method, trial), found in points.items():
            if who == role:
                x = np.array(sorted(found), float)
                y = np.array([np.mean(found[moment]) for moment in sorted(found)])
                lines.setdefault(method, []).append((x, y))
                told = {"role": role, "method": method, "trial": trial}
                file += [
                    {**told, "episodes": int(a), "reward": b}
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)
                ]
        section.charts.append(
            figures.curves(
                f"convergence-{slug(role)}",
                f"Convergence: {role}",
                "reward",
                lines,
                findings.colours,
            )
        )
        growing = {method: some for method, some in lines.items() if base(method) in GROWING}
        if any(len(some) > 1 for some in growing.values()):
            section.charts.append(
                figures.curves(
                    f"stability-{slug(role)}",
                    f"Stability: {role}",
                    "reward",
                    growing,
                    findings.colours,
                    "Mean and one standard deviation over trainings.",
                    band=True,
                )
            )
    section.grids.append(Grid("second-stage", "", [], [], file))
    return section
