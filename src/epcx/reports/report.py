"""Writes a report: the page, and its tables, charts, replays and results as files beside it."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from epcx.errors import InputError, RunError, reason
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.results import Result
from epcx.evaluation.study import Study
from epcx.reports import content, replay, words
from epcx.reports.chart import label
from epcx.reports.page import replay_files, to_html
from epcx.reports.report_data import ReportData, Section
from epcx.reports.scenes import replays, worlds
from epcx.reports.tables import ReportTable
from epcx.runs.files import write_bytes
from epcx.runs.provenance import describe

PAGE = "index.html"
CACHE = "games.jsonl"


def make_folder(folder: Path) -> None:
    """A new folder, or that of an earlier report; others are refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = any(folder.iterdir()) and not (folder / CACHE).exists()
    except OSError as error:
        raise InputError(f"report folder {folder} cannot be made: {reason(error)}") from None
    if foreign:
        raise InputError(f"folder {folder} has other files than a report: choose another --out")


def write_report(
    study: Study,
    folder: Path,
    episodes: int,
    title: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, ReportData]:
    """Plays the games of a study and writes the report; returns the page's path and the data.

    Games that an earlier report in the same folder has played are not played again.
    """
    study.check()
    make_folder(folder)
    results = study.play(episodes, ResultCache(folder / CACHE), on_progress)
    data = ReportData(study, results, episodes)
    sections = content.sections(data, worlds(study), replays(data))
    page = to_html(
        title, words.headlines(data), words.uncertainty_note(data), facts(study), sections
    )
    try:
        write_files(folder, sections, results, study.signature())
        write_bytes(folder / PAGE, encode(page))
    except OSError as error:
        raise RunError(f"the report in {folder} cannot be written: {reason(error)}") from None
    return folder / PAGE, data


def facts(study: Study) -> list[str]:
    """What was compared, and where and when it was evaluated."""
    about = describe()
    version = f"epcx {about['epcx']}" + (f", commit {about['commit']}" if about["commit"] else "")
    return [
        f"{study.game.name} at {', '.join(study.populations)} agents",
        ", ".join(label(method) for method in study.methods),
        f"{version}, jax {about['jax']}",
        f"evaluated on {about['device']}, {about['date']}",
    ]


def write_files(
    folder: Path,
    sections: Sequence[Section],
    results: Sequence[Result],
    signature: dict[str, str],
) -> None:
    for name in ("tables", "figures", "replays"):
        (folder / name).mkdir(exist_ok=True)
        for old in (folder / name).glob("*.*"):
            old.unlink()  # an earlier report may have had other files
    for section in sections:
        for table in section.tables:
            write_bytes(folder / "tables" / f"{table.name}.csv", encode(to_csv(table, signature)))
        for chart in section.charts:
            for kind, image in chart.images.items():
                write_bytes(folder / "figures" / f"{chart.name}.{kind}", image)
        for picture in section.pictures:
            write_bytes(folder / "figures" / f"{picture.name}.png", picture.png)
        for episode in (episode for pair in section.pairs for episode in pair.replays):
            for path in replay_files(episode).values():
                replay.write(episode, folder / path)
    rows = [result.to_json() for result in results]
    write_bytes(folder / "results.json", (json.dumps(rows, indent=1) + "\n").encode())


def to_csv(table: ReportTable, signature: dict[str, str]) -> str:
    """The rows of a table, with the signature in the columns that they do not have themselves."""
    names = [name for row in table.csv_rows for name in row] + list(signature)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(names)), lineterminator="\n")
    writer.writeheader()
    for row in table.csv_rows:
        writer.writerow({name: to_cell(value) for name, value in {**signature, **row}.items()})
    return text.getvalue()


def encode(text: str) -> bytes:
    """Names of files and text from runs may have characters that are not valid Unicode."""
    return text.encode(errors="replace")


def to_cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula: such text begins with an apostrophe.

    Numbers stay as they are, also several in one cell.
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        _ = [float(word) for word in value.split()]
    except ValueError:
        return f"'{value}"
    return value
