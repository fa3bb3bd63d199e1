"""The results that come with the project are those of the agents that come with it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from epcx.cli import main
from epcx.runs.run import Run

FOLDER = Path(__file__).parent.parent / "results" / "food-collection"
POPULATIONS = ("3", "6", "12", "24")
SHOWN = {"reward": 1, "coverage": 3}  # digits, in tables in this order


def table():
    """What the report measured in 10,000 episodes, of the first training of each method."""
    found = json.loads((FOLDER / "report" / "results.json").read_text())
    return {
        (row["method"], row["population"]): row["statistics"]
        for row in found
        if row["purpose"] == "score" and row["trial"] == 0
    }


def test_evaluation_reproduces_the_table(capsys):
    run = str(FOLDER / "epc")
    main(["evaluate", run, "--population", "24", "--episodes", "500", "--seed", "1", "--json"])
    shown = json.loads(capsys.readouterr().out)
    measured, known = shown["matches"][0]["roles"]["collector"], table()["epc", "24"]
    assert shown["paper"] == {"reward": pytest.approx(59.47, abs=0.01), "coverage": 0.568}
    for name in ("reward", "coverage"):
        error = (measured[name]["error"] ** 2 + known[name]["error"] ** 2) ** 0.5
        assert measured[name]["mean"] == pytest.approx(known[name]["mean"], abs=4 * error), name


def test_every_method_has_its_agents_at_every_population():
    runs = [Run.open(config.parent) for config in FOLDER.glob("*/config.json")]
    found = {(run.config["method"], stage) for run in runs for stage in run.stages()}
    assert found == {
        (method, population)
        for method in ("epc", "vanilla-pc", "att-maddpg", "mean-field", "maddpg")
        for population in POPULATIONS
    }


def test_the_page_of_the_results_has_the_numbers_of_the_table():
    """Cells hold a mean and, in brackets, its seeds; the published training is the first."""
    page = (FOLDER.parent.parent / "docs" / "results" / "food-collection.md").read_text()
    lines = [line.replace("*", "").split("|")[1:6] for line in page.splitlines()]
    rows = [[cell.strip() for cell in line] for line in lines if "(" in "".join(line)]
    for label, method in (
        ("vanilla-PC", "vanilla-pc"),
        ("Att-MADDPG", "att-maddpg"),
        ("mean-field", "mean-field"),
        ("MADDPG", "maddpg"),
        ("EPC, preset `best`", "epc (best)"),
    ):
        tables = [cells for first, *cells in rows if first == label]
        for cells, (name, digits) in zip(tables, SHOWN.items(), strict=True):
            for cell, population in zip(cells, POPULATIONS, strict=True):
                mean, *seeds = map(float, re.findall(r"[\d.]+", cell))
                known = table()[method, population][name]["mean"]
                assert f"{seeds[0]:.{digits}f}" == f"{known:.{digits}f}", cell
                assert mean == pytest.approx(np.mean(seeds), abs=1.5 * 10**-digits), cell
