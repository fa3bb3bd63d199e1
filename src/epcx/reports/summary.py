"""The scores of a report, for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epcx.reports.content import headline, how_sure
from epcx.reports.findings import Findings
from epcx.reports.grids import Entry
from epcx.reports.scores import score_grids, scoring


def print_scores(findings: Findings) -> None:
    """The scores of a report, for a terminal."""
    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(headline(findings))}[/bold]")
    for line in (scoring(findings), how_sure(findings)):
        console.print(line, markup=False)
    for grid in score_grids(findings):
        console.print(f"\n{grid.caption}", markup=False, style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
        # Methods are rows here, and populations columns: that fits a narrow terminal.
        headings, *rows = zip(grid.header, *grid.rows, strict=True)
        for heading in headings:
            table.add_column(escape(str(heading)), justify="right" if table.columns else "left")
        for row in rows:
            table.add_row(*(escape(x if isinstance(x, str) else in_lines(x)) for x in row))
        console.print(table)


def in_lines(entry: Entry) -> str:
    """The number and how sure it is, and below what others found."""
    sure, *others = (*entry.notes, "")
    return "\n".join(filter(None, (f"{entry.text} {sure}", *others)))
