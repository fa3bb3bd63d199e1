"""The published results are those of the published agents."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import epcx
from epcx import methods
from epcx.cli import main
from epcx.runs.run import FORMAT, RunFolder

FOLDER = Path(__file__).parent.parent / "results" / "food-collection"
PAGE = FOLDER.parent.parent / "docs" / "results" / "food-collection.md"
BEST_PAGE = PAGE.parent / "best.md"
BATTLE_TEAM = FOLDER.parent / "adversarial-battle" / "epc-best"
GRASSLAND_TEAM = FOLDER.parent / "grassland" / "epc-best"
PREY_TEAM = FOLDER.parent / "predator-prey" / "epc-best"
LARGE_TEAM = FOLDER.parent / "large" / "grassland-384-256"
LARGE_PAGE = BEST_PAGE.parent / "hundreds.md"
POPULATIONS = ("3", "6", "12", "24")
DIGITS = {"reward": 1, "coverage": 3}  # in the tables of the page, which come in this order
ROWS = {
    "EPC": "epc",
    "vanilla-PC": "vanilla-pc",
    "Att-MADDPG": "att-maddpg",
    "mean-field": "mean-field",
    "mean-field-local": "mean-field-local",
    "MADDPG": "maddpg",
    "EPC, learning rate 0.003": "epc (best)",
}


def report_table(report="report"):
    """The statistics in results.json of a report, by method, population and trial."""
    results = json.loads((FOLDER / report / "results.json").read_text())
    return {
        (row["method"], row["population"], row["trial"]): row["statistics"]
        for row in results
        if row["purpose"] == "score"
    }


def page_tables():
    """The cells of tables of rewards and coverage: {label: [cells of each table]}."""
    tables = {}
    for line in PAGE.read_text().splitlines():
        label, *cells = [cell.strip() for cell in line.replace("*", "").split("|")[1:6]] or [""]
        if label in ROWS and any("(" in cell for cell in cells):
            tables.setdefault(label, []).append(cells)
    return tables


def evaluated(capsys, run, population, episodes):
    """What `epcx evaluate` shows of published agents."""
    options = ["--population", population, "--episodes", str(episodes), "--seed", "1", "--json"]
    main(["evaluate", str(FOLDER / run), *options])
    return json.loads(capsys.readouterr().out)


def assert_agrees(measured, reported):
    for name in ("reward", "coverage"):
        error = (measured[name]["error"] ** 2 + reported[name]["error"] ** 2) ** 0.5
        assert measured[name]["mean"] == pytest.approx(reported[name]["mean"], abs=4 * error), name


def test_evaluation_of_published_agents_agrees_with_the_report(capsys):
    shown = evaluated(capsys, "epc", "24", 500)
    paper = shown["paper"]["collector"]
    assert paper == {"reward": pytest.approx(59.47, abs=0.01), "coverage": 0.568}
    assert_agrees(shown["matches"][0]["roles"]["collector"], report_table()["epc", "24", 0])


def test_evaluation_of_the_best_agents_agrees_with_their_report(capsys):
    shown = evaluated(capsys, "epc-best", "24", 100)
    reported = report_table("report-best")["epc (mappo)", "24", 0]
    assert_agrees(shown["matches"][0]["roles"]["collector"], reported)


def test_page_of_the_preset_best_shows_the_numbers_of_its_report():
    """A cell has the mean and, in brackets, all trainings."""
    page, report = BEST_PAGE.read_text(), report_table("report-best")
    rows = [line.split("|")[2:6] for line in page.splitlines() if line.startswith("| **EPC** |")]
    for cells, (name, digits) in zip(rows, DIGITS.items(), strict=True):
        for cell, population in zip(cells, POPULATIONS, strict=True):
            exact = [report["epc (mappo)", population, trial][name]["mean"] for trial in range(3)]
            shown = [np.mean(exact), *exact]
            assert re.findall(r"[\d.]+", cell) == [f"{value:.{digits}f}" for value in shown]


def card_scores(team):
    """Of the card of a published team, by population, role and opponent."""
    card = json.loads((team / "card.json").read_text())
    scores = [score for score in card["scores"] if score["player"] == "team"]
    return {(score["population"], score["role"], score["against"]): score for score in scores}


def row_of_best(game, population):
    """Rewards and errors of the preset best on its page: those of each cell."""
    section = BEST_PAGE.read_text().partition(f"\n### {game}\n")[2]
    lines = iter(section.splitlines())
    assert any(line.startswith(f"| {population} |") for line in lines)
    row = next(line for line in lines if line.startswith("| **best** |")).replace("*", "")
    cells = [re.findall(r"(-?[\d.]+) ± ([\d.]+)", cell) for cell in row.split("|")[2:-1]]
    return [[(float(mean), float(error)) for mean, error in cell] for cell in cells]


@pytest.mark.parametrize(
    ("game", "team", "populations", "roles"),
    [
        ("Adversarial Battle", BATTLE_TEAM, ("4-4", "8-8", "16-16"), ("team1", "team2")),
        ("Grassland", GRASSLAND_TEAM, ("3-2", "6-4", "12-8", "24-16"), ("sheep", "wolf")),
        ("Predator-prey", PREY_TEAM, ("3-2", "6-4", "12-8"), ("prey", "predator")),
    ],
    ids=["battle", "grassland", "predator-prey"],
)
def test_page_of_the_preset_best_shows_the_scores_on_the_card_of_its_team(
    game, team, populations, roles
):
    """Against itself and against scripted players."""
    scores = card_scores(team)
    for population in populations:
        cells = row_of_best(game, population)
        for against, pairs in (("team", cells[0]), ("scripted", cells[-1])):
            for role, (mean, error) in zip(roles, pairs, strict=True):
                score = scores[population, role, against]
                # A cell has one digit behind the point, or three in all.
                assert mean == pytest.approx(score["mean"], rel=0.005, abs=0.051)
                assert error == pytest.approx(score["error"], rel=0.15, abs=0.051)


@pytest.mark.parametrize(
    ("team", "population", "episodes"),
    [
        (BATTLE_TEAM, "4-4", 300),
        (GRASSLAND_TEAM, "12-8", 300),
        (PREY_TEAM, "12-8", 300),
        (LARGE_TEAM, "384-256", 24),
    ],
    ids=["battle", "grassland", "predator-prey", "large"],
)
def test_evaluation_of_published_teams_agrees_with_their_cards(team, population, episodes):
    shown = epcx.load(str(team), population=population).play(episodes=episodes)
    for role in shown:
        mine, score = shown[role]["reward"], card_scores(team)[population, role, "team"]
        error = (mine["error"] ** 2 + score["error"] ** 2) ** 0.5
        assert mine["mean"] == pytest.approx(score["mean"], abs=4 * error)


def test_page_of_hundreds_shows_the_scores_on_the_card_of_its_team():
    scores = card_scores(LARGE_TEAM)
    rows = LARGE_PAGE.read_text().replace("*", "").splitlines()
    (row,) = (line.split("|")[2:-1] for line in rows if line.startswith("| published |"))
    for cell, against in ((row[0], "team"), (row[-1], "scripted")):
        shown = re.findall(r"(-?[\d.]+) ± ([\d.]+)", cell)
        for role, (mean, error) in zip(("sheep", "wolf"), shown, strict=True):
            score = scores["384-256", role, against]
            assert (mean, error) == (f"{score['mean']:.1f}", f"{score['error']:.1f}")


def test_team_of_640_has_weights_of_its_own_for_every_agent():
    team = epcx.load(str(LARGE_TEAM))
    members = {role: jax.tree.leaves(team.players[role].agents) for role in ("sheep", "wolf")}
    for role, number in (("sheep", 384), ("wolf", 256)):
        rows = np.concatenate([np.asarray(x).reshape(number, -1) for x in members[role]], 1)
        assert len(np.unique(rows, axis=0)) == number


def test_every_method_has_published_agents_at_every_population():
    runs = [RunFolder.open(config.parent) for config in FOLDER.glob("*/config.json")]
    assert {run.config["format"] for run in runs} == {FORMAT}
    found = {(run.config["method"], stage) for run in runs for stage in run.stages()}
    compared = {(method, stage) for method in methods.PAPER for stage in POPULATIONS}
    assert found == {
        *compared - {("mean-field", "24")},  # which the page says
        *(("mean-field-local", stage) for stage in POPULATIONS),
    }


@pytest.mark.parametrize("label", ROWS)
def test_page_shows_the_numbers_of_the_report(label):
    """A cell has the mean and, in brackets, all trainings; the published ones come first."""
    report, tables = report_table(), page_tables()[label]
    method = ROWS[label]
    for cells, (name, digits) in zip(tables, DIGITS.items(), strict=True):
        for cell, population in zip(cells, POPULATIONS, strict=True):
            published = [trial for trial in range(9) if (method, population, trial) in report]
            assert bool(published) == (cell != "not trained")
            if not published:
                continue
            mean, *seeds = map(float, re.findall(r"[\d.]+", cell))
            assert len(seeds) >= 2
            for trial in published:
                reported = report[method, population, trial][name]["mean"]
                assert f"{seeds[trial]:.{digits}f}" == f"{reported:.{digits}f}", cell
            # The seeds are rounded, and so is their mean.
            assert mean == pytest.approx(np.mean(seeds), abs=1.01 * 10**-digits), cell
            if len(published) == len(seeds):
                exact = [report[method, population, i][name]["mean"] for i in published]
                assert f"{mean:.{digits}f}" == f"{np.mean(exact):.{digits}f}", cell
