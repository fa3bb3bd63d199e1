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
    """The tables of a section of the page: [{label: cells}], without their headers."""
    page = (ROOT / "docs" / "results" / f"{game}.md").read_text()
    (section,) = re.findall(rf"^## {heading}[^\n]*\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", section, re.M):
        rows = [line.replace("*", "").strip("|\n ").split("|") for line in block.splitlines()[2:]]
        tables.append({row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows})
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
    assert found == {(method, p) for method in methods.PAPER for p in games.find(game).stages}


@pytest.mark.parametrize("game", TABLES)
def test_evaluation_of_published_agents_agrees_with_the_report(game):
    """In self-play at the largest population."""
    population = games.find(game).stages[-1]
    found = library.evaluate(ROOT / "results" / game / "epc", episodes=150, seed=1).roles()
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
            for cell, population in zip(cells, games.find(game).stages, strict=True):
                found = [reward(rows, LABELS[label], population, r, "epc")["mean"] for r in roles]
                assert shown_as(np.mean(found), cell), (label, population, cell, np.mean(found))


@pytest.mark.parametrize(("game", "roles"), [(g, t[-1]) for g, t in TABLES.items()])
def test_page_shows_the_crossplay_of_the_report(game, roles):
    (table,) = tables_below(game, "Cross-play")
    population, rows = games.find(game).stages[-1], results_of(game, "crossplay")
    columns = ("maddpg", "mean-field", "att-maddpg", "vanilla-pc", "epc", "scripted")
    assert set(table) == set(LABELS) - {"random"}
    for label, cells in table.items():
        for cell, against in zip(cells, columns, strict=True):
            found = [reward(rows, LABELS[label], population, r, against)["mean"] for r in roles]
            assert shown_as(np.mean(found), cell), (label, against, cell, np.mean(found))
