"""The report as one self-contained page."""

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Sequence

from epcx.reports.drawing import to_png
from epcx.reports.figures import Chart
from epcx.reports.findings import Pair, Section
from epcx.reports.grids import Entry, Grid
from epcx.reports.replay import asset, embed_json, player_assets, to_payload


def to_html(
    title: str, headline: str, lead: str, facts: Sequence[str], sections: Sequence[Section]
) -> str:
    """Everything that may come from a config or a file name is escaped."""
    style, script = player_assets()
    pairs = [pair for section in sections for pair in section.pairs]
    parts = {
        "title": html.escape(title),
        "headline": html.escape(headline),
        "lead": html.escape(lead),
        "facts": "".join(f"<li>{html.escape(fact)}</li>" for fact in facts),
        "contents": "".join(
            f'<a href="#{section.name}">{html.escape(section.title)}</a>' for section in sections
        ),
        "sections": "\n".join(section_html(section) for section in sections),
        "css": asset("report.css") + style,
        "js": script,
        "start": asset("report.js"),
        "data": embed_json(
            json.dumps([[to_payload(replay) for replay in pair.replays] for pair in pairs])
        ),
    }
    # One pass: what a title contains is never taken for a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("report.html"))


def section_html(section: Section) -> str:
    text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text)
    charts = "".join(chart_html(chart) for chart in section.charts)
    grids = "".join(grid_html(grid) for grid in section.grids if grid.rows)
    pairs = "".join(pair_html(pair) for pair in section.pairs)
    return (
        f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>{text}'
        + (f'<div class="charts">{charts}</div>' if charts else "")
        + f"{grids}{pairs}</section>"
    )


def chart_html(chart: Chart) -> str:
    caption = html.escape(chart.caption)
    picture = chart.inline.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
    shown = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="chart">{picture}{shown}</figure>'


def grid_html(grid: Grid) -> str:
    def cell(tag: str, place: int, content: str, best: bool = False) -> str:
        kinds = " ".join(["word"] * (place < grid.words) + ["best"] * best)
        return f'<{tag} class="{kinds}">{content}</{tag}>' if kinds else f"<{tag}>{content}</{tag}>"

    head = "".join(cell("th", i, html.escape(name)) for i, name in enumerate(grid.header))
    body = "".join(f"<tr>{row_html(row, cell)}</tr>" for row in grid.rows)
    return (
        f'<figure class="grid"><figcaption>{html.escape(grid.caption)}</figcaption>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></figure>"
    )


def row_html(row: Iterable[str | Entry], cell: Callable[..., str]) -> str:
    cells = []
    for place, content in enumerate(row):
        if isinstance(content, str):
            cells.append(cell("td", place, html.escape(content)))
        else:
            notes = "".join(f"<small>{html.escape(note)}</small>" for note in content.notes)
            cells.append(cell("td", place, html.escape(content.text) + notes, content.best))
    return "".join(cells)


def pair_html(pair: Pair) -> str:
    """Two players; on paper, and without scripts, a strip of pictures each."""
    players = '<div class="player"></div>' * len(pair.replays)
    strips = "".join(
        f'<img class="strip" alt="{html.escape(replay.title)}" '
        f'src="data:image/png;base64,{base64.b64encode(to_png(replay)).decode()}">'
        for replay in pair.replays
    )
    return f'<div class="pair"><h3>{html.escape(pair.title)}</h3>{players}{strips}</div>'
