"""The report as one self-contained page."""

import base64
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

from epcx.reports.chart import Chart, Outline, OutlineItem
from epcx.reports.drawing import to_png
from epcx.reports.replay import (
    Replay,
    embed_json,
    fill_template,
    player_assets,
    read_asset,
    to_page_payload,
)
from epcx.reports.report_data import Picture, ReplayPair, Section, slug
from epcx.reports.tables import ReportTable, TableCell
from epcx.runs.files import json_digest

MAX_ROWS = 16  # of a table; longer ones scroll under their headings
PIXELS_PER_INCH = 104  # of a figure
MAX_WIDTH = 760  # pixels of a chart with an outline, by the style sheet
MAX_NAME = 200  # bytes of a file's name


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
            json.dumps([[to_page_payload(replay) for replay in pair.replays] for pair in pairs])
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
        + tables
        + (f'<div class="charts">{charts}</div>' if charts else "")
        + f"{pairs}</section>"
    )


def chart_html(chart: Chart) -> str:
    """The drawing, with its values for the script, and links to its files."""
    caption = html.escape(chart.caption)
    name = caption or html.escape(chart.name)
    wide = round(PIXELS_PER_INCH * chart.figure.get_figwidth())
    style = f' style="max-width: {wide}px"' if chart.outline and wide > MAX_WIDTH else ""
    svg = chart.inline.replace("<svg", f'<svg role="img" aria-label="{name}"{style}', 1)
    tips = html.escape(json.dumps(chart.tips, ensure_ascii=False, separators=(",", ":")))
    links = file_links(
        {"CSV": f"tables/{chart.table}.csv"} if chart.table else {},
        {kind.upper(): f"figures/{chart.name}.{kind}" for kind in chart.images},
    )
    return (
        f'<figure class="chart{" outlined" if chart.outline else ""}">'
        f'<div class="plot" tabindex="0" role="group" aria-label="{name}" data-tips="{tips}">'
        f"{svg}</div>{outline_html(chart.outline)}"
        f"<figcaption>{caption}{links}</figcaption></figure>"
    )


def outline_html(outline: Outline) -> str:
    """The chart as lists, for screens on which the drawing would be too small."""
    if not outline:
        return ""

    def item(one: OutlineItem) -> str:
        classes = " ".join(["filled"] * one.filled + ["accent"] * one.accent)
        return f'<li class="{classes}">{html.escape(one.text)}</li>'

    parts = (
        f"<h4>{html.escape(heading)}</h4><ul>{''.join(map(item, items))}</ul>"
        for heading, items in outline
    )
    return f'<div class="outline">{"".join(parts)}</div>'


def file_links(*files: Mapping[str, str]) -> str:
    """Links to files beside the page, by what they are called."""
    links = (
        f'<a href="{html.escape(quote(path))}">{html.escape(name)}</a>'
        for some in files
        for name, path in some.items()
    )
    return f'<span class="files">{"".join(links)}</span>'


def picture_html(picture: Picture) -> str:
    caption = html.escape(picture.caption)
    links = file_links({"PNG": f"figures/{picture.name}.png"})
    return (
        f'<figure class="picture"><img alt="{caption}" src="{data_url(picture.png)}">'
        f"<figcaption>{caption}{links}</figcaption></figure>"
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
    caption = html.escape(table.caption)
    links = file_links({"CSV": f"tables/{table.name}.csv"})
    long = " long" if len(table.rows) > MAX_ROWS else ""
    return (
        f'<figure class="table"><figcaption>{caption}{links}</figcaption>'
        '<p class="hint" hidden>Scroll sideways for more columns</p>'
        f'<div class="sheet"><div class="scroll{long}" role="region" aria-label="{caption}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
        f"{notes}</figure>"
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


def replay_files(replay: Replay) -> dict[str, str]:
    """Where the files of a replay are, beside the page; file systems limit the length of names."""
    name = slug(replay.title)
    if len(name.encode()) > MAX_NAME:
        name = f"{name[: MAX_NAME // 4 - 9]}-{json_digest(replay.title)[:8]}"
    return {kind.upper(): f"replays/{name}.{kind}" for kind in ("json", "png")}


def pair_html(pair: ReplayPair) -> str:
    """A player per replay; in print, or if the pair shows them, a strip of frames each."""
    players = "".join(
        f'<div><div class="player"></div>{file_links(replay_files(replay))}</div>'
        for replay in pair.replays
    )
    strips = "".join(
        f'<div class="strip"><img alt="{html.escape(replay.title)}" '
        f'src="{data_url(to_png(replay))}"></div>'
        for replay in pair.replays
    )
    classes = "pair frames" if pair.frames else "pair"
    return f'<div class="{classes}"><h3>{html.escape(pair.title)}</h3>{players}{strips}</div>'
