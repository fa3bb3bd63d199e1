"""Writes a report: the page, and its tables, charts and results as files beside it."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from epcx.errors import InputError, RunError, reason
from epcx.evaluation.results import Result
from epcx.evaluation.scorebook import Scorebook
from epcx.reports import content, replay
from epcx.reports.figures import label
from epcx.reports.findings import Findings, Pair, Section, slug
from epcx.reports.grids import Grid
from epcx.reports.page import to_html
from epcx.reports.recording import record
from epcx.reports.replay import Replay
from epcx.runs.files import write_bytes
from epcx.runs.provenance import describe
from epcx.study import Study

PAGE = "index.html"
BOOK = "games.jsonl"


def make_folder(folder: Path) -> None:
    """A new folder, or that of an earlier report: others have files of their own."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir()) and not (folder / BOOK).exists()
    except OSError as error:
        raise InputError(f"report folder {folder} cannot be made: {reason(error)}") from None
    if taken:
        raise InputError(f"folder {folder} has other files than a report: choose another --out")


def write_report(
    study: Study,
    folder: Path,
    episodes: int,
    title: str,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, Findings]:
    """Plays the games of a study and writes what came of them; the page, and what it tells.

    Games that an earlier report in the same folder has played are not played again.
    """
    make_folder(folder)
    results = study.play(episodes, Scorebook(folder / BOOK), watch)
    findings = Findings(study, results, episodes)
    sections = content.sections(findings, episodes_to_watch(study))
    lead = content.headline(findings), content.how_sure(findings)
    page = to_html(title, *lead, facts(study), sections)
    try:
        write_files(folder, sections, results, study.signature())
        write_bytes(folder / PAGE, page.encode())
    except OSError as error:
        raise RunError(f"the report in {folder} cannot be written: {reason(error)}") from None
    return folder / PAGE, findings


def facts(study: Study) -> list[str]:
    """Where and when the report itself was made."""
    made = describe()
    methods = ", ".join(label(method) for method in study.methods)
    known = f"epcx {made['epcx']}" + (f", commit {made['commit']}" if made["commit"] else "")
    return [
        f"{study.name} at {', '.join(study.populations)} agents",
        methods,
        f"{known}, jax {made['jax']}",
        f"measured on {made['device']}, {made['date']}",
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
            old.unlink()  # of an earlier report, that may have had others
    for section in sections:
        for grid in section.grids:
            write_bytes(folder / "tables" / f"{grid.name}.csv", to_csv(grid, signature).encode())
        for chart in section.charts:
            for kind, picture in chart.drawn.items():
                write_bytes(folder / "figures" / f"{chart.name}.{kind}", picture)
        for episode in (episode for pair in section.pairs for episode in pair.replays):
            for kind in (".json", ".png"):
                replay.write(episode, folder / "replays" / f"{slug(episode.title)}{kind}")
    rows = [result.to_json() for result in results]
    write_bytes(folder / "results.json", (json.dumps(rows, indent=1) + "\n").encode())


def to_csv(grid: Grid, signature: dict[str, str]) -> str:
    """Every row says what it was made with, unless it says so already."""
    rows = [{**signature, **row} for row in grid.file]
    columns = list(dict.fromkeys(name for row in grid.file for name in row)) + list(signature)
    columns = list(dict.fromkeys(columns))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def episodes_to_watch(study: Study) -> list[Pair]:
    """At the largest population the yardstick beside, or against, every other method.

    A method alone plays by itself.
    """
    population = study.populations[-1]
    game, everybody = study.at(population), study.everybody(population)
    methods, best = list(study.trials[population]), study.yardstick(population)
    first, *others = game.members
    known: dict[str, Replay] = {}

    def episode(one: str, other: str) -> Replay:
        """`one` plays the first role, `other` all others."""
        title = f"{label(one)}, {population} agents"
        if others:
            title = f"{label(one)} {first}, {label(other)} {' and '.join(others)}"
        if title not in known:
            sides = {first: one} | dict.fromkeys(others, other)
            chosen = {role: everybody[who][0].side(game, role) for role, who in sides.items()}
            known[title] = record(game, chosen, jax.random.key(0), title)
        return known[title]

    if len(methods) == 1:
        return [Pair(label(methods[0]), (episode(methods[0], methods[0]),))]
    joined = "against" if others else "beside"
    rivals = [method for method in methods if method != best]
    return [
        Pair(f"{label(best)} {joined} {label(rival)}", (episode(best, rival), episode(rival, best)))
        for rival in rivals
    ]
