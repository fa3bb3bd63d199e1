"""Things that are made in the background."""

import threading

import pytest

from epcx.engines.ahead import Ahead


def test_what_was_prepared_is_handed_out_once():
    ahead = Ahead()
    ahead.prepare("a", lambda: threading.current_thread().name)
    assert ahead.get("a", lambda: "made now") != threading.current_thread().name
    assert ahead.get("a", lambda: "made now") == "made now"
    ahead.close()


def test_nothing_is_prepared_twice():
    ahead, calls = Ahead(), []
    for _ in range(2):
        ahead.prepare("a", lambda: calls.append(1))
    ahead.get("a", lambda: None)
    ahead.close()
    assert calls == [1]


def test_what_goes_wrong_in_the_background_is_told_to_who_asks():
    def fail():
        raise ValueError("too large")

    ahead = Ahead()
    ahead.prepare("a", fail)
    with pytest.raises(ValueError, match="too large"):
        ahead.get("a", lambda: None)
    ahead.close()


def test_nobody_waits_for_what_is_no_longer_wanted():
    ahead, go, begun = Ahead(), threading.Event(), []
    ahead.prepare("first", go.wait)
    ahead.prepare("second", lambda: begun.append(1))
    ahead.close()
    go.set()
    assert not begun
