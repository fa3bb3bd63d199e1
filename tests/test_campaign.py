"""A short campaign of faults; `make test-faults` runs the whole one."""

import pytest

from tests.faults import disk, inputs, kills
from tests.faults.tally import Tally


@pytest.mark.parametrize(("part", "number"), [(inputs, 40), (kills, 1), (disk, 1)])
def test_nothing_is_lost(tmp_path, part, number):
    tallies = part.run(tmp_path, 0, number, print)
    assert sum(tally.tried for tally in tallies) == number
    assert not [failure for tally in tallies for failure in tally.failures]


def test_tally_counts_what_held():
    tally = Tally("fault", "promise")
    tally.add("first", None)
    tally.add("second", "lost")
    assert (tally.tried, tally.held, tally.failures) == (2, 1, ["second: lost"])
