"""The section of a report with aggregate scores over independent training runs."""

import numpy as np

from epcx.evaluation import statistics
from epcx.evaluation.results import SCORE, normalise, scores_of
from epcx.reports import figures
from epcx.reports.figures import label
from epcx.reports.report_data import ReportData, Section
from epcx.reports.tables import MISSING, CsvRow, ReportTable, TableCell

AGGREGATES = {"mean": statistics.mean, "IQM": statistics.interquartile_mean}
Interval = tuple[float, float]


def aggregate_scores(data: ReportData) -> Section | None:
    """None if there is only one method, or one trial of some method."""
    study = data.study
    scores = scores_of(normalise(data.table(SCORE), study.methods))
    if len(scores) < 2 or min(len(x) for x in scores.values()) < 2:
        return None
    trials, tasks = next(iter(scores.values())).shape
    text = (
        f"Normalised scores over {trials} training runs and {tasks} tasks (pairs of a population "
        "and a role) that all methods share. Intervals are from a stratified bootstrap "
        f"({statistics.RESAMPLES:,} resamples of the runs within every task)."
    )
    section = Section("aggregate", "Aggregate scores", [text])
    reference = study.reference(study.populations[-1])
    reference = reference if reference in scores else list(scores)[-1]
    improvement = statistics.probability_of_improvement
    rows: list[list[str | TableCell]] = []
    csv_rows = []
    middles: dict[str, tuple[float, Interval]] = {}
    for method, values in scores.items():
        row: list[str | TableCell] = [label(method)]
        csv_row: CsvRow = {"method": method, "trials": trials, "tasks": tasks}
        estimates = {
            name: (float(aggregate(values)), statistics.interval(aggregate, values))
            for name, aggregate in AGGREGATES.items()
        }
        middles[method] = estimates["IQM"]
        if method != reference:
            both = scores[reference], values
            interval = statistics.interval(improvement, *both)
            estimates["improvement"] = float(improvement(*both)), interval
        for name, (value, (low, high)) in estimates.items():
            row.append(TableCell(f"{value:.2f}", (f"[{low:.2f}, {high:.2f}]",)))
            csv_row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row if method != reference else [*row, TableCell(MISSING)])
        csv_rows.append(csv_row)
    caption = (
        "IQM: interquartile mean. Last column: probability that a training run of "
        f"{label(reference)} scores higher than one of the method."
    )
    header = ["method", *AGGREGATES, f"P({label(reference)} better)"]
    section.tables.append(ReportTable("aggregate", caption, header, rows, csv_rows))
    thresholds = np.linspace(0, 1, 101)
    profiles = {m: statistics.performance_profile(x, thresholds) for m, x in scores.items()}
    section.charts += [
        figures.intervals(
            "iqm",
            "Interquartile mean",
            "normalised score",
            middles,
            data.colours,
            "With 95% intervals over training runs.",
        ),
        figures.profiles(
            "profiles",
            "Performance profiles",
            thresholds,
            profiles,
            data.colours,
            "Share of training runs with a score above τ: higher is better.",
        ),
    ]
    return section
