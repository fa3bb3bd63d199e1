"""The lineage of a run, for a terminal: the ancestors of the best sets, and all promotions."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from epcx.errors import one_line
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
            if not records:
                continue
            others = [record for record in records if record.rank is None]
            others.sort(key=lambda record: (record.fitness is None, -(record.fitness or 0)))
            table.add_row(
                shown(records[0].population),
                shown(role),
                "  ".join(describe(record) for record in lineage.promoted(stage, role)),
                "  ".join(describe(record) for record in others),
            )
    console.print(table)


def ancestor_tree(lineage: Lineage, record: Record) -> Tree:
    """A set with its ancestors below it; those of a set that appears again are not repeated."""
    root = Tree("", hide_root=True)
    seen: set[str] = set()
    waiting = [(record, root)]
    while waiting:
        record, below = waiting.pop()
        label = f"[bold]{shown(record.name)}[/bold]"
        if record.name in seen and record.parents:
            below.add(f"{label}  [dim](see above)[/dim]")
            continue
        seen.add(record.name)
        branch = below.add(label + facts(record))
        parents = [lineage.find(name) for name in dict.fromkeys(record.parents)]
        waiting += [(parent, branch) for parent in reversed(parents)]
    return root.children[0]


def facts(record: Record) -> str:
    """Population and fitness, and the parents if one was mixed with itself."""
    fitness = "" if record.fitness is None else f"  fitness {record.fitness:.2f}"
    text = f"  {shown(record.population)}{fitness}"
    if len(set(record.parents)) < len(record.parents):
        text += f"  [dim]mixed from {' + '.join(map(shown, record.parents))}[/dim]"
    return text


def shown(text: str) -> str:
    """Text from a file, as it is and nothing else."""
    return escape(one_line(text))


def describe(record: Record) -> str:
    """Such as 1.4 (23.10)."""
    number = shown(record.name.rsplit("-", 1)[-1])
    if record.diverged:
        return f"{number} (diverged)"
    return number if record.fitness is None else f"{number} ({record.fitness:.2f})"
