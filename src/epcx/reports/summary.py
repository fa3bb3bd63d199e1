"""The scores of a report, for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx.reports.report_data import ReportData
from epcx.reports.scores import score_tables, score_texts
from epcx.reports.tables import TableCell
from epcx.reports.words import headlines, uncertainty_note


def print_scores(data: ReportData) -> None:
    console = Console(highlight=False)
    for sentence in headlines(data):
        console.print(f"\n[bold]{escape(sentence)}[/bold]")
    for line in (*score_texts(data), uncertainty_note(data)):
        console.print(line, markup=False)
    for scores in score_tables(data):
        console.print(f"\n{scores.caption}", markup=False, style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
        # Transposed, with methods as rows: that fits a narrow terminal.
        headings, *rows = zip(scores.header, *scores.rows, strict=True)
        for heading in headings:
            table.add_column(escape(str(heading)), justify="right" if table.columns else "left")
        for row in rows:
            table.add_row(*(escape(x) if isinstance(x, str) else cell_lines(x) for x in row))
        console.print(table)
        for note in scores.notes:
            console.print(note, markup=False)


def cell_lines(cell: TableCell) -> str:
    """The number, and below it its uncertainty and the paper's number, in words."""
    notes = [
        f"{note.text} episodes" if note.kind == "episodes" else note.text for note in cell.notes
    ]
    number = escape(cell.text)
    return "\n".join([f"[bold]{number}[/bold]" if cell.best else number, *map(escape, notes)])
