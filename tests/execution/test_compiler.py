"""The background compiler."""

import threading

import pytest

from epcx.execution.compiler import BackgroundCompiler


@pytest.fixture
def compiler():
    compiler = BackgroundCompiler()
    yield compiler
    compiler.close()


def test_prepared_result_is_handed_out_once(compiler):
    compiler.prepare("a", lambda: threading.current_thread().name)
    assert compiler.get("a", lambda: "made now") != threading.current_thread().name
    assert compiler.get("a", lambda: "made now") == "made now"


def test_job_is_not_prepared_twice(compiler):
    calls = []
    for _ in range(2):
        compiler.prepare("a", lambda: calls.append(1))
    compiler.prepare("b", lambda: None)
    compiler.get("b", lambda: None)
    assert calls == [1]


def test_error_of_a_job_is_raised_by_get(compiler):
    def fail():
        raise ValueError("too large")

    compiler.prepare("a", fail)
    with pytest.raises(ValueError, match="too large"):
        compiler.get("a", lambda: None)


def test_close_cancels_queued_jobs_and_does_not_wait(compiler):
    running, release, ran = threading.Event(), threading.Event(), []

    def first():
        running.set()
        release.wait(30)
        ran.append("first")

    compiler.prepare("first", first)
    compiler.prepare("second", lambda: ran.append("second"))
    assert running.wait(30)
    compiler.close()
    assert ran == []
    release.set()
    compiler._pool.shutdown(wait=True)
    assert ran == ["first"]
