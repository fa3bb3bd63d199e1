"""A chart of a report: an SVG for its page, SVG and PNG files, and the values behind its marks."""

import io
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.reports import paper

INK, MUTED, LINE, FIELD = "#22252a", "#686d76", "#e3e0da", "#ffffff"
# In the page these colours follow its theme.
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)", FIELD: "var(--field)"}

ACCENT = "#d9622b"


@dataclass(frozen=True)
class Look:
    """How a method is drawn: not by its colour alone, which not everybody can tell from others.

    `dashes` are lengths of lines and gaps in turn; none is a solid line.
    """

    colour: str
    marker: str = "o"
    dashes: tuple[float, ...] = ()

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        style = (0, self.dashes) if self.dashes else "-"
        return {"color": self.colour, "linestyle": style, "marker": self.marker, "ms": 4.5}


PAPER_LOOKS = {method: Look(*look) for method, look in paper.LOOKS.items()}
FIXED_LOOKS = {
    name: Look(colour) for name, colour in zip(FIXED_PLAYERS, ("#8b9099", "#bcbfc5"), strict=True)
}
OTHER_COLOURS = ("#e69f00", "#7b6fd0", "#999933", "#a8476e", "#44aa99", "#8c6b54", "#b5534f")
OTHER_MARKERS = ("P", "X", "p", "<", ">", "h", "*", "d")
OTHER_DASHES = ((8.0, 1.6), (2.4, 2.0), (5.0, 1.2, 1.4, 1.2), (9.0, 1.2, 2.0, 1.2, 2.0, 1.2))

WIDTH, HEIGHT = 4.4, 2.9  # inches: readable on a phone, too
SIGNATURE_HEIGHT = 0.16
LEGEND_CHARACTERS = 64  # in a row of the legend
TITLE_CHARACTERS = 46  # in a line of the title
SQUARE: Any = {"marker": "s", "ms": 7}  # in a legend
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


def palette(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method, in their order, then for fixed players."""
    looks = zip(
        itertools.cycle(OTHER_COLOURS),
        itertools.cycle(OTHER_MARKERS),
        itertools.cycle(OTHER_DASHES),
        strict=False,
    )
    found = {m: PAPER_LOOKS.get(m) or Look(*next(looks)) for m in methods if m not in FIXED_LOOKS}
    return found | FIXED_LOOKS


@dataclass(frozen=True)
class Mark:
    """A point or a box of a chart, in the coordinates of its axes, and what the page tells of it.

    `series` names what it belongs to, such as a method and its training.
    """

    axes: Axes
    series: str
    text: str
    corner: tuple[float, float]
    opposite: tuple[float, float] | None = None  # None: a point


@dataclass(frozen=True)
class OutlineItem:
    """A line of an outline: its text, how it is marked, and whether it stands out."""

    text: str
    filled: bool
    accent: bool


Outline = Sequence[tuple[str, Sequence[OutlineItem]]]  # headings, with what is below


@dataclass
class Chart:
    """A figure, the name of its files, a caption, and the values behind its marks.

    `table` is the name of the CSV file that has its numbers. The signature names commit, config,
    trainings and device, in small print inside the figure. Small screens show the outline, if
    there is one, instead of the figure.
    """

    name: str
    caption: str
    figure: Figure
    marks: list[Mark] = field(default_factory=list)
    outline: Outline = ()
    table: str = ""
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
        images["png"] = with_palette(images["png"])
        return images

    @property
    def inline(self) -> str:
        """SVG for a page: without the XML prologue, in the colours of its theme."""
        svg = self.images["svg"].decode()
        svg = svg[svg.index("<svg") :]
        for fixed, themed in THEMED.items():
            svg = svg.replace(fixed, themed)
        return svg

    @property
    def tips(self) -> list[tuple[str, list[list[float | str]]]]:
        """For each series its marks: left, top, right, bottom, as shares of the image, and text."""
        assert self.images  # drawing places the axes
        found: dict[str, list[list[float | str]]] = {}
        for mark in self.marks:
            corners = np.array([mark.corner, mark.opposite or mark.corner])
            places = self.figure.transFigure.inverted().transform(
                mark.axes.transData.transform(corners)
            )
            if np.isfinite(places).all():
                (left, bottom), (right, top) = np.sort(places, 0)
                box = [round(float(x), 4) for x in (left, 1 - top, right, 1 - bottom)]
                found.setdefault(mark.series, []).append([*box, mark.text])
        return list(found.items())


@contextmanager
def axes(title: str, height: float = HEIGHT, width: float = WIDTH) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        ax = figure.add_subplot()
        ax.set_title(textwrap.fill(title, TITLE_CHARACTERS), pad=10)
        yield figure, ax


def legend(
    figure: Figure,
    methods: Sequence[str],
    looks: Mapping[str, Look],
    *extra: Line2D,
    lines: bool = False,
) -> None:
    """With squares, or the methods' own lines and markers."""
    handles = []
    for method in methods:
        look = looks[method]
        style = {**look.line, "lw": 1.8} if lines else {"color": look.colour, "lw": 0, **SQUARE}
        handles.append(Line2D([], [], label=label(method), **style))
    longest = max(len(str(handle.get_label())) for handle in (*handles, *extra))
    figure.legend(
        handles=[*handles, *extra],
        loc="outside lower left",
        ncols=max(1, min(4, LEGEND_CHARACTERS // (longest + 5))),
        handletextpad=0.7 if lines else 0.2,
        handlelength=3.0 if lines else 2.0,
        columnspacing=1.2,
        borderpad=0.0,
        borderaxespad=1.5,  # above the signature
    )


def format_number(value: float) -> str:
    """Two or three significant digits: 0.12, 1.23, 12.3, 123."""
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0 turns -0.0 into 0.0


def format_thousands(episodes: float) -> str:
    return f"{episodes / 1000:g}k" if episodes >= 1000 else f"{episodes:g}"


def with_palette(png: bytes) -> bytes:
    """A PNG in 256 colours: a third of the size, and the difference is not seen."""
    with Image.open(io.BytesIO(png)) as image:
        colours = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    file = io.BytesIO()
    colours.save(file, "PNG", optimize=True)
    return file.getvalue()
