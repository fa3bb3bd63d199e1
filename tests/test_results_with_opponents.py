"""The published results of games with opponents are those of the published agents."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from epcx import games, library, methods
from epcx.runs.run import RunFolder

ROOT = Path(__file__).parent.parent
LABELS = {
    "EPC": "epc",
    "vanilla-PC": "vanilla-pc",
    "Att-MADDPG": "att-maddpg",
    "mean-field": "mean-field",
    "MADDPG": "maddpg",
    "scripted": "scripted",
    "random": "random",
}
# The roles of each table of rewards against EPC, in the order of the page.
TABLES = {
    "adversarial-battle": [("team1", "team2")],
    "predator-prey": [("prey",), ("predator",)],
    "grassland": [("sheep",), ("wolf",)],
}
PAPER = {  # EPC against EPC at the largest population, from the tables of its appendix
    "adversarial-battle": {"team1": 190, "team2": 190},
    "predator-prey": {"prey": -214, "predator": 214},
    "grassland": {"sheep": -44, "wolf": 61},
}
NOT_TRAINED = {  # as the pages say
    "grassland": {
        *(("att-maddpg", population) for population in ("6-4", "12-8", "24-16")),
        *(("mean-field", population) for population in ("12-8", "24-16")),
        ("maddpg", "12-8"),
    }
}


def results_of(game, purpose):
    path = ROOT / "results" / game / "report" / "results.json"
    return [row for row in json.loads(path.read_text()) if row["purpose"] == purpose]


def reward(rows, method, population, role, against):
    (found,) = (
        row["statistics"]["reward"]
        for row in rows
        if (row["method"], row["population"], row["role"], row["against"])
        == (method, population, role, against)
    )
    return found


def tables_below(game, heading):
    """The tables of a section of the page: [{label: {heading: cell}}]."""
    page = (ROOT / "docs" / "results" / f"{game}.md").read_text()
    (section,) = re.findall(rf"^## {heading}[^\n]*\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", section, re.M):
        rows = [line.replace("*", "").strip()[1:-1].split("|") for line in block.splitlines()]
        headings, _, *rows = [[cell.strip() for cell in row] for row in rows]
        tables.append({row[0]: dict(zip(headings[1:], row[1:], strict=True)) for row in rows})
    return tables


def shown_as(value, cell):
    """Whether a cell such as `-183 (-214)` has this value, with the digits that it has."""
    text = cell.partition(" ")[0]
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5001 * 10**-digits


@pytest.mark.parametrize("game", TABLES)
def test_every_method_has_published_agents_at_every_population(game):
    runs = [RunFolder.open(path.parent) for path in (ROOT / "results" / game).glob("*/config.json")]
    found = {(run.config["method"], stage) for run in runs for stage in run.stages()}
    compared = {(method, p) for method in methods.PAPER for p in games.find(game).stages}
    assert found == compared - NOT_TRAINED.get(game, set())


@pytest.mark.parametrize("game", TABLES)
def test_evaluation_of_published_agents_agrees_with_the_report(game):
    """In self-play at the largest population, with the paper's rewards beside them."""
    population = games.find(game).stages[-1]
    evaluation = library.evaluate(ROOT / "results" / game / "epc", episodes=150, seed=1)
    found, paper = evaluation.roles(), evaluation.paper
    assert {role: round(numbers["reward"]) for role, numbers in paper.items()} == PAPER[game]
    for role in games.find(game).roles:
        reported = reward(results_of(game, "crossplay"), "epc", population, role.name, "epc")
        measured = found[role.name]["reward"]
        error = (measured["error"] ** 2 + reported["error"] ** 2) ** 0.5
        assert measured["mean"] == pytest.approx(reported["mean"], abs=4 * error)


@pytest.mark.parametrize("game", TABLES)
def test_page_shows_the_rewards_of_the_report(game):
    rows = results_of(game, "score")
    tables = tables_below(game, "Rewards against EPC")
    for roles, table in zip(TABLES[game], tables, strict=True):
        assert set(table) == set(LABELS)
        for label, cells in table.items():
            assert tuple(cells) == games.find(game).stages
            for population, cell in cells.items():
                missing = (LABELS[label], population) in NOT_TRAINED.get(game, set())
                assert missing == (cell == "not trained")
                if missing:
                    continue
                found = [reward(rows, LABELS[label], population, r, "epc")["mean"] for r in roles]
                assert shown_as(np.mean(found), cell), (label, population, cell, np.mean(found))


@pytest.mark.parametrize("game", TABLES)
def test_page_shows_the_crossplay_of_the_report(game):
    """Of the last role; of each in Grassland, where it is not a zero-sum game."""
    tables = tables_below(game, "Cross-play")
    population, rows = games.find(game).stages[-1], results_of(game, "crossplay")
    missing = {method for method, p in NOT_TRAINED.get(game, set()) if p == population}
    players = {label for label, method in LABELS.items() if method not in missing} - {"random"}
    for roles, table in zip(TABLES[game][-len(tables) :], tables, strict=True):
        assert set(table) == players
        for label, cells in table.items():
            assert set(cells) == players
            for against, cell in cells.items():
                found = [
                    reward(rows, LABELS[label], population, role, LABELS[against])["mean"]
                    for role in roles
                ]
                assert shown_as(np.mean(found), cell), (label, against, cell, np.mean(found))
