"""Tables of a report: the cells that a page shows, and the rows of the CSV file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.evaluation.results import Cell
from epcx.reports.figures import format_number, label

MISSING = "\N{EN DASH}"
CsvRow = dict[str, str | int | float | None]


@dataclass(frozen=True)
class TableCell:
    """A number, with its uncertainty and the paper's number in small print below."""

    text: str
    notes: tuple[str, ...] = ()
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """The first `text_columns` columns hold text, the others numbers."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    csv_rows: Sequence[CsvRow]
    text_columns: int = 1


def score_table(
    name: str,
    caption: str,
    groups: Mapping[str, Mapping[str, Cell]],
    role: str,
    published: Mapping[str, Mapping[str, float]] | None = None,
    highlight: bool = True,
) -> ReportTable:
    """A row per population and a column per method; `highlight` marks the best method."""
    methods = list(dict.fromkeys(method for cells in groups.values() for method in cells))
    rows: list[list[str | TableCell]] = []
    csv_rows: list[CsvRow] = []
    for population, cells in groups.items():
        from_paper = (published or {}).get(population, {})
        means = [cell.mean for method, cell in cells.items() if method not in FIXED_PLAYERS]
        row: list[str | TableCell] = [population]
        for method in methods:
            if method not in cells:
                row.append(TableCell(MISSING))
                continue
            cell, paper_value = cells[method], from_paper.get(method)
            compared = highlight and method not in FIXED_PLAYERS and len(means) > 1
            row.append(table_cell(cell, paper_value, compared and cell.mean == max(means)))
            place: CsvRow = {"population": population, "role": role, "method": method}
            csv_rows.append({**place, **csv_cell(cell), "paper": paper_value})
        rows.append(row)
    return ReportTable(name, caption, ["agents", *map(label, methods)], rows, csv_rows)


def table_cell(cell: Cell, paper_value: float | None = None, best: bool = False) -> TableCell:
    if cell.interval:
        low, high = map(format_number, cell.interval)
        uncertainty = f"[{low}, {high}]"
    else:
        uncertainty = f"± {cell.error:.2g}"
    paper_note = () if paper_value is None else (f"paper {format_number(paper_value)}",)
    return TableCell(format_number(cell.mean), (uncertainty, *paper_note), best)


def csv_cell(cell: Cell) -> CsvRow:
    low, high = cell.interval or (None, None)
    return {
        "mean": cell.mean,
        "error_over_episodes": cell.error,
        "trials": len(cell.values),
        "low": low,
        "high": high,
    }
