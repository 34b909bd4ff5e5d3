"""Spans: which are timed, and that a device's time is counted where it arose."""

import time

import pytest

from primus.engine.trace import Trace


def test_spans_above_the_level_are_not_timed() -> None:
    trace = Trace(level=1)
    for level in (0, 1, 2):
        with trace.span(f"at {level}", level):
            pass
    assert set(trace.drain()) == {"at 0", "at 1"}
    assert trace.drain() == {}


def test_work_of_the_device_counts_in_the_span_that_gave_it() -> None:
    pending: list[float] = []

    def wait() -> None:
        while pending:
            time.sleep(pending.pop())

    trace = Trace(level=1, wait=wait)
    pending.append(0.3)  # of whatever came before
    with trace.span("forward", 1):
        pending.append(0.02)
    with trace.span("optimizer", 1):
        pass
    found = trace.drain()
    assert 0.02 <= found["forward"] < 0.3
    assert found["optimizer"] < found["forward"]


def test_an_error_passes_through_at_once() -> None:
    calls: list[str] = []
    trace = Trace(level=1, wait=lambda: calls.append("wait"))
    with pytest.raises(ValueError, match="no"), trace.span("forward", 1):
        raise ValueError("no")
    assert calls == ["wait"]


def test_timers_that_always_run_do_not_wait() -> None:
    calls: list[str] = []
    with Trace(level=2, wait=lambda: calls.append("wait")).span("evaluate"):
        pass
    assert calls == []


def test_ranks_meet_before_timers_of_level_1_alone() -> None:
    """`barrier_with_L1_time` gives a run's trace the meeting."""
    calls: list[str] = []
    trace = Trace(level=2, wait=lambda: None, meet=lambda: calls.append("meet"))
    for level in (0, 1, 2):
        with trace.span(f"at {level}", level):
            calls.append(f"at {level}")
    assert calls == ["at 0", "meet", "at 1", "at 2"]
