"""The section of a report with aggregate scores over independent training runs."""

from dataclasses import dataclass

import numpy as np

from epcx.evaluation import statistics
from epcx.evaluation.results import SCORE, scores_of
from epcx.evaluation.statistics import MIN_TRAININGS, Interval
from epcx.reports import figures
from epcx.reports.chart import Chart, label
from epcx.reports.normalised import MIN_NORMALISED
from epcx.reports.report_data import ReportData, Section, SettingsGroup
from epcx.reports.tables import MISSING, CsvRow, Note, ReportTable, TableCell
from epcx.reports.words import budget_note

AGGREGATES = {"mean": statistics.mean, "IQM": statistics.interquartile_mean}
BOUNDS = {"mean": (0.0, 1.0), "IQM": (-np.inf, np.inf)}


@dataclass(frozen=True)
class Estimate:
    """A number over all trainings, that of every single one, and an interval of enough of them."""

    value: float
    trainings: tuple[float, ...] = ()
    interval: Interval | None = None

    def cell(self) -> TableCell:
        notes = []
        if self.interval:
            notes.append("[{:.2f}, {:.2f}]".format(*self.interval))
        elif self.trainings:
            notes.append(", ".join(f"{round(value, 2) + 0.0:.2f}" for value in self.trainings))
        return TableCell(
            f"{round(self.value, 2) + 0.0:.2f}", tuple(Note("trainings", text) for text in notes)
        )

    def csv(self, name: str) -> CsvRow:
        low, high = self.interval or (None, None)
        return {name: self.value, f"{name}_low": low, f"{name}_high": high}


def aggregate_scores(data: ReportData) -> Section | None:
    """For each setting with enough methods, of which all have several trials."""
    text = (
        "Normalised scores of whole replications: a run is one training in all tasks (pairs of a "
        "population and a role), so that its scores are not independent. "
        f"From {MIN_TRAININGS} trainings on there are 95% intervals: for mean and interquartile "
        "mean (IQM) from a bootstrap of whole replications that normalises every resample anew, "
        "for the probability of improvement Newcombe's score interval. Those of the IQM are too "
        "narrow if scores are skewed. If a method has fewer trainings, all are listed instead."
    )
    section = Section("aggregate", "Aggregate scores", [text])
    for group in data.groups:
        scores = scores_of(data.table(SCORE), group.methods)
        if len(scores) >= MIN_NORMALISED and min(map(len, scores.values())) > 1:
            section.tables.append(aggregate_table(data, group, scores))
            section.charts += aggregate_charts(data, group, scores, section.tables)
    return section if section.tables else None


def aggregate_table(
    data: ReportData, group: SettingsGroup, scores: dict[str, statistics.Scores]
) -> ReportTable:
    study = data.study
    reference = study.reference(study.populations[-1])
    reference = reference if reference in scores else list(scores)[-1]
    found = {name: estimates(name, scores) for name in AGGREGATES}
    rows: list[list[str | TableCell]] = []
    csv_rows: list[CsvRow] = []
    for method, values in scores.items():
        trials, tasks = values.shape
        numbers = {name: found[name][method] for name in AGGREGATES}
        if method != reference:
            numbers["improvement"] = improvement(scores[reference], values)
        cells = [estimate.cell() for estimate in numbers.values()]
        rows.append([label(method), str(trials), *cells])
        if method == reference:
            rows[-1].append(TableCell(MISSING))
        row: CsvRow = {
            "method": method,
            "settings": group.settings,
            "trainings": trials,
            "tasks": tasks,
        }
        for name, estimate in numbers.items():
            row |= estimate.csv(name)
        csv_rows.append(row)
    tasks = next(iter(scores.values())).shape[1]
    notes = [
        f"Over the {tasks} tasks that all methods share. Last column: probability that a training "
        f"of {label(reference)} scores higher than one of the method, on a random task.",
        budget_note(study, study.populations, scores),
    ]
    header = ["method", "trainings", *AGGREGATES, f"P({label(reference)} better)"]
    caption = f"Normalised scores over all tasks{group.heading}"
    return ReportTable(f"aggregate{group.suffix}", caption, header, rows, csv_rows, notes=notes)


def estimates(name: str, scores: dict[str, statistics.Scores]) -> dict[str, Estimate]:
    """For each method; 0 and 1 are the lowest and the highest mean in every task."""
    aggregate, raw = AGGREGATES[name], list(scores.values())
    intervals: list[Interval | None] = [None] * len(raw)
    if min(map(len, raw)) >= MIN_TRAININGS:
        intervals = list(statistics.aggregate_intervals(aggregate, raw, bounds=BOUNDS[name]))
    return {
        method: Estimate(float(aggregate(x)), tuple(aggregate(x[:, None]).tolist()), interval)
        for method, x, interval in zip(scores, statistics.normalise(raw), intervals, strict=True)
    }


def improvement(ours: statistics.Scores, theirs: statistics.Scores) -> Estimate:
    value = float(statistics.probability_of_improvement(ours, theirs))
    if min(len(ours), len(theirs)) < MIN_TRAININGS:
        return Estimate(value)
    low, high = statistics.improvement_interval(np.array(value), len(ours), len(theirs))
    return Estimate(value, interval=(float(low), float(high)))


def aggregate_charts(
    data: ReportData,
    group: SettingsGroup,
    scores: dict[str, statistics.Scores],
    tables: list[ReportTable],
) -> list[Chart]:
    """The profiles also as a CSV file, among `tables`."""
    middles = estimates("IQM", scores)
    normalised = dict(zip(scores, statistics.normalise(list(scores.values())), strict=True))
    thresholds = np.linspace(0, 1, 101)
    profiles = {m: statistics.performance_profile(x, thresholds) for m, x in normalised.items()}
    enough = all(estimate.interval for estimate in middles.values())
    profile_rows: list[CsvRow] = [
        {"method": method, "settings": group.settings, "threshold": tau, "share_above": share}
        for method, shares in profiles.items()
        for tau, share in zip(thresholds.round(2).tolist(), shares.tolist(), strict=True)
    ]
    tables.append(ReportTable(f"profiles{group.suffix}", "", [], [], profile_rows))
    charts = [
        figures.intervals(
            f"iqm{group.suffix}",
            f"Interquartile mean{group.heading}",
            "normalised score",
            {m: (e.value, e.trainings, e.interval) for m, e in middles.items()},
            data.looks,
            "With 95% intervals over trainings." if enough else "Dots: trainings. Lines: of all.",
        ),
        figures.profiles(
            f"profiles{group.suffix}",
            f"Performance profiles{group.heading}",
            thresholds,
            profiles,
            data.looks,
            "Share of trainings, over all tasks, with a score above τ: higher is better.",
        ),
    ]
    for chart, table in zip(charts, ("aggregate", "profiles"), strict=True):
        chart.table = table + group.suffix
    return charts
