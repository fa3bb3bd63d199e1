"""The chart of a lineage: every agent set with its fitness and its parents, and as an outline."""

import itertools

import numpy as np
from matplotlib.axes import Axes

from epcx.evolution.lineage import Lineage, Record
from epcx.reports.chart import (
    ACCENT,
    FIELD,
    INK,
    LINE,
    MUTED,
    WIDTH,
    Chart,
    Mark,
    OutlineItem,
    axes,
    format_number,
)


def lineage_chart(name: str, title: str, lineage: Lineage, role: str, caption: str) -> Chart:
    """A column per stage with its agent sets, the fittest on top, and lines to their parents."""
    columns = (by_fitness(lineage.of(stage, role)) for stage in range(-1, lineage.stages))
    stages = [column for column in columns if column]  # the first one may be of another run
    most = max(len(stage) for stage in stages)
    places = {
        record.name: (float(number), rank + (most - len(stage)) / 2)
        for number, stage in enumerate(stages)
        for rank, record in enumerate(stage)
    }
    best = ancestors(lineage, stages[-1][0])
    with axes(title, 1.0 + 0.5 * most, max(WIDTH, 1.3 + 1.5 * len(stages))) as (figure, ax):
        ax.set_axis_off()
        for record in itertools.chain(*stages):
            for parent in dict.fromkeys(record.parents):
                in_best = {parent, record.name} <= best
                draw_edge(ax, places[parent], places[record.name], in_best, record)
        for record in itertools.chain(*stages):
            draw_node(ax, *places[record.name], record, record.name in best)
        for number, stage in enumerate(stages):
            ax.text(number, -1.1, heading(stage), ha="center", color=MUTED, fontsize=8.5)
        ax.set_xlim(-0.4, len(stages) - 0.6)
        ax.set_ylim(most - 0.6, -1.3)
        marks = [
            Mark(ax, record.name, "\n".join(facts(record)), places[record.name])
            for record in itertools.chain(*stages)
        ]
        outline = [
            (heading(stage), [outline_item(record, record.name in best) for record in stage])
            for stage in stages
        ]
        return Chart(name, caption, figure, marks, outline)


def heading(stage: list[Record]) -> str:
    return f"{stage[0].population} agents" if stage[0].stage >= 0 else "start"


def facts(record: Record) -> list[str]:
    """Its fitness, whether it was promoted, and the sets that it was mixed from."""
    found = ["diverged"] if record.diverged else []
    if record.fitness is not None:
        found.append(f"fitness {format_number(record.fitness)}")
    found.append("not promoted" if record.rank is None else f"promoted, rank {record.rank + 1}")
    if record.parents:
        found.append(f"from {' + '.join(map(short, record.parents))}")
    return found


def short(name: str) -> str:
    """Such as 1.4, of sheep-1.4."""
    return name.rsplit("-", 1)[-1]


def outline_item(record: Record, best: bool) -> OutlineItem:
    fitness = "" if record.fitness is None else f" {format_number(record.fitness)}"
    origin = f", from {' + '.join(map(short, record.parents))}" if record.parents else ""
    text = f"{short(record.name)}:{' diverged' * record.diverged}{fitness}{origin}"
    return OutlineItem(text, record.rank is not None, best)


def by_fitness(records: list[Record]) -> list[Record]:
    def key(record: Record) -> tuple[bool, float, int]:
        return record.fitness is None, -(record.fitness or 0.0), record.match

    return sorted(records, key=key)


def ancestors(lineage: Lineage, record: Record) -> set[str]:
    """The names of a set and of all its ancestors."""
    found, left = set(), [record]
    while left:
        one = left.pop()
        if one.name not in found:
            found.add(one.name)
            left += [lineage.find(parent) for parent in one.parents]
    return found


def draw_edge(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], best: bool, child: Record
) -> None:
    """Thicker where a set was mixed with itself."""
    share = np.linspace(0, 1, 24)
    eased = share * share * (3 - 2 * share)
    x = start[0] + 0.06 + share * (end[0] - start[0] - 0.12)
    y = start[1] + eased * (end[1] - start[1])
    with_itself = len(child.parents) > 1 and len(set(child.parents)) == 1
    colour = ACCENT if best else MUTED if child.rank is not None else LINE
    ax.plot(x, y, color=colour, lw=(2.4 if with_itself else 1.2), zorder=2 if best else 1)


def draw_node(ax: Axes, x: float, y: float, record: Record, best: bool) -> None:
    promoted = record.rank is not None
    face = ACCENT if best else MUTED if promoted else FIELD
    edge = face if promoted else MUTED
    ax.plot(x, y, "o", ms=9, mfc=face, mec=edge, mew=1.1, zorder=3)
    text = "" if record.fitness is None else format_number(record.fitness)
    ax.text(
        x,
        y - 0.27,
        "diverged" if record.diverged else text,
        ha="center",
        va="bottom",
        fontsize=8,
        color=INK if promoted else MUTED,
        zorder=4,
    )
