"""Charts of curricula with many stages, up to hundreds of agents."""

import itertools
import re

import numpy as np
import pytest

from epcx.evaluation.results import Cell
from epcx.evolution.lineage import Lineage, Record, name_of
from epcx.reports import figures
from epcx.reports.chart import palette
from epcx.reports.lineage_chart import lineage_chart
from epcx.reports.page import chart_html

POPULATIONS = ("3-2", "6-4", "12-8", "24-16", "48-32", "96-64", "192-128", "384-256")


@pytest.mark.parametrize("stages", [4, 8])
def test_labels_of_populations_do_not_overlap(stages):
    groups = {p: {"epc": Cell(np.ones(1), np.ones(1))} for p in POPULATIONS[:stages]}
    looks = palette(["epc"])
    chart = figures.bars("x", "Reward", "reward", groups, looks, {}, lambda *_: ["seed 0"])
    assert chart.images
    labels = chart.figure.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {0.0 if stages == 4 else 35.0}
    if stages == 4:
        boxes = [label.get_window_extent() for label in labels]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def lineage_of(stages):
    records = []
    for stage, match in itertools.product(range(stages), range(2)):
        parents = tuple(name_of("sheep", stage - 1, k) for k in range(2)) if stage else ()
        name = name_of("sheep", stage, match)
        population = POPULATIONS[stage]
        records.append(Record(name, "sheep", stage, population, match, parents, 1.0, rank=match))
    return Lineage(tuple(records))


@pytest.mark.parametrize(("stages", "width"), [(4, None), (8, 1383)])
def test_lineages_of_many_stages_are_wider(stages, width):
    chart = lineage_chart("lineage", "Sheep", lineage_of(stages), "sheep", "Lineage of sheep")
    page = chart_html(chart)
    found = re.search(r'<svg [^>]*style="max-width: (\d+)px"', page)
    assert (int(found[1]) if found else None) == width
    assert all(f"{population} agents" in page for population in POPULATIONS[:stages])
