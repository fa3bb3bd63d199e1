"""The charts that compare methods, drawn with matplotlib."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.optimize import isotonic_regression

from epcx.evaluation.results import Cell
from epcx.reports.chart import (
    FIELD,
    INK,
    MUTED,
    WIDTH,
    Chart,
    Look,
    Mark,
    axes,
    format_number,
    format_thousands,
    label,
    legend,
)

Values = Float[np.ndarray, "points"]
# Episodes and rewards; lengths differ from curve to curve.
Curve = tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]
TrainingNames = Callable[[str, str], Sequence[str]]  # of a population and a method

CURVE_MARKS = 32  # points of a curve that tell their values
LABEL_GAP = 0.075  # between the labels of curves, as a share of the height
MAX_TICK_CHARACTERS = 32  # below a chart, side by side


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
    looks: Mapping[str, Look],
    published: Mapping[str, Mapping[str, float]],
    trainings: TrainingNames,
    caption: str = "",
    draw: Callable[[Axes, float, float, Cell, str], None] = draw_bar,
) -> Chart:
    """A group of bars, or other marks, per population, one per method in the order of `looks`;
    diamonds are the paper's numbers."""
    methods = [method for method in looks if any(method in cells for cells in groups.values())]
    marks = []
    with axes(title) as (figure, ax):
        width = 0.8 / len(methods)
        for group, (population, cells) in enumerate(groups.items()):
            for number, method in enumerate(methods):
                if method not in cells:
                    continue
                x = group + (number - (len(methods) - 1) / 2) * width
                draw(ax, x, width, cells[method], looks[method].colour)
                draw_trainings(ax, x, cells[method], INK)
                paper_value = published.get(population, {}).get(method)
                if paper_value is not None:
                    ax.plot(x, paper_value, "D", ms=4, mfc=FIELD, mec=INK, mew=0.9, zorder=5)
                who = f"{label(method)}, {population} agents"
                names = trainings(population, method)
                marks += bar_marks(ax, who, x, width, cells[method], names, paper_value)
        ax.axhline(0, color=MUTED, lw=0.8)
        crowded = sum(map(len, groups)) > MAX_TICK_CHARACTERS
        ax.set_xticks(range(len(groups)), list(groups))
        if crowded:
            ax.tick_params("x", rotation=35)
        ax.set_xlabel("agents")
        ax.set_ylabel(unit)
        extra = []
        if any(
            published.get(population, {}).keys() & cells for population, cells in groups.items()
        ):
            extra = [Line2D([], [], lw=0, marker="D", ms=4, mfc=FIELD, mec=INK, label="paper")]
        legend(figure, methods, looks, *extra)
        return Chart(name, caption, figure, marks)


def bar_marks(
    ax: Axes,
    who: str,
    x: float,
    width: float,
    cell: Cell,
    names: Sequence[str],
    paper_value: float | None,
) -> list[Mark]:
    """The bar, its trainings where they are drawn, and the paper's number."""
    corners = (x - width / 2, 0.0), (x + width / 2, cell.mean)
    text = describe_cell(cell, names)
    marks = []
    if paper_value is not None:
        published = f"paper {format_number(paper_value)}"
        text += f"\n{published}"
        marks.append(Mark(ax, who, published, (x, paper_value)))
    if len(cell.values) > 1 and not cell.interval and len(names) == len(cell.values):
        marks += [
            Mark(ax, who, f"{training}: {format_number(value)} ± {error:.2g}", (x, float(value)))
            for training, value, error in zip(names, cell.values, cell.errors, strict=True)
        ]
    return [Mark(ax, who, text, *corners), *marks]


def describe_cell(cell: Cell, names: Sequence[str] = ()) -> str:
    """The mean with its interval over trainings, or with the single training and its error."""
    number, mean = len(cell.values), format_number(cell.mean)
    if number == 1:
        return f"{mean} ± {cell.error:.2g} over episodes" + "".join(f"\n{x}" for x in names)
    if cell.interval:
        low, high = map(format_number, cell.interval)
        return f"{mean} [{low}, {high}]\n95% interval, {number} trainings"
    return f"{mean}\nmean of {number} trainings"


def curves(
    name: str,
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[Curve]],
    looks: Mapping[str, Look],
    trainings: Mapping[str, Sequence[str]],
    caption: str = "",
    band: bool = False,
) -> Chart:
    """The curves of each method's trials: their mean, and the trials or a standard deviation.

    A method with one trial is a line without a band. Methods differ in colour, dashes and markers,
    and have their names at the ends of their curves.
    """
    marks: list[Mark] = []
    ends: dict[str, tuple[float, float]] = {}
    with axes(title) as (figure, ax):
        for number, (method, trials) in enumerate(lines.items()):
            look = looks[method]
            names = [f"{label(method)}, {training}" for training in trainings[method]]
            line = {**look.line, "markevery": marker_places(number, len(lines))}
            if len(trials) > 1 and same_episodes(trials):
                shared, values = trials[0][0], np.stack([y for _, y in trials])
                mean, spread = values.mean(0), values.std(0, ddof=1)
                if band:
                    area = mean - spread, mean + spread
                    ax.fill_between(shared, *area, color=look.colour, alpha=0.2, lw=0)
                else:
                    for training, row in zip(names, values, strict=True):
                        ax.plot(shared, row, color=look.colour, lw=0.7, alpha=0.35)
                        marks += curve_marks(ax, training, shared, row)
                ax.plot(shared, mean, lw=1.8, **line)
                who = f"{label(method)}, mean of {len(trials)} trainings"
                marks += curve_marks(ax, who, shared, mean, spread)
                ends[method] = last_point(shared, mean)
            else:
                for training, (x, y) in zip(names, trials, strict=True):
                    ax.plot(x, y, lw=1.6, **line)
                    marks += curve_marks(ax, training, x, y)
                    ends[method] = last_point(x, y)
        ax.set_xlabel("training episodes along a lineage")
        ax.set_ylabel(unit)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_thousands(x)))
        label_ends(ax, ends, looks)
        return Chart(name, caption, figure, marks)


def marker_places(number: int, curves: int) -> tuple[float, float]:
    """The first marker and the gap to the next, for matplotlib: curves that hide each other have
    theirs at different places."""
    return 0.03 + 0.2 * number / curves, 0.2


def same_episodes(trials: Sequence[Curve]) -> bool:
    """Whether curves have their points at the same episodes, so that they have a mean."""
    shared = trials[0][0]
    return all(len(x) == len(shared) and bool((x == shared).all()) for x, _ in trials)


def last_point(x: Values, y: Values) -> tuple[float, float]:
    """The last one that is a number, or NaN."""
    finite = np.flatnonzero(np.isfinite(y))
    return (float(x[finite[-1]]), float(y[finite[-1]])) if len(finite) else (np.nan, np.nan)


def curve_marks(
    ax: Axes, series: str, x: Values, y: Values, spread: Values | None = None
) -> list[Mark]:
    """Some points of a curve, evenly spaced."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_MARKS)).round().astype(int))
    return [
        Mark(
            ax,
            series,
            f"{format_number(y[k])} at {x[k]:,.0f} episodes"
            + ("" if spread is None else f"\nstandard deviation {format_number(spread[k])}"),
            (float(x[k]), float(y[k])),
        )
        for k in chosen
        if np.isfinite(y[k])
    ]


def label_ends(
    ax: Axes, ends: Mapping[str, tuple[float, float]], looks: Mapping[str, Look]
) -> None:
    """Names to the right of the axes, beside the ends of their curves but not over each other."""
    ax.set_xlim(ax.get_xlim())
    ax.set_ylim(ax.get_ylim())
    low, high = ax.get_ylim()
    named = {method: label(method).replace(" (", "\n(", 1) for method in ends}
    wanted = {
        method: 0.5 if np.isnan(y) else (y - low) / (high - low) for method, (_, y) in ends.items()
    }
    order = sorted(ends, key=lambda method: wanted[method])
    heights = np.array([LABEL_GAP * (1 + named[method].count("\n")) for method in order])
    places = spread_out(np.array([wanted[method] for method in order]), heights)
    for method, place in zip(order, places.tolist(), strict=True):
        x, y = ends[method]
        colour = looks[method].colour
        if not np.isnan(y):
            ax.annotate(
                "",
                (1.03, place),
                (x, y),
                "axes fraction",
                "data",
                arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 0},
                annotation_clip=False,
            )
        ax.plot(1.055, place, looks[method].marker, ms=4.5, color=colour, clip_on=False,
                transform=ax.transAxes)  # fmt: skip
        ax.text(1.085, place, named[method], fontsize=8, va="center", linespacing=1.0,
                transform=ax.transAxes)  # fmt: skip


def spread_out(wanted: Values, heights: Values) -> Values:
    """Places near those wanted, ascending, that leave each its height; all within 0 and 1 if
    there is room."""
    gaps = (heights[1:] + heights[:-1]) / 2
    below = np.concatenate([[0.0], gaps.cumsum()])  # room that the lower ones take
    # With the room taken away, places only have to ascend: the best fit is isotonic regression.
    ascending: Values = isotonic_regression(wanted - below).x
    return ascending.clip(0.0, max(1.0 - below[-1], 0.0)) + below


def heat_map(
    name: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    axis_names: tuple[str, str],
    caption: str,
) -> Chart:
    """A cell per pairing: rows play the role that is measured; darker is a higher reward."""
    height, width = 1.3 + 0.36 * len(rows), max(WIDTH, 1.6 + 0.5 * len(columns))
    shades = LinearSegmentedColormap.from_list("reward", ["#fdf3ec", "#efa57c", "#a63c10"])
    mean = np.array([[cell.mean for cell in row] for row in cells])
    marks = []
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
                who = f"{label(rows[i])} against {label(columns[j])}"
                corners = (j - 0.5, i - 0.5), (j + 0.5, i + 0.5)
                marks.append(Mark(ax, who, describe_cell(cells[i][j]), *corners))
        names = [label(column) for column in columns]
        ax.set_xticks(range(len(columns)), names, rotation=35, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(len(rows)), [label(r) for r in rows])
        ax.set_ylabel(axis_names[0])
        ax.set_xlabel(axis_names[1])
        return Chart(name, caption, figure, marks)


def profiles(
    name: str,
    title: str,
    thresholds: Values,
    shares: Mapping[str, Values],
    looks: Mapping[str, Look],
    caption: str,
) -> Chart:
    marks = []
    with axes(title) as (figure, ax):
        for number, (method, share) in enumerate(shares.items()):
            ax.plot(
                thresholds,
                share,
                drawstyle="steps-post",
                lw=1.8,
                markevery=marker_places(number, len(shares)),
                **looks[method].line,
            )
            marks += [
                Mark(ax, label(method), f"{y:.0%} of training runs above {x:.2f}", (x, y))
                for x, y in zip(thresholds[::4].tolist(), share[::4].tolist(), strict=True)
            ]
        ax.set_xlabel("normalised score τ")
        ax.set_ylabel("share of training runs above τ")
        ax.set_ylim(-0.02, 1.02)
        legend(figure, list(shares), looks, lines=True)
        return Chart(name, caption, figure, marks)


def intervals(
    name: str,
    title: str,
    unit: str,
    rows: Mapping[str, tuple[float, Sequence[float], tuple[float, float] | None]],
    looks: Mapping[str, Look],
    caption: str,
) -> Chart:
    """For each method an estimate, and an interval or the single trainings."""
    marks = []
    with axes(title, 0.9 + 0.34 * len(rows)) as (figure, ax):
        ax.grid(axis="x")
        ax.grid(visible=False, axis="y")
        methods = list(rows)[::-1]
        for y, method in enumerate(methods):
            value, trainings, interval = rows[method]
            colour, text = looks[method].colour, f"{value:.2f}"
            if interval:
                ax.plot(interval, [y, y], color=colour, lw=6, alpha=0.45, solid_capstyle="butt")
                text += " [{:.2f}, {:.2f}]\n95% interval, ".format(*interval)
                text += f"{len(trainings)} trainings"
            else:
                places = np.full(len(trainings), y)
                ax.plot(trainings, places, "o", ms=4.5, mfc=FIELD, mec=colour, mew=1.2)
                text += f"\nof all {len(trainings)} trainings"
            ax.plot(value, y, "|", color=colour, ms=14, mew=2.5)
            marks.append(Mark(ax, label(method), text, (value, float(y))))
            if not interval:
                marks += [
                    Mark(ax, label(method), f"training {k + 1}: {x:.2f}", (x, float(y)))
                    for k, x in enumerate(trainings)
                ]
        ax.set_yticks(range(len(rows)), [label(m) for m in methods])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.set_xlabel(unit)
        return Chart(name, caption, figure, marks)
