"""The timeline of a run."""
# R28, R29

import time

import pytest

from mcprl.runs.folder import Span, Timeline


def test_spans_have_the_times_of_what_was_done_inside_and_are_taken_once():
    now = iter([1.0, 2.5, 3.0, 7.0])
    timeline = Timeline(clock=lambda: next(now))
    with timeline.span(4, "update"), timeline.span(5, "collect"):
        pass
    assert timeline.take() == [
        Span(step=5, activity="collect", start=2.5, end=3.0),
        Span(step=4, activity="update", start=1.0, end=7.0),
    ]
    assert timeline.take() == []


def test_what_is_broken_off_has_a_span_too():
    now = iter([1.0, 2.0])
    timeline = Timeline(clock=lambda: next(now))
    with pytest.raises(KeyError), timeline.span(0, "collect"):
        raise KeyError
    assert timeline.take() == [Span(step=0, activity="collect", start=1.0, end=2.0)]


def test_what_is_still_going_on_is_not_taken():
    timeline = Timeline(clock=lambda: 0.0)
    with timeline.span(0, "save"):
        assert timeline.take() == []
    assert len(timeline.take()) == 1


def test_spans_are_in_seconds_since_1970_and_measured_by_a_clock_that_nobody_sets(monkeypatch):
    now = iter([500.0, 501.0, 504.5])
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    timeline = Timeline()
    with timeline.span(0, "update"):
        monkeypatch.setattr(time, "time", lambda: 1.7e9 - 3600.0)
    assert timeline.take() == [Span(step=0, activity="update", start=1.7e9 + 1.0, end=1.7e9 + 4.5)]
