"""Tables of a report: what a page shows, and what a file holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epcx.evaluation.players import SCRIPTS
from epcx.evaluation.results import Cell, Place
from epcx.reports.figures import label, short

NOTHING = "\N{EN DASH}"
SCRIPT_NAMES = tuple(script.name for script in SCRIPTS)


@dataclass(frozen=True)
class Entry:
    """A cell of a table: the number, and smaller below it how sure it is and what others found."""

    text: str
    notes: tuple[str, ...] = ()
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: the first columns are words, the others numbers; and its rows as a file has them."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    file: Sequence[dict[str, Any]]
    words: int = 1


def score_grid(
    name: str,
    caption: str,
    groups: Mapping[str, Mapping[str, Cell]],
    role: str,
    published: Mapping[Place, Mapping[str, float]] | None = None,
    mark: bool = True,
) -> Grid:
    """A row per population, a column per method; `mark` makes the best method stand out."""
    methods = list(dict.fromkeys(method for cells in groups.values() for method in cells))
    rows: list[list[str | Entry]] = []
    file = []
    for population, cells in groups.items():
        said = (published or {}).get((population, role), {})
        learnt = [cell.mean for method, cell in cells.items() if method not in SCRIPT_NAMES]
        row: list[str | Entry] = [population]
        for method in methods:
            if method not in cells:
                row.append(Entry(NOTHING))
                continue
            cell = cells[method]
            rival = mark and method not in SCRIPT_NAMES and len(learnt) > 1
            row.append(entry(cell, said.get(method), rival and cell.mean == max(learnt)))
            file.append(
                {
                    "population": population,
                    "role": role,
                    "method": method,
                    **file_cell(cell),
                    "paper": said.get(method),
                }
            )
        rows.append(row)
    return Grid(name, caption, ["agents", *(label(m) for m in methods)], rows, file)


def entry(cell: Cell, said: float | None = None, best: bool = False) -> Entry:
    if cell.interval:
        sure = f"[{short(cell.interval[0])}, {short(cell.interval[1])}]"
    else:
        sure = f"± {cell.error:.2g}"
    notes = (sure,) if said is None else (sure, f"paper {short(said)}")
    return Entry(short(cell.mean), notes, best)


def file_cell(cell: Cell) -> dict[str, Any]:
    low, high = cell.interval or (None, None)
    return {
        "mean": cell.mean,
        "error_over_episodes": cell.error,
        "trainings": len(cell.values),
        "low": low,
        "high": high,
    }
