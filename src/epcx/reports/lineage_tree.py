"""The lineage of a run, for a terminal: the ancestors of the best sets, and all promotions."""

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from epcx.evolution.lineage import Lineage, Record


def print_lineage(lineage: Lineage, console: Console) -> None:
    """For each role the ancestors of its best set, then a table of all stages."""
    last = lineage.stages - 1
    roles = list(dict.fromkeys(record.role for record in lineage.records))
    for role in roles:
        for record in lineage.promoted(last, role)[:1]:
            console.print(ancestor_tree(lineage, record))
    table = Table(box=None, padding=(0, 2), header_style="")
    for heading in ("stage", "role", "promoted, best first", "not promoted"):
        table.add_column(heading, no_wrap=heading in ("stage", "role"))
    for stage in range(last + 1):
        for role in roles:
            records = lineage.of(stage, role)
            others = [record for record in records if record.rank is None]
            others.sort(key=lambda record: (record.fitness is None, -(record.fitness or 0)))
            table.add_row(
                records[0].population,
                role,
                "  ".join(describe(record) for record in lineage.promoted(stage, role)),
                "  ".join(describe(record) for record in others),
            )
    console.print(table)


def ancestor_tree(lineage: Lineage, record: Record, tree: Tree | None = None) -> Tree:
    """A set with its ancestors below it; a parent that was mixed with itself appears once."""
    fitness = "" if record.fitness is None else f"  fitness {record.fitness:.2f}"
    label = f"[bold]{record.name}[/bold]  {record.population}{fitness}"
    parents = list(dict.fromkeys(record.parents))
    if len(parents) < len(record.parents):
        label += f"  [dim]mixed from {' + '.join(record.parents)}[/dim]"
    branch = Tree(label) if tree is None else tree.add(label)
    for name in parents:
        ancestor_tree(lineage, lineage.find(name), branch)
    return branch


def describe(record: Record) -> str:
    """Such as 1.4 (23.10)."""
    number = record.name.rsplit("-", 1)[-1]
    if record.diverged:
        return f"{number} (diverged)"
    return number if record.fitness is None else f"{number} ({record.fitness:.2f})"
