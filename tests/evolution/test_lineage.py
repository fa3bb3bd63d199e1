"""Lineages from files: damaged ones are refused, and shared ancestors are printed once."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from epcx.errors import InputError
from epcx.evolution.lineage import Lineage, Record
from epcx.reports.lineage_tree import print_lineage

RECORDS = (
    Record("collector-0.0", "collector", 0, "1", 0, fitness=1.5, rank=0),
    Record("collector-0.1", "collector", 0, "1", 1, fitness=1.0, rank=1),
    Record("collector-1.0", "collector", 1, "2", 0, ("collector-0.0", "collector-0.1"), rank=0),
)


def printed(lineage):
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        print_lineage(lineage, console)
    return captured.get()


def generations(number):
    """Two sets a stage, each mixed from both sets of the stage before."""
    return Lineage(
        tuple(
            Record(
                f"a-{stage}.{match}",
                "a",
                stage,
                str(stage + 1),
                match,
                parents=(f"a-{stage - 1}.0", f"a-{stage - 1}.1") if stage else (),
                rank=match,
            )
            for stage in range(number)
            for match in range(2)
        )
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"stage": "x"}, r"\[2\].stage is 'x', not a whole number"),
        ({"stage": True}, "not a whole number"),
        ({"stage": 2**70}, "not a whole number"),
        ({"stage": 10**12}, "stages are not numbered from 0"),
        ({"fitness": "1"}, "fitness is '1', not a number or null"),
        ({"parents": "collector-0.0"}, "parents is 'collector-0.0', not a list"),
        ({"parents": [3]}, r"parents\[0\] is 3, not text"),
        ({"parents": ["collector-1.0"]}, "'collector-1.0' comes before 'collector-1.0'"),
        ({"parents": ["nobody"]}, "'collector-1.0' comes before 'nobody'"),
        ({"name": "collector-0.0", "parents": []}, "two agent sets 'collector-0.0'"),
        ({"role": "wolf"}, "'collector-1.0' has not the role of 'collector-0.0'"),
        ({"population": "$x$"}, r"population '\$x\$' is malformed"),
        ({"diverged": "no"}, "diverged is 'no', not true or false"),
        ({"colour": 1}, "'colour' in .* is unknown"),
    ],
)
def test_damaged_lineage_is_refused_in_one_sentence(change, complaint):
    rows = json.loads(json.dumps(Lineage(RECORDS).to_json()))
    assert Lineage.from_json(rows) == Lineage(RECORDS)
    rows[2] |= change
    with pytest.raises(InputError, match=f"the lineage is damaged, .*{complaint}") as caught:
        Lineage.from_json(rows)
    assert "\n" not in str(caught.value)


def test_tree_shows_shared_ancestors_once():
    shown = printed(generations(26))
    assert len(shown.splitlines()) < 150
    assert "a-0.0" in shown
    assert "(see above)" in shown
    assert "(see above)" not in printed(Lineage(RECORDS))
    assert "collector-0.1  1  fitness 1.00" in printed(Lineage(RECORDS))


def test_lineage_of_many_stages_is_printed():
    chain = [replace(r, parents=r.parents[:1]) for r in generations(1500).records[::2]]
    assert "a-1499.0" in printed(Lineage(tuple(chain)))


def test_names_are_printed_as_they_are_without_control_characters():
    name = "collector[/x]\x1b]0;title\x07-0.0"
    shown = printed(Lineage((replace(RECORDS[0], name=name, population="[red]1"),)))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "collector[/x]" in shown
    assert "[red]1" in shown
