"""The timeline of a run."""
# R28, R29

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
