"""The charts of a report, drawn with matplotlib: SVG for the page, SVG and PNG as files."""

import io
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.evaluation.results import Cell
from epcx.evolution.lineage import Lineage, Record
from epcx.reports import paper

INK, MUTED, LINE, FIELD = "#22252a", "#686d76", "#e3e0da", "#ffffff"
# In the page these colours follow its theme.
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)", FIELD: "var(--field)"}

ACCENT = "#d9622b"
FIXED_COLOURS = dict(zip(FIXED_PLAYERS, ("#8b9099", "#bcbfc5"), strict=True))
OTHER_COLOURS = ("#a3791f", "#5f8f1f", "#1f8fa3", "#5a5fd0", "#b0413e", "#6b5344", "#3b7a57")
Values = Float[np.ndarray, "points"]
# Episodes and rewards; lengths differ from curve to curve.
Curve = tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]

WIDTH, HEIGHT = 4.4, 2.9  # inches: readable on a phone, too
SIGNATURE_HEIGHT = 0.16
LEGEND_CHARACTERS = 64  # in a row of the legend
TITLE_CHARACTERS = 46  # in a line of the title
STYLE: Any = {
    "font.size": 9.0,
    "text.parse_math": False,  # names from configs may contain $
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": FIELD,
    "axes.facecolor": FIELD,
    "savefig.facecolor": FIELD,
}


def label(method: str) -> str:
    """The method as the paper writes it, followed by the settings of a variant."""
    name, space, settings = method.partition(" ")
    return paper.LABELS.get(name, name) + space + settings


def palette(methods: Sequence[str]) -> dict[str, str]:
    """A colour for each method and for fixed players; the paper's methods have their own."""
    fixed = paper.COLOURS | FIXED_COLOURS
    others = [method for method in methods if method not in fixed]
    return fixed | dict(zip(others, itertools.cycle(OTHER_COLOURS), strict=False))


@dataclass
class Chart:
    """A figure, the name of its files, and a caption.

    The signature names commit, config, trainings and device, in small print inside the figure.
    """

    name: str
    caption: str
    figure: Figure
    signature: str = ""

    @cached_property
    def images(self) -> dict[str, bytes]:
        """The figure as "svg" and as "png"."""
        figure, images = self.figure, {}
        share = SIGNATURE_HEIGHT / figure.get_figheight()
        figure.set_layout_engine("constrained", rect=(0, share, 1, 1 - share))
        # The salt keeps the ids of SVG elements distinct from those of other charts in the page.
        with mpl.rc_context(STYLE), mpl.rc_context({"svg.hashsalt": self.name}):
            note = figure.text(0.99, share / 6, self.signature, ha="right", fontsize=5.5)
            note.set(color=MUTED, parse_math=False)
            for kind, metadata in (("svg", {"Date": None}), ("png", {})):
                file = io.BytesIO()
                figure.savefig(file, format=kind, dpi=160, metadata=metadata)
                images[kind] = file.getvalue()
        return images

    @property
    def inline(self) -> str:
        """SVG for a page: without the XML prologue, in the colours of its theme."""
        svg = self.images["svg"].decode()
        svg = svg[svg.index("<svg") :]
        for fixed, themed in THEMED.items():
            svg = svg.replace(fixed, themed)
        return svg


@contextmanager
def axes(title: str, height: float = HEIGHT, width: float = WIDTH) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        ax = figure.add_subplot()
        ax.set_title(textwrap.fill(title, TITLE_CHARACTERS), pad=10)
        yield figure, ax


def legend(
    figure: Figure, methods: Sequence[str], colours: Mapping[str, str], *extra: Line2D
) -> None:
    handles = [
        Line2D([], [], color=colours[m], lw=0, marker="s", ms=7, label=label(m)) for m in methods
    ]
    longest = max(len(str(handle.get_label())) for handle in (*handles, *extra))
    figure.legend(
        handles=[*handles, *extra],
        loc="outside lower left",
        ncols=max(1, min(4, LEGEND_CHARACTERS // (longest + 5))),
        handletextpad=0.2,
        columnspacing=1.2,
        borderpad=0.0,
        borderaxespad=1.5,  # above the signature
    )


def draw_bar(ax: Axes, x: float, width: float, cell: Cell, colour: str) -> None:
    ax.bar(x, cell.mean, 0.88 * width, color=colour)


def draw_lollipop(ax: Axes, x: float, width: float, cell: Cell, colour: str) -> None:
    """For scores from 0 to 1: a dot on a stem is visible at 0, too."""
    ax.plot([x, x], [0, cell.mean], color=colour, lw=1.6, alpha=0.55, solid_capstyle="butt")
    ax.plot(x, cell.mean, "o", ms=6, color=colour, zorder=3, clip_on=False)


def draw_trainings(ax: Axes, x: float, cell: Cell, colour: str) -> None:
    """A whisker, or the trainings themselves if they are too few for an interval."""
    if cell.interval:
        ax.plot([x, x], cell.interval, color=colour, lw=1.1, solid_capstyle="butt", zorder=4)
    elif len(cell.values) > 1:
        places = np.full(len(cell.values), x)
        ax.plot(places, cell.values, "o", ms=2.6, mfc=FIELD, mec=colour, mew=0.8, zorder=4)


def bars(
    name: str,
    title: str,
    unit: str,
    groups: Mapping[str, Mapping[str, Cell]],
    colours: Mapping[str, str],
    published: Mapping[str, Mapping[str, float]],
    caption: str = "",
    draw: Callable[[Axes, float, float, Cell, str], None] = draw_bar,
) -> Chart:
    """A group of bars, or other marks, per population, one per method; diamonds are the paper's
    numbers."""
    methods = list(dict.fromkeys(method for cells in groups.values() for method in cells))
    with axes(title) as (figure, ax):
        width = 0.8 / len(methods)
        for group, (population, cells) in enumerate(groups.items()):
            for number, method in enumerate(methods):
                if method not in cells:
                    continue
                x = group + (number - (len(methods) - 1) / 2) * width
                draw(ax, x, width, cells[method], colours[method])
                draw_trainings(ax, x, cells[method], INK)
                paper_value = published.get(population, {}).get(method)
                if paper_value is not None:
                    ax.plot(x, paper_value, "D", ms=4, mfc=FIELD, mec=INK, mew=0.9, zorder=5)
        ax.axhline(0, color=MUTED, lw=0.8)
        ax.set_xticks(range(len(groups)), list(groups))
        ax.set_xlabel("agents")
        ax.set_ylabel(unit)
        extra = []
        if any(
            published.get(population, {}).keys() & cells for population, cells in groups.items()
        ):
            extra = [Line2D([], [], lw=0, marker="D", ms=4, mfc=FIELD, mec=INK, label="paper")]
        legend(figure, methods, colours, *extra)
        return Chart(name, caption, figure)


def curves(
    name: str,
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[Curve]],
    colours: Mapping[str, str],
    caption: str = "",
    band: bool = False,
) -> Chart:
    """The curves of each method's trials: their mean, and the trials or a standard deviation.

    A method with one trial is a line without a band.
    """
    with axes(title) as (figure, ax):
        for method, trials in lines.items():
            colour = colours[method]
            shared = trials[0][0]
            if len(trials) > 1 and same_episodes(trials):
                values = np.stack([y for _, y in trials])
                mean = values.mean(0)
                if band:
                    spread = values.std(0, ddof=1)
                    ax.fill_between(
                        shared, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0
                    )
                else:
                    for row in values:
                        ax.plot(shared, row, color=colour, lw=0.7, alpha=0.35)
                ax.plot(shared, mean, color=colour, lw=1.8)
            else:
                for x, y in trials:
                    ax.plot(x, y, color=colour, lw=1.6)
        ax.set_xlabel("training episodes along a lineage")
        ax.set_ylabel(unit)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_thousands(x)))
        legend(figure, list(lines), colours)
        return Chart(name, caption, figure)


def same_episodes(trials: Sequence[Curve]) -> bool:
    """Whether curves have their points at the same episodes, so that they have a mean."""
    shared = trials[0][0]
    return all(len(x) == len(shared) and bool((x == shared).all()) for x, _ in trials)


def format_thousands(episodes: float) -> str:
    return f"{episodes / 1000:g}k" if episodes >= 1000 else f"{episodes:g}"


def heat_map(
    name: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    mean: Float[np.ndarray, "rows columns"],
    axis_names: tuple[str, str],
    caption: str,
) -> Chart:
    """A cell per pairing: rows play the role that is measured; darker is a higher reward."""
    height, width = 1.3 + 0.36 * len(rows), max(WIDTH, 1.6 + 0.5 * len(columns))
    shades = LinearSegmentedColormap.from_list("reward", ["#fdf3ec", "#efa57c", "#a63c10"])
    with axes(title, height, width) as (figure, ax):
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.imshow(mean, cmap=shades, aspect="auto")
        low, high = np.nanmin(mean), np.nanmax(mean)
        for i, j in itertools.product(range(len(rows)), range(len(columns))):
            if np.isfinite(mean[i, j]):
                dark = mean[i, j] - low > 0.6 * (high - low)
                # Not INK: cells look the same in every theme.
                colour, text = "#fffdfb" if dark else "#2b2018", format_number(mean[i, j])
                ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=8.5)
        names = [label(column) for column in columns]
        ax.set_xticks(range(len(columns)), names, rotation=35, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(len(rows)), [label(r) for r in rows])
        ax.set_ylabel(axis_names[0])
        ax.set_xlabel(axis_names[1])
        return Chart(name, caption, figure)


def format_number(value: float) -> str:
    """Two or three significant digits: 0.12, 1.23, 12.3, 123."""
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def profiles(
    name: str,
    title: str,
    thresholds: Values,
    shares: Mapping[str, Values],
    colours: Mapping[str, str],
    caption: str,
) -> Chart:
    with axes(title) as (figure, ax):
        for method, share in shares.items():
            ax.step(thresholds, share, where="post", color=colours[method], lw=1.8)
        ax.set_xlabel("normalised score τ")
        ax.set_ylabel("share of training runs above τ")
        ax.set_ylim(-0.02, 1.02)
        legend(figure, list(shares), colours)
        return Chart(name, caption, figure)


def intervals(
    name: str,
    title: str,
    unit: str,
    rows: Mapping[str, tuple[float, Sequence[float], tuple[float, float] | None]],
    colours: Mapping[str, str],
    caption: str,
) -> Chart:
    """For each method an estimate, and an interval or the single trainings."""
    with axes(title, 0.9 + 0.34 * len(rows)) as (figure, ax):
        ax.grid(axis="x")
        ax.grid(visible=False, axis="y")
        methods = list(rows)[::-1]
        for y, method in enumerate(methods):
            value, trainings, interval = rows[method]
            colour = colours[method]
            if interval:
                ax.plot(interval, [y, y], color=colour, lw=6, alpha=0.45, solid_capstyle="butt")
            else:
                places = np.full(len(trainings), y)
                ax.plot(trainings, places, "o", ms=4.5, mfc=FIELD, mec=colour, mew=1.2)
            ax.plot(value, y, "|", color=colour, ms=14, mew=2.5)
        ax.set_yticks(range(len(rows)), [label(m) for m in methods])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.set_xlabel(unit)
        return Chart(name, caption, figure)


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
            text = f"{stage[0].population} agents" if stage[0].stage >= 0 else "start"
            ax.text(number, -1.1, text, ha="center", color=MUTED, fontsize=8.5)
        ax.set_xlim(-0.4, len(stages) - 0.6)
        ax.set_ylim(most - 0.6, -1.3)
        return Chart(name, caption, figure)


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
