"""The section of a report that says how sure it is, over independent trainings."""

from typing import Any

import numpy as np

from epcx.evaluation import statistics
from epcx.evaluation.results import SCORE, normalise, scores_of
from epcx.reports import figures
from epcx.reports.figures import label
from epcx.reports.findings import Findings, Section
from epcx.reports.grids import NOTHING, Entry, Grid

MEASURES = {"mean": statistics.mean, "IQM": statistics.interquartile_mean}
Ends = tuple[float, float]


def certainty(findings: Findings) -> Section | None:
    """None, if some method was trained only once."""
    study = findings.study
    scores = scores_of(normalise(findings.table(SCORE), study.methods))
    if len(scores) < 2 or min(len(x) for x in scores.values()) < 2:
        return None
    trials, tasks = next(iter(scores.values())).shape
    text = (
        f"Normalised scores over {trials} trainings and {tasks} tasks (a population and a role "
        "each) that all methods share. Trainings are drawn again within every task (stratified "
        f"bootstrap, {statistics.RESAMPLES:,} times)."
    )
    section = Section("certainty", "How sure is it", [text])
    best = study.yardstick(study.populations[-1])
    best = best if best in scores else list(scores)[-1]
    better = statistics.probability_of_improvement
    rows: list[list[str | Entry]] = []
    file = []
    middles: dict[str, tuple[float, Ends]] = {}
    for method, values in scores.items():
        row: list[str | Entry] = [label(method)]
        saved: dict[str, Any] = {"method": method, "trials": trials, "tasks": tasks}
        measured = {
            name: (float(measure(values)), statistics.interval(measure, values))
            for name, measure in MEASURES.items()
        }
        middles[method] = measured["IQM"]
        if method != best:
            versus = scores[best], values
            measured["better"] = float(better(*versus)), statistics.interval(better, *versus)
        for name, (value, (low, high)) in measured.items():
            row.append(Entry(f"{value:.2f}", (f"[{low:.2f}, {high:.2f}]",)))
            saved |= {name: value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row if method != best else [*row, Entry(NOTHING)])
        file.append(saved)
    caption = f"IQM: interquartile mean. Last: how likely {label(best)} beats the method."
    header = ["method", *MEASURES, f"P({label(best)} better)"]
    section.grids.append(Grid("certainty", caption, header, rows, file))
    thresholds = np.linspace(0, 1, 101)
    shares = {m: statistics.performance_profile(x, thresholds) for m, x in scores.items()}
    section.charts += [
        figures.intervals(
            "iqm",
            "Interquartile mean",
            "normalised score",
            middles,
            findings.colours,
            "With 95% intervals over trainings.",
        ),
        figures.profiles(
            "profiles",
            "Performance profiles",
            thresholds,
            shares,
            findings.colours,
            "Share of trainings that score more than τ: higher is better.",
        ),
    ]
    return section
