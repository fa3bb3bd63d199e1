"""The report in a real browser, on a desktop and on a phone: values, files, tables, lineages."""

import csv
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from epcx.reports.chart import format_number, palette
from epcx.reports.figures import spread_out
from tests.reports.factories import OpenPage

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}


def read_scores(page: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of sheep, by population and method."""
    with open(page.parent / "tables" / "scores-sheep.csv") as file:
        return {(row["population"], row["method"]): row for row in csv.DictReader(file)}


def score_chart(shown: Page) -> Locator:
    chart = shown.locator("#scores .plot").first
    chart.scroll_into_view_if_needed()
    return chart


def bar_of_epc(chart: Locator) -> tuple[float, float]:
    """The middle of EPC's bar at 3-2, found by its colour in the drawing."""
    colour = palette(["epc"])["epc"].colour
    box = chart.evaluate(
        """(plot, colour) => {
            const bars = [...plot.querySelectorAll("path")].filter((path) =>
                path.getAttribute("style")?.includes(`fill: ${colour}`));
            const box = bars.map((bar) => bar.getBoundingClientRect())
                .filter((box) => box.height > 20).sort((a, b) => a.left - b.left)[0];
            return [box.left + box.width / 2, box.top + box.height / 2];
        }""",
        colour,
    )
    return box[0], box[1]


def test_hover_on_a_bar_tells_method_population_and_value(page: Path, open_page: OpenPage) -> None:
    shown = open_page(page, **DESKTOP)
    tip = shown.locator(".tip")
    expect(tip).to_be_hidden()
    shown.mouse.move(*bar_of_epc(score_chart(shown)))
    row = read_scores(page)["3-2", "epc"]
    expect(tip).to_contain_text("EPC, 3-2 agents")
    expect(tip).to_contain_text(format_number(float(row["mean"])))
    expect(tip).to_contain_text("mean of 2 trainings")
    expect(tip).to_contain_text(f"paper {format_number(float(row['paper']))}")
    shown.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_keys_reach_every_training_of_a_focused_chart(page: Path, open_page: OpenPage) -> None:
    shown = open_page(page, **DESKTOP)
    tip = shown.locator(".tip")
    shown.locator("#scores .files a").first.focus()
    shown.keyboard.press("Tab")  # from the link of the first table to ...
    while shown.evaluate("document.activeElement.className") != "plot":
        shown.keyboard.press("Tab")
    expect(tip).to_be_visible()
    told = set()
    for _ in range(40):
        told.add(tip.inner_text())
        shown.keyboard.press("ArrowRight")
    everything = "\n".join(told)
    for (population, method), row in read_scores(page).items():
        values = row["values"].split() if method in ("epc", "maddpg", "att-maddpg") else []
        for value in values:
            assert re.search(rf": {re.escape(format_number(float(value)))} ± 0\.1", everything)
        assert f", {population} agents" in everything
    assert "seed 0 match 1" in everything
    before = tip.inner_text()
    shown.keyboard.press("ArrowUp")
    expect(tip).not_to_have_text(before)
    shown.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    shown.keyboard.press("Home")
    expect(tip).to_be_visible()
    shown.keyboard.press("Tab")
    expect(tip).to_be_hidden()


def test_tap_tells_a_value_inside_the_screen(page: Path, open_page: OpenPage) -> None:
    shown = open_page(page, **PHONE)
    tip = shown.locator(".tip")
    shown.touchscreen.tap(*bar_of_epc(score_chart(shown)))
    expect(tip).to_contain_text("EPC, 3-2 agents")
    box = tip.bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    shown.locator("#scores h2").tap()
    expect(tip).to_be_hidden()


def test_curves_tell_training_episodes_and_reward(page: Path, open_page: OpenPage) -> None:
    shown = open_page(page, **DESKTOP)
    chart = shown.locator("#curves .plot").first
    chart.scroll_into_view_if_needed()
    marks = chart.evaluate("plot => JSON.parse(plot.dataset.tips)")
    names = [name for name, _ in marks]
    assert {"EPC, seed 0", "EPC, seed 1", "EPC, mean of 2 trainings"} <= set(names)
    box = chart.locator("svg").bounding_box()
    assert box
    left, top, _, _, text = marks[names.index("EPC, mean of 2 trainings")][1][-1]
    shown.mouse.move(box["x"] + left * box["width"], box["y"] + top * box["height"])
    expect(shown.locator(".tip")).to_contain_text(text.split("\n")[0])
    assert re.match(r"-?[\d.]+ at \d+ episodes\nstandard deviation", text)


def test_every_chart_and_table_links_to_its_files(page: Path, open_page: OpenPage) -> None:
    shown = open_page(page, **DESKTOP)
    links = shown.locator(".files a").evaluate_all(
        "links => links.map((link) => [link.textContent, link.getAttribute('href')])"
    )
    for name, address in links:
        path = page.parent / unquote(address)
        assert path.is_file(), address
        assert path.suffix == f".{name.lower()}"
    for chart in shown.locator("figure.chart").all():
        assert chart.locator(".files a").all_inner_texts() == ["CSV", "SVG", "PNG"]
    for table in shown.locator("figure.table").all():
        assert table.locator(".files a").all_inner_texts() == ["CSV"]
    linked = {unquote(address) for _, address in links}
    for folder in ("tables", "figures"):
        files = {f"{folder}/{path.name}" for path in (page.parent / folder).iterdir()}
        assert files <= linked


def test_raw_rewards_come_before_charts_and_normalised_scores(
    page: Path, open_page: OpenPage
) -> None:
    shown = open_page(page, **DESKTOP)
    figures = shown.locator("main figure").evaluate_all(
        "figures => figures.map((figure) => [figure.closest('section').id, figure.className])"
    )
    assert figures[0] == ["scores", "table"]
    sections = [section for section, _ in figures]
    assert sections.index("scores") < sections.index("normalised")
    first = shown.locator("#scores td small").first
    expect(first).to_have_class("paper")


def test_phone_is_told_of_wide_tables_and_nothing_else_is_wide(
    page: Path, open_page: OpenPage
) -> None:
    shown = open_page(page, **PHONE)
    wide = shown.evaluate(
        """() => [...document.querySelectorAll("main *, header *")].filter((one) =>
            !one.closest(".scroll, svg, .strip") &&
            one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML)"""
    )
    assert wide == []
    runs = shown.locator("#runs figure.table")
    runs.scroll_into_view_if_needed()
    expect(runs.locator(".hint")).to_be_visible()
    sheet, box = runs.locator(".sheet"), runs.locator(".scroll")
    expect(sheet).to_have_class("sheet more-right")
    first = runs.locator("tbody td").first
    place = first.evaluate("cell => cell.getBoundingClientRect().left")
    box.evaluate("box => box.scrollTo(80, 0)")
    expect(sheet).to_have_class("sheet more-right more-left")
    assert first.evaluate("cell => cell.getBoundingClientRect().left") == place
    box.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    expect(sheet).to_have_class("sheet more-left")
    assert box.get_attribute("tabindex") == "0"


def test_tables_that_fit_have_no_hint(page: Path, open_page: OpenPage) -> None:
    scores = open_page(page, **DESKTOP).locator("#scores figure.table").first
    expect(scores.locator(".hint")).to_be_hidden()
    assert scores.locator(".scroll").get_attribute("tabindex") is None


def test_phone_lists_a_lineage_that_a_desktop_draws(page: Path, open_page: OpenPage) -> None:
    drawn = open_page(page, **DESKTOP).locator("#lineage .chart").first
    expect(drawn.locator("svg")).to_be_visible()
    expect(drawn.locator(".outline")).to_be_hidden()
    listed = open_page(page, **PHONE).locator("#lineage .chart").first
    expect(listed.locator("svg")).to_be_hidden()
    expect(listed.locator(".outline h4")).to_have_text(["3-2 agents", "6-4 agents"])
    with open(page.parent / "tables" / "lineages.csv") as file:
        records = [
            row for row in csv.DictReader(file) if (row["run"], row["role"]) == ("epc-0", "sheep")
        ]
    for row in records:
        name = row["set"].removeprefix("sheep-")
        item = listed.locator(".outline li", has_text=re.compile(rf"^{re.escape(name)}:"))
        expect(item).to_contain_text(format_number(float(row["fitness"])))
        for parent in row["parents"].split():
            expect(item).to_contain_text(parent.removeprefix("sheep-"))
        assert ("filled" in str(item.get_attribute("class"))) == bool(row["rank"])
    best = next(row for row in records if (row["population"], row["rank"]) == ("6-4", "0"))
    accent = listed.locator(".outline li.accent").last
    expect(accent).to_contain_text(best["set"].removeprefix("sheep-"))


def test_methods_differ_without_their_colours() -> None:
    variants = [f"epc (sets {k})" for k in range(2, 9)]
    looks = palette(["maddpg", "mean-field", "att-maddpg", "vanilla-pc", "epc", *variants])
    trained = [look for method, look in looks.items() if method not in ("scripted", "random")]
    assert len({look.marker for look in trained}) == len(trained)
    assert len({look.dashes for look in trained}) > 5


def test_curves_have_their_names_beside_them(page: Path) -> None:
    svg = (page.parent / "figures" / "curves-6-4-sheep.svg").read_text()
    for name in ("EPC", "MADDPG", "Att-MADDPG"):
        assert f">{name}<" in svg


@pytest.mark.parametrize(
    "wanted", [[0.5, 0.5, 0.5], [0.0, 0.01, 0.9], [0.95, 0.97, 1.0], [0.2, 0.5, 0.8]]
)
def test_labels_keep_their_distance_near_their_curves(wanted: list[float]) -> None:
    places = spread_out(np.array(wanted), np.full(3, 0.1))
    assert (np.diff(places) >= 0.1 - 1e-9).all()
    assert places.min() >= 0
    assert places.max() <= 1
    assert np.abs(places - wanted).max() <= 0.2
