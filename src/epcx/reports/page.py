"""The report as one self-contained page."""

import base64
import html
import json
from collections.abc import Callable, Iterable, Sequence

from epcx.reports.drawing import to_png
from epcx.reports.figures import Chart
from epcx.reports.replay import embed_json, fill_template, player_assets, read_asset, to_payload
from epcx.reports.report_data import Picture, ReplayPair, Section
from epcx.reports.tables import ReportTable, TableCell


def to_html(
    title: str,
    headlines: Sequence[str],
    lead: str,
    facts: Sequence[str],
    sections: Sequence[Section],
) -> str:
    """The page; everything that may come from a config or a file name is escaped."""
    style, script = player_assets()
    pairs = [pair for section in sections for pair in section.pairs]
    parts = {
        "title": html.escape(title),
        "headline": "".join(f"<span>{html.escape(sentence)}</span>" for sentence in headlines),
        "lead": html.escape(lead),
        "facts": "".join(f"<li>{html.escape(fact)}</li>" for fact in facts),
        "contents": "".join(
            f'<a href="#{section.name}">{html.escape(section.title)}</a>' for section in sections
        ),
        "sections": "\n".join(section_html(section) for section in sections),
        "css": read_asset("report.css") + style,
        "js": script,
        "start": read_asset("report.js"),
        "data": embed_json(
            json.dumps([[to_payload(replay) for replay in pair.replays] for pair in pairs])
        ),
    }
    return fill_template("report.html", parts)


def section_html(section: Section) -> str:
    text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text)
    pictures = "".join(picture_html(picture) for picture in section.pictures)
    charts = "".join(chart_html(chart) for chart in section.charts)
    tables = "".join(table_html(table) for table in section.tables if table.rows)
    pairs = "".join(pair_html(pair) for pair in section.pairs)
    return (
        f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>{text}'
        + (f'<div class="pictures">{pictures}</div>' if pictures else "")
        + (f'<div class="charts">{charts}</div>' if charts else "")
        + f"{tables}{pairs}</section>"
    )


def chart_html(chart: Chart) -> str:
    caption = html.escape(chart.caption)
    svg = chart.inline.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
    figcaption = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="chart">{svg}{figcaption}</figure>'


def picture_html(picture: Picture) -> str:
    caption = html.escape(picture.caption)
    return (
        f'<figure class="picture"><img alt="{caption}" src="{data_url(picture.png)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def table_html(table: ReportTable) -> str:
    def cell(tag: str, column: int, content: str, best: bool = False) -> str:
        classes = " ".join(["text"] * (column < table.text_columns) + ["best"] * best)
        attribute = f' class="{classes}"' if classes else ""
        return f"<{tag}{attribute}>{content}</{tag}>"

    head = "".join(
        cell("th", i, html.escape(name).replace(" (", "<br>(", 1))
        for i, name in enumerate(table.header)
    )
    body = "".join(f"<tr>{row_html(row, cell)}</tr>" for row in table.rows)
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in table.notes if note)
    return (
        f'<figure class="table"><figcaption>{html.escape(table.caption)}</figcaption>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{notes}</figure>"
    )


def row_html(row: Iterable[str | TableCell], cell: Callable[..., str]) -> str:
    cells = []
    for column, content in enumerate(row):
        if isinstance(content, str):
            cells.append(cell("td", column, html.escape(content)))
        else:
            notes = "".join(
                f'<small class="{note.kind}">{html.escape(note.text)}</small>'
                for note in content.notes
            )
            cells.append(cell("td", column, html.escape(content.text) + notes, content.best))
    return "".join(cells)


def pair_html(pair: ReplayPair) -> str:
    """A player per replay; in print, or if the pair shows them, a strip of frames each."""
    players = '<div class="player"></div>' * len(pair.replays)
    strips = "".join(
        f'<div class="strip"><img alt="{html.escape(replay.title)}" '
        f'src="{data_url(to_png(replay))}"></div>'
        for replay in pair.replays
    )
    classes = "pair frames" if pair.frames else "pair"
    return f'<div class="{classes}"><h3>{html.escape(pair.title)}</h3>{players}{strips}</div>'
