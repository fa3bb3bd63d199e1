"""The report: its numbers and sentences, its files, and the page in a real browser."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from epcx import games, presets
from epcx.cli import main
from epcx.errors import InputError
from epcx.evaluation.results import Cell
from epcx.evaluation.study import Study
from epcx.reports import paper, scenes
from epcx.reports.aggregate import aggregate_scores
from epcx.reports.chart import format_number, palette
from epcx.reports.learning import learning_curves, normalise_curves, second_stage
from epcx.reports.normalised import normalised_scores
from epcx.reports.report_data import ReportData
from epcx.reports.scores import crossplay, generalisation, scores, statistic_phrases, statistics
from epcx.reports.summary import print_scores
from epcx.reports.tables import table_cell
from epcx.reports.words import budget_note, headlines, uncertainty_note
from epcx.runs.run import RunFolder
from tests.factories import make_run
from tests.reports.factories import make_replay, play, write

EVIL = r'<script>document.title = "owned"</script><img src=x onerror=alert(1)>$\foo$'


BEST = {
    "learning_rate": presets.make_config("grassland", "maddpg", "best").learner_config.learning_rate
}


def find(runs):
    """The data of a report, without its page."""
    study = Study(runs)
    return ReportData(study, play(study), 500)


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
def best(tmp_path_factory):
    """EPC and MADDPG once, with the settings of preset best."""
    folder = tmp_path_factory.mktemp("best")
    return [
        make_run(folder / "epc", "grassland", "epc", ("3-2", "6-4"), **BEST),
        make_run(folder / "maddpg", "grassland", "maddpg", ("6-4",), **BEST),
    ]


def table(page, name):
    with open(page.parent / "tables" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_page_has_the_headline_and_the_uncertainty_note(page):
    text = page.read_text()
    assert (
        "With preset paper, EPC has the highest reward of 3 methods in 4 of 4 comparisons "
        "(2 trainings each); the scripted players get more in none"
    ) in text
    assert "Up to 2 independent training runs of each method" in text
    assert "<script" not in re.sub(r"<script[ >]", "", text, count=2)  # data and code


def notes(cell):
    return [(note.kind, note.text) for note in cell.notes]


def test_one_training_says_so_and_has_no_interval(runs):
    data = find([runs[0]])
    assert uncertainty_note(data).startswith("There is one training run of each method")
    assert {row["low"] for row in rows(scores(data), "scores-sheep")} == {None}
    trained, scripted, _ = scores(data).tables[0].rows[0][1:]
    (paper_kind, _), *others = notes(trained)
    assert paper_kind == "paper"
    assert others == [("trainings", "1 training"), ("episodes", "± 0.1")]
    assert notes(scripted) == [("episodes", "± 0.1")]
    assert aggregate_scores(data) is None
    assert "500 evaluation episodes" in scores(data).tables[0].notes[0]


def test_cells_show_trainings_below_five_and_an_interval_from_five_on():
    for number in range(1, 8):
        values = np.arange(number) + 10.0
        cell = Cell(values, np.full(number, 0.1))
        shown = " ".join(text for _, text in notes(table_cell(cell)))
        assert ("[" in shown) == (number >= 5)
        assert f"{number} training" in shown
        if 1 < number < 5:
            assert all(f"{value:.1f}" in shown for value in values)
        assert ("±" in shown) == (number == 1)


def test_settings_are_never_mixed_in_a_comparison(runs, best):
    data = find([*runs, *best])
    paper_headline, best_headline = headlines(data)
    assert paper_headline.startswith("With preset paper, EPC has the highest reward of 2 methods")
    assert best_headline == (
        "With preset best, EPC has the highest reward of 2 methods in 2 of 2 comparisons "
        "(one training each); the scripted players get more in none"
    )
    section = scores(data)
    table = section.tables[0]
    assert table.header[1:5] == ["MADDPG", "MADDPG (best)", "EPC", "EPC (best)"]
    small, large = ([cell.best for cell in row[1:5]] for row in table.rows)
    assert small == [False, False, True, False]  # nothing to compare EPC (best) with at 3-2
    assert large == [False, False, True, True]
    assert {chart.name for chart in section.charts} == {
        f"scores-{role}-preset-{settings}"
        for role in ("sheep", "wolf")
        for settings in ("paper", "best")
    }
    assert normalised_scores(data) is None  # two methods of each setting
    alone = find([*runs, best[0]])
    assert headlines(alone)[1] == "With preset best, EPC is not compared with another method"


def test_total_budget_is_a_competitor_that_the_text_explains(runs, tmp_path):
    control = [
        make_run(tmp_path / p, "grassland", "maddpg", (p,), matches=n, budget="total")
        for p, n in (("3-2", 3), ("6-4", 4))
    ]
    data = find([*runs, *control])
    assert "of 3 methods in 4 of 4 comparisons" in headlines(data)[0]
    assert "one training of MADDPG (total budget), 2 of each other method" in headlines(data)[0]
    section = scores(data)
    assert section.text[1].startswith("MADDPG (total budget): as many matches from scratch as EPC")
    found = {
        (row["method"], row["population"]): row["episodes_in_total"]
        for row in rows(section, "scores-sheep")
    }
    assert found["maddpg (total budget)", "6-4"] == 4 * 50
    assert found["maddpg", "6-4"] == 50
    assert found["scripted", "6-4"] is None
    (note,) = (note for note in section.tables[0].notes if "multiples" in note)
    assert "MADDPG (total budget) 3.0 at 3-2, 4.0 at 6-4" in note


def test_budget_note_groups_methods_with_the_same_ratio(tmp_path):
    epc = make_run(tmp_path / "epc", "food-collection", "epc", ("1", "2"))
    others = [
        make_run(tmp_path / f"{m}-{p}", "food-collection", m, (p,), episodes=n)
        for m in ("maddpg", "mean-field")
        for p, n in (("1", 50), ("2", 70))
    ]
    study = Study([epc, *others])
    lineage, total = study.episodes("epc", "2")
    assert budget_note(study, ["1", "2"], study.methods) == (
        "Training episodes in all matches, in multiples of those along one lineage: "
        f"EPC 2.0 at 1, {total / lineage:.1f} at 2; all others 1.0."
    )
    shorter = make_run(tmp_path / "short", "food-collection", "att-maddpg", ("2",))
    uneven = Study([epc, *others, shorter])
    note = budget_note(uneven, ["1", "2"], uneven.methods)
    assert note.endswith("Episodes along a lineage differ: at 2 Att-MADDPG 50, all others 70.")


@pytest.mark.parametrize("section", [scores, statistics, crossplay, generalisation])
def test_every_table_of_methods_states_their_budgets(runs, attention, section):
    for table in section(find([*runs, *attention])).tables:
        assert any("in multiples of those along one lineage" in note for note in table.notes)


def test_scripted_players_are_named_but_never_the_best(runs, monkeypatch):
    data = find(runs)
    for number, result in enumerate(data.results):
        if result.method == "scripted":
            high = {name: {"mean": 99.0, "error": 0.1} for name in result.statistics}
            data.results[number] = dataclasses.replace(result, statistics=high)
    assert headlines(data)[0].endswith("; the scripted players get more in 4 of 4")
    assert headlines(data)[0].startswith("With preset paper, EPC has the highest reward of 2")
    for row in scores(data).tables[0].rows:
        assert [cell.best for cell in row[1:]] == [False, True, False, False]


def test_terminal_shows_headline_uncertainty_and_budgets(runs, best, capsys):
    print_scores(find([*runs, *best]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "With preset best, EPC has the highest reward" in shown
    assert "in multiples of those along one lineage" in shown
    assert "± 0.1 episodes" in shown
    assert "2 trainings" in shown


def test_trainings_are_labelled_by_seed_and_match(page):
    results = json.loads((page.parent / "results.json").read_text())
    assert {r["training"] for r in results if r["method"] == "maddpg"} == {
        "seed 0 match 0",
        "seed 0 match 1",
    }
    assert {r["training"] for r in results if r["method"] == "epc"} == {"seed 0", "seed 1"}
    named = {
        (row["method"], row["trial"]): row["training"] for row in table(page, "learning-curves")
    }
    assert named["maddpg", "1"] == "seed 0 match 1"
    shown = [row["training"] for row in table(page, "runs")]
    assert shown == ["seed 0", "seed 1", *["seed 0 matches 0-1"] * 4]
    signature = {row["trainings"] for row in table(page, "second-stage")}
    assert signature == {"seeds 0-1; seed 0 matches 0-1"}
    svg = (page.parent / "figures" / "scores-sheep.svg").read_text()
    assert "seeds 0-1; seed 0 matches 0-1" in svg


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
        assert list(map(float, row["values"].split())) == pytest.approx(means, rel=1e-4)
        assert row["low"] == row["high"] == ""  # two trainings are too few to print an interval
        assert float(row["t95_low"]) <= float(row["mean"]) <= float(row["t95_high"])
    (row,) = (
        r for r in table(page, "scores-wolf") if (r["population"], r["method"]) == ("6-4", "maddpg")
    )
    assert float(row["paper"]) == 3.7735
    crossed = table(page, "crossplay-wolf")
    assert len(crossed) == 5 * 5
    for row in crossed:
        means = [
            result["statistics"]["reward"]["mean"]
            for result in results
            if (result["purpose"], result["role"]) == ("crossplay", "wolf")
            and (result["method"], result["against"]) == (row["method"], row["against"])
        ]
        assert float(row["mean"]) == pytest.approx(np.mean(means))
        assert float(row["mean_per_agent"]) == pytest.approx(float(row["mean"]) / 4)
    names = ["epc", "epc", "maddpg", "maddpg", "att-maddpg", "att-maddpg"]
    assert [row["method"] for row in table(page, "runs")] == names
    assert len({row["config"] for row in table(page, "runs")}) == 6
    assert all(row["commit"] for row in table(page, "runs"))


def test_every_chart_is_written_as_svg_and_png(page):
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    pictures = {path.stem for path in (page.parent / "figures").glob("*.png")}
    assert pictures - drawn == {"world-3-2", "world-6-4"}
    assert drawn <= pictures
    assert {
        "scores-sheep",
        "normalised-wolf",
        "survival-sheep",
        "iqm",
        "profiles",
        "crossplay-wolf",
        "curves-6-4-sheep",
        "convergence-sheep",
        "convergence-sheep-normalised",
        "generalisation-sheep",
        "stability-wolf",
        "lineage-1-epc-1-wolf",
    } <= drawn
    for path in (page.parent / "figures").glob("*.png"):
        with Image.open(path) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 5


def test_replays_pair_the_reference_with_every_other_method(runs, attention, tmp_path, monkeypatch):
    def record(game, players, key, title):
        policies = [player.kind.split()[1] for player in players.values()]
        return dataclasses.replace(make_replay((3, 2), steps=2), title=f"{title}: {policies}")

    monkeypatch.setattr(scenes, "record", record)
    pair, themselves = scenes.replay_pairs(find(runs))
    assert pair.title == "EPC against MADDPG"
    assert [replay.title for replay in pair.replays] == [
        "EPC sheep of run epc-0, MADDPG wolf of run maddpg-6-4: ['attention', 'mlp']",
        "MADDPG sheep of run maddpg-6-4, EPC wolf of run epc-0: ['mlp', 'attention']",
    ]
    assert themselves.title == "Against themselves: EPC and MADDPG"
    assert themselves.frames
    assert [replay.title for replay in themselves.replays] == [
        "EPC sheep of run epc-0, EPC wolf of run epc-0: ['attention', 'attention']",
        "MADDPG sheep of run maddpg-6-4, MADDPG wolf of run maddpg-6-4: ['mlp', 'mlp']",
    ]
    without = scenes.replay_pairs(find([*runs[:2], *attention]))[-1]
    assert without.title == "Against themselves: EPC and Att-MADDPG"
    (alone,) = scenes.replay_pairs(find(runs[:1]))
    assert alone.title == "EPC"
    food = make_run(tmp_path / "food", "food-collection", "epc", ("1", "2"))
    flat = make_run(tmp_path / "flat", "food-collection", "maddpg", ("2",))
    (both,) = scenes.replay_pairs(find([food, flat]))
    assert both.title == "EPC and MADDPG"
    assert [replay.title for replay in both.replays] == [
        "EPC of run food, 2 agents: ['attention']",
        "MADDPG of run flat, 2 agents: ['mlp']",
    ]


def test_replays_show_every_setting_against_itself(runs, best, monkeypatch):
    monkeypatch.setattr(scenes, "record", lambda *_: make_replay((3, 2), steps=2))
    titles = [pair.title for pair in scenes.replay_pairs(find([*runs, *best])) if pair.frames]
    assert titles == [
        "Against themselves: EPC and MADDPG",
        "Against themselves: EPC (best) and MADDPG (best)",
    ]


def test_replays_are_written_as_files(page):
    names = {path.name for path in (page.parent / "replays").iterdir()}
    assert names == {"Sheep-and-wolves.json", "Sheep-and-wolves.png"}  # one title for all


def test_replays_section_explains_why_a_game_has_none(runs, monkeypatch):
    def refuse(*_):
        raise InputError("chess cannot be replayed: it has no 2-D positions")

    monkeypatch.setattr(scenes, "record", refuse)
    section = scenes.replays(find(runs))
    assert not section.pairs
    assert section.text == [
        "There are no replays: chess cannot be replayed: it has no 2-D positions."
    ]
    monkeypatch.setattr(scenes, "record_start", refuse)
    assert scenes.worlds(Study(runs)) is None


def test_worlds_are_pictured_at_every_population(page, runs):
    section = scenes.worlds(Study(runs))
    assert [picture.caption for picture in section.pictures] == [
        "3-2: sheep (3), wolf (2), grass (4)",
        "6-4: sheep (6), wolf (4), grass (4)",
    ]
    assert section.pictures[0].png == (page.parent / "figures" / "world-3-2.png").read_bytes()
    colour = games.find("grassland").roles[0].colour
    sheep = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    areas = []
    for picture in section.pictures:
        with Image.open(io.BytesIO(picture.png)) as image:
            areas.append((np.asarray(image.convert("RGB")) == sheep).all(-1).sum())
    assert 0 < areas[0] < areas[1]


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
    pair = shown.locator(".pair").first
    pair.scroll_into_view_if_needed()
    expect(pair.locator(".epcx-replay")).to_have_count(2)
    expect(pair.locator(".er-step").first).not_to_have_text("0")
    expect(pair.locator(".er-step").last).not_to_have_text("0")
    assert shown.locator(".frames").count() == 1
    assert shown.locator(".frames .strip img").first.evaluate("x => x.naturalWidth") > 500


def test_page_shows_two_kinds_of_uncertainty_in_two_looks(runs, attention, open_page, tmp_path):
    """One training of EPC, two of the others."""
    shown = open_page(write(tmp_path / "report", [runs[0], *attention]))
    looks = {
        kind: shown.locator(f"#scores td small.{kind}").first.evaluate(
            "x => [getComputedStyle(x).fontStyle, getComputedStyle(x).color]"
        )
        for kind in ("trainings", "episodes")
    }
    assert looks["trainings"] != looks["episodes"]
    note = shown.locator("#scores .note").first
    expect(note).to_contain_text("standard error over 500 evaluation episodes")
    expect(note).to_contain_text("Of fewer than 5 trainings all values are listed")
    expect(shown.locator("#scores small.trainings", has_text="1 training").first).to_be_visible()


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
    strip = dark_page.locator(".pair .strip img").first
    expect(strip).to_be_visible()  # instead of players
    assert strip.evaluate("x => x.naturalWidth") > 500
    expect(dark_page.locator(".pair .player").first).to_be_hidden()


def test_headline_counts_only_populations_with_several_methods(runs):
    """MADDPG has no agents of 3-2: there EPC has nothing to be compared with."""
    data = find([*runs[:2], runs[3]])
    (sentence,) = headlines(data)
    assert sentence.startswith(
        "With preset paper, EPC has the highest reward of 2 methods in 2 of 2 comparisons"
    )
    alone = find(runs[2:])
    assert headlines(alone) == ["MADDPG on grassland, with preset paper"]
    assert {chart.name for chart in scores(alone).charts} == {"scores-sheep", "scores-wolf"}


def test_normalised_scores_need_three_methods_and_show_the_lowest(runs, attention):
    assert normalised_scores(find(runs)) is None
    data = find([*runs, *attention])
    found = rows(normalised_scores(data), "normalised-sheep")
    raw = {
        (row["population"], row["method"]): row["mean"]
        for row in rows(scores(data), "scores-sheep")
        if row["method"] in data.study.methods
    }
    for row in found:
        all_of_them = [value for (place, _), value in raw.items() if place == row["population"]]
        low, high = min(all_of_them), max(all_of_them)
        expected = (raw[row["population"], row["method"]] - low) / (high - low)
        assert row["mean"] == pytest.approx(expected)
    assert len(found) == len(raw) == 6


def test_aggregate_scores_have_intervals_from_five_trainings_on(tmp_path):
    few, enough = (
        find(
            [
                make_run(tmp_path / f"{m}-{p}-{n}", "grassland", m, (p,), matches=n)
                for m in ("maddpg", "mean-field", "att-maddpg")
                for p in ("1-1", "2-2")
            ]
        )
        for n in (2, 5)
    )
    for data, trainings in ((few, 2), (enough, 5)):
        section = aggregate_scores(data)
        for row in section.tables[0].csv_rows:
            assert row["trainings"] == trainings
            assert row["tasks"] == 4
            assert (row["mean_low"] is None) == (row["IQM_low"] is None) == (trainings < 5)
        shown = [note.text for row in section.tables[0].rows for note in row[2].notes]
        assert all(text.startswith("[") for text in shown) == (trainings >= 5)
    assert len(shown) == 3


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


def test_second_stage_says_that_the_winner_was_selected_afterwards(runs):
    section = second_stage(find(runs))
    assert any(text.startswith("EPC follows the sets that won in the end") for text in section.text)
    names = [chart.name for chart in section.charts if "sheep" in chart.name]
    assert names == ["convergence-sheep", "convergence-sheep-normalised", "stability-sheep"]
    assert "2 trainings of each method" in section.charts[0].caption
    single = second_stage(find(runs[:1]))
    assert not any(chart.name.startswith("stability") for chart in single.charts)


def test_normalised_curves_are_between_the_extremes_of_the_mean_points():
    x = np.array([0.0, 10.0])
    lines = {
        "epc": [(x, np.array([4.0, 8.0])), (x, np.array([6.0, 10.0]))],
        "maddpg": [(x, np.array([1.0, 3.0]))],
    }
    scaled = normalise_curves(lines)  # means: 5, 9 and 1, 3
    np.testing.assert_allclose(scaled["epc"][1][1], [5 / 8, 9 / 8])
    np.testing.assert_allclose(scaled["maddpg"][0][1], [0, 2 / 8])


def test_generalisation_averages_over_the_opponents_of_all_methods(runs, attention, tmp_path):
    vanilla = make_run(tmp_path / "v", "grassland", "vanilla-pc", ("3-2", "6-4"), 0, None)
    data = find([*runs, *attention, vanilla])
    section = generalisation(data)
    found = rows(section, "generalisation-wolf")
    able = {"epc", "vanilla-pc", "att-maddpg"}
    assert {row["method"] for row in found} == {*able, "scripted", "random"}
    assert {row["population"] for row in found} == {"12-8"}
    games_of = [r for r in data.results if (r.purpose, r.role) == ("generalisation", "wolf")]
    for row in found:
        mine = [r for r in games_of if r.method == row["method"]]
        assert {r.against for r in mine} == able
        means = [r.statistics["reward"]["mean"] for r in mine]
        assert row["mean"] == pytest.approx(np.mean(means))
    assert (
        "against the other roles of all these methods (Att-MADDPG, vanilla-PC and EPC)"
        in (section.text[0])
    )
    assert {chart.name for chart in section.charts} == {
        f"generalisation{kind}-{role}" for kind in ("", "-normalised") for role in ("sheep", "wolf")
    }


def test_palette_gives_variants_distinct_colours():
    methods = [f"epc (sets {k})" for k in range(2, 8)]
    assert len({palette(methods)[method] for method in methods}) == len(methods)


def test_page_escapes_names_titles_and_provenance(tmp_path, open_page):
    run = make_run(tmp_path / "a&b<i>", "food-collection", "epc", ("1", "2"), matches=None)
    odd = "\ud800 \x1b $x_{$"  # neither Unicode nor mathematics
    provenance = {"device": EVIL + odd, "commit": EVIL, "epcx": "0.0.1", "date": odd}
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
    assert "episodes 0 is too small" in cli_error(capsys, "report", place, "--episodes", "0")
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
        ("result.json", "[]", "does not say how the run ended"),
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
