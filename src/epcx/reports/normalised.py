"""The section of a report with normalised scores, as the paper defines them."""

from collections.abc import Mapping

from epcx.evaluation.results import SCORE, Table, normalise
from epcx.reports import figures
from epcx.reports.report_data import ReportData, Section, by_population, roles_of, slug
from epcx.reports.tables import CsvRow, ReportTable, csv_cell
from epcx.reports.words import among, dots_caption

MIN_NORMALISED = 3  # methods


def normalised_scores(data: ReportData) -> Section | None:
    """Scores from 0 to 1 as in the paper's figures, where a setting has enough methods."""
    table = data.table(SCORE)
    text = (
        "As the paper defines them: at each population and role 0 is the lowest reward of all "
        "methods, and 1 the highest. So the lowest is at 0 however close it is, and a score "
        "depends on who else takes part; the raw rewards are above."
    )
    section = Section("normalised", "Normalised scores", [text])
    for role in roles_of(table):
        add_normalised(section, data, table, role, "normalised", data.published(role))
    return section if section.charts else None


def add_normalised(
    section: Section,
    data: ReportData,
    table: Table,
    role: str,
    name: str,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """A chart for each setting, at populations with three methods or more, and a CSV file of all.

    Of two methods one would be 0, the other 1.
    """
    csv_rows: list[CsvRow] = []
    for group in data.groups:
        compared = {
            task: cells
            for task, cells in table.items()
            if task[1] == role and len(among(cells, group.methods)) >= MIN_NORMALISED
        }
        groups = by_population(normalise(compared, group.methods), role)
        if not groups:
            continue
        from_paper = {
            population: rescaled({m: v for m, v in numbers.items() if m in groups[population]})
            for population, numbers in (published or {}).items()
            if population in groups
        }
        chart = figures.bars(
            f"{name}-{slug(role)}{group.suffix}",
            f"Normalised score of {role}{group.heading}",
            "score",
            groups,
            data.looks,
            from_paper,
            data.training_names,
            dots_caption(groups.values(), "Large dots"),
            figures.draw_lollipop,
        )
        chart.table = f"{name}-{slug(role)}"
        section.charts.append(chart)
        csv_rows += [
            {
                "population": population,
                "role": role,
                "settings": group.settings,
                "method": method,
                **csv_cell(cell),
                "paper": from_paper.get(population, {}).get(method),
            }
            for population, cells in groups.items()
            for method, cell in cells.items()
        ]
    if csv_rows:
        section.tables.append(ReportTable(f"{name}-{slug(role)}", "", [], [], csv_rows))


def rescaled(values: dict[str, float]) -> dict[str, float]:
    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    return {m: (x - low) / (high - low) if high > low else 0.0 for m, x in values.items()}
