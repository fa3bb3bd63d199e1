"""Tables and charts of a report that show methods side by side, at every population."""

from collections.abc import Mapping

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.evaluation.results import SCORE, Cell
from epcx.evaluation.study import game_episodes
from epcx.reports import figures
from epcx.reports.chart import Chart, label
from epcx.reports.report_data import ReportData
from epcx.reports.tables import (
    MISSING,
    CsvRow,
    ReportTable,
    TableCell,
    csv_cell,
    explain_cells,
    table_cell,
)
from epcx.reports.words import among, budget_note, dots_caption


def score_table(
    data: ReportData,
    name: str,
    caption: str,
    groups: Mapping[str, Mapping[str, Cell]],
    role: str,
    published: Mapping[str, Mapping[str, float]] | None = None,
    highlight: bool = True,
    purpose: str = SCORE,
) -> ReportTable:
    """A row per population and a column per method.

    `highlight` marks the best of the methods that share their settings; `purpose` is that of the
    games behind the cells.
    """
    study = data.study
    found = {method for cells in groups.values() for method in cells}
    methods = [method for method in (*study.methods, *FIXED_PLAYERS) if method in found]
    rows: list[list[str | TableCell]] = []
    csv_rows: list[CsvRow] = []
    for population, cells in groups.items():
        from_paper = (published or {}).get(population, {})
        best = best_methods(data, cells) if highlight else set()
        row: list[str | TableCell] = [population]
        for method in methods:
            if method not in cells:
                row.append(TableCell(MISSING))
                continue
            cell, paper_value = cells[method], from_paper.get(method)
            fixed = method in FIXED_PLAYERS
            row.append(table_cell(cell, paper_value, method in best, fixed))
            lineage, total = study.episodes(method, population) or (None, None)
            csv_rows.append(
                {
                    "population": population,
                    "role": role,
                    "method": method,
                    "settings": data.settings.get(method),
                    **csv_cell(cell),
                    "episodes_along_a_lineage": lineage,
                    "episodes_in_total": total,
                    "paper": paper_value,
                }
            )
        rows.append(row)
    shown = (x for cells in groups.values() for x in cells.values())
    notes = [explain_cells(shown, game_episodes(purpose, data.episodes))]
    if highlight and len(data.groups) > 1:
        notes.append("Marked: the highest of the methods with the same settings.")
    notes.append(budget_note(study, list(groups), methods))
    header = ["agents", *map(label, methods)]
    return ReportTable(name, caption, header, rows, csv_rows, notes=[x for x in notes if x])


def best_methods(data: ReportData, cells: Mapping[str, Cell]) -> set[str]:
    """The best of each setting, where it has several methods; fixed players are not among them."""
    best = set()
    for group in data.groups:
        found = among(cells, group.methods)
        if len(found) > 1:
            highest = max(cell.mean for cell in found.values())
            best |= {method for method, cell in found.items() if cell.mean == highest}
    return best


def bar_charts(
    data: ReportData,
    name: str,
    title: str,
    unit: str,
    groups: Mapping[str, Mapping[str, Cell]],
    published: Mapping[str, Mapping[str, float]],
) -> list[Chart]:
    """A chart for each setting: its methods, beside the fixed players.

    `name` is also that of the table with its numbers.
    """
    charts = []
    for group in data.groups:
        chosen = {
            population: among(cells, [*group.methods, *FIXED_PLAYERS])
            for population, cells in groups.items()
            if among(cells, group.methods)
        }
        if chosen:
            file, heading = name + group.suffix, title + group.heading
            chart = figures.bars(
                file,
                heading,
                unit,
                chosen,
                data.looks,
                published,
                data.training_names,
                dots_caption(chosen.values()),
            )
            chart.table = name
            charts.append(chart)
    return charts
