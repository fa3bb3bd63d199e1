"""The content of a report: its headline, and its sections in order."""

from epcx.evaluation.results import SCORE
from epcx.evolution.lineage import Lineage
from epcx.reports import figures
from epcx.reports.aggregate import aggregate_scores
from epcx.reports.figures import label
from epcx.reports.learning import learning_curves, second_stage
from epcx.reports.report_data import ReportData, Section, slug
from epcx.reports.scores import (
    against_fixed_players,
    crossplay,
    generalisation,
    scores,
    statistics,
    trained,
)
from epcx.reports.tables import MISSING, CsvRow, ReportTable
from epcx.runs.files import json_digest

RELIABLE_TRIALS = 5  # with fewer, bootstrap intervals over trials are rough


def headline(data: ReportData) -> str:
    """The method that has the highest reward most often, if there are several."""
    methods = data.study.methods
    means = [
        {method: cell.mean for method, cell in trained(data, cells).items()}
        for cells in data.table(SCORE).values()
    ]
    tasks = [some for some in means if len(some) > 1]
    if not tasks:
        return f"{', '.join(label(method) for method in methods)} on {data.study.game.name}"
    wins = {m: sum(some.get(m) == max(some.values()) for some in tasks) for m in methods}
    most = max(wins.values())
    best = [label(method) for method in methods if wins[method] == most]
    if len(best) > 1:
        each = f"{most} of {len(tasks)} comparisons each"
        return f"{', '.join(best[:-1])} and {best[-1]} have the highest reward in {each}"
    return f"{best[0]} has the highest reward in {most} of {len(tasks)} comparisons"


def uncertainty_note(data: ReportData) -> str:
    """What the intervals and errors of the report mean."""
    if data.trials == 1:
        return (
            "There is one training run of each method: the variance over seeds is unknown, and no "
            "interval over seeds is shown. Numbers after ± are standard errors over "
            f"{data.episodes:,} evaluation episodes of these trained agents."
        )
    rough = " With so few training runs the intervals are rough."
    return (
        f"Up to {data.trials} independent training runs of each method. Ranges in brackets are 95% "
        "bootstrap intervals of the mean over training runs; each was evaluated in "
        f"{data.episodes:,} episodes.{rough * (data.trials < RELIABLE_TRIALS)}"
    )


def sections(data: ReportData, replays: Section | None = None) -> list[Section]:
    candidates = [
        scores(data),
        against_fixed_players(data),
        statistics(data),
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
    signature = " · ".join(f"{name} {value}" for name, value in data.study.signature().items())
    for chart in (chart for section in found for chart in section.charts):
        chart.signature = signature
    return found


def lineages(data: ReportData) -> Section | None:
    """The lineages of curricula that select among several agent sets."""
    text = (
        "All agent sets of every stage with their fitness, the fittest on top. Filled: promoted to "
        "the next stage. Lines lead to the parents that were mixed, thick where a set was mixed "
        "with itself. Orange: the best set of the last stage, and its ancestors."
    )
    section = Section("lineage", "Lineage", [text])
    study = data.study
    for number, (run, config) in enumerate(zip(study.runs, study.configs, strict=True)):
        if config.grows and config.sets > 1:
            lineage, name = Lineage.from_json(run.lineage()), run.path.resolve().name
            section.charts += [
                figures.lineage_chart(
                    f"lineage-{number}-{slug(name)}-{role.name}",
                    f"{role.name}, seed {config.seed}",
                    lineage,
                    role.name,
                    f"Lineage of {role.name} in {name}",
                )
                for role in study.game.roles
            ]
    return section if section.charts else None


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
            "seed": config.seed,
            "trials": 1 if config.grows else run.ranks(run.stages()[-1]),
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
            "method": label(method),
            "agents": row["agents"],
            "seed": row["seed"],
            "trials": row["trials"],
            "lineage episodes": format_count(row["episodes_along_a_lineage"]),
            "total episodes": format_count(row["episodes_in_total"]),
            "time": format_minutes(row["seconds"]),
            "device": row["device"] or MISSING,
            "commit": row["commit"] or row["epcx"] or MISSING,
            "config": row["config"],
        }
        rows.append([str(value) for value in shown.values()])
    caption = (
        "Trials are independent training runs. Lineage episodes: those in which the agents of one "
        "match and their ancestors were trained. Total episodes: those of all matches."
    )
    table = ReportTable("runs", caption, list(shown), rows, csv_rows, text_columns=2)
    return Section("runs", "Runs", tables=[table])


def format_count(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else MISSING


def format_minutes(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"
