"""Tables of a report: the cells that a page shows, and the rows of the CSV file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from epcx.evaluation.results import Cell, NormalisedCell
from epcx.evaluation.statistics import MIN_TRAININGS
from epcx.reports.chart import format_number

MISSING = "\N{EN DASH}"
CsvRow = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Note:
    """Small print of a cell: an uncertainty over episodes or over trainings, or the paper's."""

    kind: Literal["episodes", "trainings", "paper"]
    text: str


@dataclass(frozen=True)
class TableCell:
    """A number, with its uncertainty and the paper's number in small print below."""

    text: str
    notes: tuple[Note, ...] = ()
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """The first `text_columns` columns hold text, the others numbers; `notes` stand below."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | TableCell]]
    csv_rows: Sequence[CsvRow]
    text_columns: int = 1
    notes: Sequence[str] = ()


def table_cell(
    cell: Cell, paper_value: float | None = None, best: bool = False, fixed: bool = False
) -> TableCell:
    """Fixed players have no trainings, but may have met several of the opponents'."""
    paper_note = (
        () if paper_value is None else (Note("paper", f"paper {format_number(paper_value)}"),)
    )
    notes = (*paper_note, *training_notes(cell, fixed))
    return TableCell(format_number(cell.mean), notes, best)


def training_notes(cell: Cell, fixed: bool = False) -> list[Note]:
    """An interval or, of few trainings, all values; the error over episodes if there is one."""
    number = len(cell.values)
    if number == 1:
        notes = [] if fixed else [Note("trainings", "1 training")]
        return [*notes, Note("episodes", f"± {cell.error:.2g}")]
    if cell.interval:
        low, high = map(format_number, cell.interval)
        shown = f"[{low}, {high}]"
    else:
        shown = ", ".join(map(format_number, cell.values))
    among = f"against {number} trainings" if fixed else f"{number} trainings"
    return [Note("trainings", shown), Note("trainings", among)]


def explain_cells(cells: Iterable[Cell], episodes: int) -> str:
    """What the small print of a table means."""
    found = list(cells)
    parts = []
    if any(len(cell.values) == 1 for cell in found):
        parts.append(
            f"± is the standard error over {episodes:,} evaluation episodes: how well these agents "
            "were measured, not how other trainings would do."
        )
    if any(len(cell.values) > 1 and not cell.interval for cell in found):
        parts.append(
            f"Of fewer than {MIN_TRAININGS} trainings all values are listed, without an interval."
        )
    if any(cell.interval for cell in found):
        kind = "bootstrap" if any(isinstance(x, NormalisedCell) for x in found) else "Student's t"
        parts.append(f"Brackets are 95% intervals over trainings ({kind}).")
    return " ".join(parts)


def csv_cell(cell: Cell) -> CsvRow:
    """`low` and `high` are the interval that is shown, if there are enough trainings."""
    low, high = cell.interval or (None, None)
    row: CsvRow = {
        "mean": cell.mean,
        "error_over_episodes": cell.error,
        "trainings": len(cell.values),
        "values": " ".join(f"{value:.6g}" for value in cell.values),
        "low": low,
        "high": high,
    }
    if not isinstance(cell, NormalisedCell):
        row["t95_low"], row["t95_high"] = cell.student_interval or (None, None)
    return row
