"""The content of a report: its sections in order."""

from epcx.evaluation.study import trials_in
from epcx.evaluation.variants import summarise_trainings
from epcx.evolution.lineage import Lineage, Record
from epcx.reports.aggregate import aggregate_scores
from epcx.reports.chart import label
from epcx.reports.learning import learning_curves, second_stage
from epcx.reports.lineage_chart import lineage_chart
from epcx.reports.normalised import normalised_scores
from epcx.reports.report_data import ReportData, Section, slug
from epcx.reports.scores import (
    against_fixed_players,
    crossplay,
    generalisation,
    scores,
    statistics,
)
from epcx.reports.tables import MISSING, CsvRow, ReportTable
from epcx.runs.files import json_digest
from epcx.teams import RunPlayers


def sections(
    data: ReportData, worlds: Section | None = None, replays: Section | None = None
) -> list[Section]:
    candidates = [
        scores(data),
        worlds,
        against_fixed_players(data),
        statistics(data),
        normalised_scores(data),
        aggregate_scores(data),
        crossplay(data),
        learning_curves(data),
        second_stage(data),
        generalisation(data),
        lineages(data),
        replays,
        runs(data),
    ]
    found = [section for section in candidates if section is not None]
    signature = " · ".join(
        value if name == "trainings" else f"{name} {value}"
        for name, value in data.study.signature().items()
    )
    for chart in (chart for section in found for chart in section.charts):
        chart.signature = signature
    return found


def lineages(data: ReportData) -> Section | None:
    """The lineages of curricula that select among several agent sets."""
    text = (
        "All agent sets of every stage with their fitness, the fittest on top. Filled: promoted to "
        "the next stage. Lines lead to the parents that were mixed, thick where a set was mixed "
        "with itself. Orange: the best set of the last stage, and its ancestors. Small screens "
        "show a list instead, in which set 1.4 is that of match 4 in the second stage."
    )
    section = Section("lineage", "Lineage", [text])
    study = data.study
    csv_rows: list[CsvRow] = []
    for number, (run, config) in enumerate(zip(study.runs, study.configs, strict=True)):
        if config.grows and config.sets > 1:
            lineage, name = Lineage.from_json(run.lineage()), run.path.resolve().name
            for role in study.game.roles:
                chart = lineage_chart(
                    f"lineage-{number}-{slug(name)}-{role.name}",
                    f"{role.name}, seed {config.seed}",
                    lineage,
                    role.name,
                    f"Lineage of {role.name} in {name}",
                )
                chart.table = "lineages"
                section.charts.append(chart)
            csv_rows += [lineage_row(name, record) for record in lineage.records]
    section.tables.append(ReportTable("lineages", "", [], [], csv_rows))
    return section if section.charts else None


def lineage_row(run: str, record: Record) -> CsvRow:
    return {
        "run": run,
        "set": record.name,
        "role": record.role,
        "population": record.population,
        "match": record.match,
        "parents": " ".join(record.parents),
        "fitness": record.fitness,
        "rank": record.rank,
        "diverged": int(record.diverged),
    }


def runs(data: ReportData) -> Section:
    """What every run was trained with, and how long it took."""
    rows, csv_rows = [], []
    study = data.study
    for run, config, method in zip(study.runs, study.configs, study.variants, strict=True):
        provenance, result = run.provenance, run.result
        row: CsvRow = {
            "run": run.path.resolve().name,
            "method": method,
            "agents": " ".join(run.stages()),
            "settings": data.settings[method],
            "seed": config.seed,
            "trainings": trials_in(run, config),
            "training": summarise_trainings(
                name
                for trial, name in study.training_names.items()
                if isinstance(trial, RunPlayers) and trial.run is run
            ),
            "episodes_along_a_lineage": result.get("episodes_along_a_lineage"),
            "episodes_in_total": result.get("episodes_in_total"),
            "seconds": result.get("seconds"),
            "device": provenance.get("device"),
            "epcx": provenance.get("epcx"),
            "commit": provenance.get("commit"),
            "date": provenance.get("date"),
            "config": json_digest(run.settings)[:10],
        }
        csv_rows.append(row)
        shown = {
            "run": row["run"],
            "method": label(method),
            "agents": row["agents"],
            "settings": row["settings"],
            "trainings": row["training"],
            "lineage episodes": format_count(row["episodes_along_a_lineage"]),
            "total episodes": format_count(row["episodes_in_total"]),
            "time": format_minutes(row["seconds"]),
            "device": row["device"] or MISSING,
            "commit": row["commit"] or row["epcx"] or MISSING,
            "config": row["config"],
        }
        rows.append([str(value) for value in shown.values()])
    note = (
        "A run whose matches compete is one training; otherwise every match is. Lineage episodes: "
        "those in which the agents of one match and their ancestors were trained. Total episodes: "
        "those of all matches of the run."
    )
    table = ReportTable(
        "runs", "All runs", list(shown), rows, csv_rows, text_columns=5, notes=[note]
    )
    return Section("runs", "Runs", tables=[table])


def format_count(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else MISSING


def format_minutes(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"
