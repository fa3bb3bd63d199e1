"""The scores of a report, for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx.reports.content import headline, uncertainty_note
from epcx.reports.report_data import ReportData
from epcx.reports.scores import score_note, score_tables
from epcx.reports.tables import TableCell


def print_scores(data: ReportData) -> None:
    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(headline(data))}[/bold]")
    for line in (score_note(data), uncertainty_note(data)):
        console.print(line, markup=False)
    for scores in score_tables(data):
        console.print(f"\n{scores.caption}", markup=False, style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
        # Transposed, with methods as rows: that fits a narrow terminal.
        headings, *rows = zip(scores.header, *scores.rows, strict=True)
        for heading in headings:
            table.add_column(escape(str(heading)), justify="right" if table.columns else "left")
        for row in rows:
            table.add_row(*(escape(x if isinstance(x, str) else cell_lines(x)) for x in row))
        console.print(table)


def cell_lines(cell: TableCell) -> str:
    """The number with its uncertainty, and further notes below."""
    uncertainty, *others = (*cell.notes, "")
    return "\n".join(filter(None, (f"{cell.text} {uncertainty}", *others)))
