"""The report: its numbers and sentences, its files, and the page in a real browser."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from epcx import games
from epcx.cli import main
from epcx.errors import InputError
from epcx.evaluation.study import Study
from epcx.reports import paper, report
from epcx.reports.aggregate import aggregate_scores
from epcx.reports.content import headline, uncertainty_note
from epcx.reports.figures import format_number, palette
from epcx.reports.learning import learning_curves, second_stage
from epcx.reports.report_data import ReportData
from epcx.reports.scores import generalisation, scores, statistic_phrases, statistics
from epcx.runs.run import RunFolder
from tests.factories import make_run
from tests.reports.factories import make_replay

EVIL = r'<script>document.title = "owned"</script><img src=x onerror=alert(1)>$\foo$'
STATISTICS = ("reward", "shaping", "ate", "killed", "died", "survival", "coverage")


def play(study, *_):
    """Made-up results in place of games: those of EPC are the highest."""
    results = []
    for entry in study.entries():
        name = f"{entry.purpose} {entry.population} {entry.role} {entry.method} {entry.trial}"
        rng = np.random.default_rng(list(f"{name} {entry.against} {entry.trained}".encode()))
        level = 10.0 * entry.method.startswith("epc") + float(rng.normal())
        statistics = {name: {"mean": level + i, "error": 0.1} for i, name in enumerate(STATISTICS)}
        results.append(entry.result(statistics))
    return results


def find(runs):
    """The data of a report, without its page."""
    study = Study(runs)
    return ReportData(study, play(study), 500)


def write(folder, runs, **options):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Study, "play", play)
        patched.setattr(report, "record", lambda *_: make_replay((3, 2), steps=6))
        return report.write_report(Study(runs), folder, 500, **{"title": "A title", **options})[0]


def rows(section, name):
    """The CSV rows of a table."""
    (table,) = (table for table in section.tables if table.name == name)
    return table.csv_rows


def cli_error(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """EPC twice and MADDPG twice, on Grassland at two populations of the paper."""
    folder = tmp_path_factory.mktemp("runs")
    grown = [
        make_run(folder / f"epc-{seed}", "grassland", "epc", ("3-2", "6-4"), seed, None, 2)
        for seed in (0, 1)
    ]
    scratch = [
        make_run(folder / f"maddpg-{p}", "grassland", "maddpg", (p,), matches=2)
        for p in ("3-2", "6-4")
    ]
    return [*grown, *scratch]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write(tmp_path_factory.mktemp("report"), runs)


def table(page, name):
    with open(page.parent / "tables" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_page_has_the_headline_and_the_uncertainty_note(page):
    text = page.read_text()
    assert "EPC has the highest reward in 4 of 4 comparisons" in text
    assert "Up to 2 independent training runs of each method" in text
    assert "<script" not in re.sub(r"<script[ >]", "", text, count=2)  # data and code


def test_one_trial_has_no_interval_over_seeds(runs):
    data = find([runs[0]])
    assert uncertainty_note(data).startswith("There is one training run of each method")
    assert {row["low"] for row in rows(scores(data), "scores-sheep")} == {None}
    notes = [cell.notes for row in scores(data).tables[0].rows for cell in row[1:]]
    assert not any("[" in note for some in notes for note in some)
    assert aggregate_scores(data) is None


def test_csv_tables_match_the_results_and_the_paper(page):
    results = json.loads((page.parent / "results.json").read_text())
    for row in table(page, "scores-sheep"):
        means = [
            result["statistics"]["reward"]["mean"]
            for result in results
            if (result["purpose"], result["role"]) == ("score", "sheep")
            and (result["population"], result["method"]) == (row["population"], row["method"])
        ]
        assert float(row["mean"]) == pytest.approx(np.mean(means))
        assert float(row["low"]) <= float(row["mean"]) <= float(row["high"])
    (row,) = (
        r for r in table(page, "scores-wolf") if (r["population"], r["method"]) == ("6-4", "maddpg")
    )
    assert float(row["paper"]) == 3.7735
    crossed = table(page, "crossplay-wolf")
    assert len(crossed) == 4 * 4
    for row in crossed:
        means = [
            result["statistics"]["reward"]["mean"]
            for result in results
            if (result["purpose"], result["role"]) == ("crossplay", "wolf")
            and (result["method"], result["against"]) == (row["method"], row["against"])
        ]
        assert float(row["mean"]) == pytest.approx(np.mean(means))
        assert float(row["mean_per_agent"]) == pytest.approx(float(row["mean"]) / 4)
    assert [row["method"] for row in table(page, "runs")] == ["epc", "epc", "maddpg", "maddpg"]
    assert len({row["config"] for row in table(page, "runs")}) == 4
    assert all(row["commit"] for row in table(page, "runs"))


def test_every_chart_is_written_as_svg_and_png(page):
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert drawn == {path.stem for path in (page.parent / "figures").glob("*.png")}
    assert {
        "scores-sheep",
        "normalised-wolf",
        "survival-sheep",
        "iqm",
        "profiles",
        "crossplay-wolf",
        "curves-6-4-sheep",
        "convergence-sheep",
        "stability-wolf",
        "lineage-1-epc-1-wolf",
    } <= drawn
    for path in (page.parent / "figures").glob("*.png"):
        with Image.open(path) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 5


def test_replays_pair_the_reference_with_every_other_method(runs, tmp_path, monkeypatch):
    def record(game, players, key, title):
        policies = [player.kind.split()[1] for player in players.values()]
        return dataclasses.replace(make_replay((3, 2), steps=2), title=f"{title}: {policies}")

    monkeypatch.setattr(report, "record", record)
    (pair,) = report.replay_pairs(Study(runs))
    assert pair.title == "EPC against MADDPG"
    assert [replay.title for replay in pair.replays] == [
        "EPC sheep, MADDPG wolf: ['attention', 'mlp']",
        "MADDPG sheep, EPC wolf: ['mlp', 'attention']",
    ]
    (alone,) = report.replay_pairs(Study(runs[:1]))
    assert alone.title == "EPC"
    food = make_run(tmp_path / "food", "food-collection", "epc", ("1", "2"))
    flat = make_run(tmp_path / "flat", "food-collection", "maddpg", ("2",))
    (both,) = report.replay_pairs(Study([food, flat]))
    assert both.title == "EPC and MADDPG"
    assert [replay.title for replay in both.replays] == [
        "EPC, 2 agents: ['attention']",
        "MADDPG, 2 agents: ['mlp']",
    ]


def test_replays_are_written_as_files(page):
    names = {path.name for path in (page.parent / "replays").iterdir()}
    assert names == {"Sheep-and-wolves.json", "Sheep-and-wolves.png"}  # one title for all


def test_replays_section_explains_why_a_game_has_none(runs, monkeypatch):
    def refuse(*_):
        raise InputError("chess cannot be replayed: it has no 2-D positions")

    monkeypatch.setattr(report, "record", refuse)
    section = report.replays(Study(runs))
    assert not section.pairs
    assert section.text == [
        "There are no replays: chess cannot be replayed: it has no 2-D positions."
    ]


def test_statistics_are_those_that_the_game_names():
    phrases = {name: list(statistic_phrases(games.find(name))) for name in games.names()}
    assert phrases["food-collection"] == ["coverage"]
    assert phrases["grassland"] == ["ate", "killed", "survival"]
    assert phrases["predator-prey"] == ["touched"]
    assert statistic_phrases(games.Game) == {}


def test_food_collection_reports_coverage_beside_that_of_the_paper(tmp_path):
    run = make_run(tmp_path / "run", "food-collection", "epc", ("3", "6"))
    section = statistics(find([run]))
    assert [table.name for table in section.tables] == ["coverage-collector"]
    published = [r["paper"] for r in rows(section, "coverage-collector") if r["method"] == "epc"]
    table = paper.scores("food-collection", "coverage")
    assert published == [table[population, "collector"]["epc"] for population in ("3", "6")]


def test_page_links_aligns_and_plays_replays_in_view(page, open_page):
    shown = open_page(page, viewport={"width": 1280, "height": 900})
    sections = shown.locator("nav a").all()
    assert len(sections) > 8
    for link in sections:
        expect(shown.locator(str(link.get_attribute("href")))).to_have_count(1)
    number = shown.locator("#scores td").nth(1)
    assert number.evaluate("x => getComputedStyle(x).textAlign") == "right"
    assert number.evaluate("x => getComputedStyle(x).fontVariantNumeric") == "tabular-nums"
    first = shown.locator("#scores td").first
    assert first.evaluate("x => getComputedStyle(x).textAlign") == "left"
    # Players are created when they come into view, and those of a pair run together.
    expect(shown.locator(".epcx-replay")).to_have_count(0)
    shown.locator(".pair").first.scroll_into_view_if_needed()
    expect(shown.locator(".pair .epcx-replay")).to_have_count(2)
    expect(shown.locator(".pair .er-step").first).not_to_have_text("0")
    expect(shown.locator(".pair .er-step").last).not_to_have_text("0")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_fits_every_screen_width(page, open_page, width):
    shown = open_page(page, viewport={"width": width, "height": 800})
    shown.locator(".pair").first.scroll_into_view_if_needed()
    wide = "document.documentElement.scrollWidth"
    assert shown.evaluate(wide) <= width
    chart = shown.locator(".chart svg").first.bounding_box()
    assert chart["width"] <= width
    assert chart["width"] > min(300, width - 70)


def test_charts_follow_the_theme_and_print_on_white(page, open_page):
    def colours(shown):
        text = shown.locator(".chart svg text").first
        return [
            shown.evaluate("getComputedStyle(document.documentElement).backgroundColor"),
            text.evaluate("x => getComputedStyle(x).fill"),
        ]

    light = colours(open_page(page, color_scheme="light"))
    dark_page = open_page(page, color_scheme="dark")
    dark = colours(dark_page)
    assert light != dark

    def brightness(colour):
        return sum(int(x) for x in re.findall(r"[0-9]+", colour)[:3])

    assert brightness(light[0]) > 600 > 400 > brightness(light[1])
    assert brightness(dark[0]) < 150 < 400 < brightness(dark[1])
    dark_page.emulate_media(media="print")
    assert brightness(colours(dark_page)[0]) == 3 * 255
    assert brightness(colours(dark_page)[1]) < 300
    expect(dark_page.locator("nav")).to_be_hidden()
    strip = dark_page.locator(".pair .strip").first
    expect(strip).to_be_visible()  # instead of players
    assert strip.evaluate("x => x.naturalWidth") > 500
    expect(dark_page.locator(".pair .player").first).to_be_hidden()


def test_headline_counts_only_populations_with_several_methods(runs):
    """MADDPG has no agents of 3-2: there EPC has nothing to be compared with."""
    data = find([*runs[:2], runs[3]])
    assert headline(data) == "EPC has the highest reward in 2 of 2 comparisons"
    alone = find(runs[2:])
    assert headline(alone) == "MADDPG on grassland"
    assert {chart.name for chart in scores(alone).charts} == {"scores-sheep", "scores-wolf"}


def test_paper_numbers_need_the_same_opponents(runs):
    """Without EPC, scores are against scripted players, which the paper does not have."""
    section = scores(find(runs[2:]))
    assert {row["paper"] for row in rows(section, "scores-sheep")} == {None}
    assert "against scripted players of the same population" in section.text[0]
    mixed = scores(find([runs[3], *runs[:2]]))
    assert "against the agents of EPC" in mixed.text[0]


def test_second_stage_has_a_curve_per_trial(runs, tmp_path):
    """Also if trials have snapshots at different episodes."""
    other = make_run(tmp_path / "c", "grassland", "epc", ("3-2", "6-4"), 2, None, snapshots=3)
    found = rows(second_stage(find([runs[0], other])), "second-stage")
    moments = {
        trial: [r["episodes"] for r in found if (r["role"], r["trial"]) == ("sheep", trial)]
        for trial in (0, 1)
    }
    assert moments == {0: [50, 60], 1: [50, 60, 70]}


def test_generalisation_compares_methods_that_take_any_population(runs, tmp_path):
    vanilla = make_run(tmp_path / "v", "grassland", "vanilla-pc", ("3-2", "6-4"), 0, None)
    section = generalisation(find([runs[0], runs[3], vanilla]))
    found = rows(section, "generalisation-wolf")
    assert {row["method"] for row in found} == {"epc", "vanilla-pc", "scripted", "random"}
    assert {row["population"] for row in found} == {"12-8"}
    assert len(section.charts) == 2
    assert not generalisation(find([runs[0]])).charts  # nothing to compare with


def test_palette_gives_variants_distinct_colours():
    methods = [f"epc (sets {k})" for k in range(2, 8)]
    assert len({palette(methods)[method] for method in methods}) == len(methods)


def test_page_escapes_names_titles_and_provenance(tmp_path, open_page):
    run = make_run(tmp_path / "a&b<i>", "food-collection", "epc", ("1", "2"), matches=None)
    provenance = {"device": EVIL, "commit": EVIL, "epcx": "0.0.1", "date": EVIL}
    run.write("config.json", {**run.config, "provenance": provenance})
    run.write("result.json", {"ended": "finished"})
    written = write(tmp_path / "report", [RunFolder.open(run.path)], title=EVIL)
    shown = open_page(written)
    assert shown.title() == EVIL
    expect(shown.locator("#runs td", has_text="owned")).to_have_count(2)
    assert shown.locator("img[onerror], img[src=x]").count() == 0
    expect(shown.locator("figcaption", has_text="a&b<i>")).to_have_count(1)


def test_report_command_refuses_bad_input(capsys, runs, tmp_path):
    assert "nowhere is not a run" in cli_error(capsys, "report", str(tmp_path / "nowhere"))
    place = str(runs[0].path)
    assert "episodes 0 is not" in cli_error(capsys, "report", place, "--episodes", "0")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    taken = cli_error(capsys, "report", place, "--out", str(tmp_path / "mine"))
    assert "has other files than a report" in taken
    assert (tmp_path / "mine" / "thesis.tex").exists()
    (tmp_path / "file").write_text("")
    assert "cannot be made: " in cli_error(capsys, "report", place, "--out", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as stopped:
        main(["report"])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("metrics.jsonl", "{", "lines that are no metrics"),
        ("metrics.jsonl", "[]\n", "lines that are no metrics"),
        ("metrics.jsonl", None, "metrics.jsonl cannot be read"),
        ("lineage.json", '[{"parents": null}]', "the lineage is damaged"),
        ("result.json", "[]", "is not finished"),
    ],
)
def test_damaged_runs_are_refused(tmp_path, name, content, complaint):
    run = make_run(tmp_path / "run", "food-collection", "epc", ("1", "2"), matches=None)
    (run.path / name).unlink()
    if content is not None:
        (run.path / name).write_text(content)
    with pytest.raises(InputError, match=complaint):
        learning_curves(find([RunFolder.open(run.path)]))


def test_format_number_rounds_to_two_or_three_digits():
    assert [format_number(x) for x in (0.1234, -0.001, 1.234, 9.999, 12.34, 99.96, 123.4)] == [
        *("0.12", "0.00", "1.23", "10.0", "12.3", "100", "123"),
    ]


def test_paper_tables_are_readable():
    assert paper.scores("food-collection", "coverage")["24", "collector"]["epc"] == 0.568
    assert paper.scores("grassland")["24-16", "sheep"]["epc"] == -44.1031
    assert paper.scores("adversarial-battle")["16-16", "team1 and team2"]["maddpg"] == -46.6398
    assert paper.crossplay("grassland", "24-16", "wolf")["epc"]["maddpg"] == 120.9025
    assert paper.scores("chess") == paper.crossplay("grassland", "3-2", "wolf") == {}
