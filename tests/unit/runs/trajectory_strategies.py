"""Hypothesis strategies for trajectories."""

from __future__ import annotations

from hypothesis import strategies as st

from mcprl.errors import Fault
from mcprl.records import FinishReason, Observation, Source, StopReason, ToolCall, Trajectory, Turn

__all__ = ["trajectories"]

numbers = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(min_value=0.0, max_value=1e6)
# A policy can write one half of a surrogate pair; both side by side are a character to JSON.
texts = st.text(
    st.characters(codec=None, exclude_characters=[chr(code) for code in range(0xDC00, 0xE000)]), max_size=30
)
names = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3)
calls = st.builds(ToolCall, name=texts, arguments=arguments, problem=st.none() | texts)
observations = st.builds(
    Observation,
    tool=texts,
    server=st.none() | names,
    text=texts,
    fault=st.sampled_from([None, Fault.POLICY]),
    latency_s=seconds,
    source=st.sampled_from(Source),
    attempts=st.integers(1, 9),
    truncated=st.booleans(),
    arguments=st.none() | arguments,
)


@st.composite
def trajectories(draw: st.DrawFn, step: int | None = None) -> Trajectory:
    kinds = draw(st.text(alphabet="csfx", max_size=10))
    count = len(kinds)
    column = st.lists(st.integers(-1, 10), min_size=count, max_size=count).map(tuple)
    turns = st.builds(
        Turn,
        text=texts,
        sampled_ids=st.lists(st.integers(0, 200_000), max_size=4).map(tuple),
        finish=st.sampled_from(FinishReason),
        weights_version=st.integers(0, 99),
        calls=st.lists(calls, max_size=2).map(tuple),
        observations=st.lists(observations, max_size=2).map(tuple),
        reward=numbers,
    )
    return Trajectory(
        task_id="task",
        step=draw(st.integers(0, 10**6)) if step is None else step,
        member=0,
        attempt=draw(st.integers(0, 9)),
        temperature=draw(st.floats(0.01, 2.0)),
        token_ids=tuple(draw(st.lists(st.integers(0, 200_000), min_size=count, max_size=count))),
        sampled=tuple(kind != "c" for kind in kinds),
        forced=tuple(kind == "f" for kind in kinds),
        fixed=tuple(kind == "x" for kind in kinds),
        logprobs=tuple(draw(st.floats(-50.0, 0.0)) if kind != "c" else 0.0 for kind in kinds),
        turn_index=draw(column),
        weights_version=draw(column),
        turns=tuple(draw(st.lists(turns, max_size=3))),
        stop=draw(st.sampled_from(StopReason)),
        reward=draw(numbers),
        reward_parts=draw(st.dictionaries(names, numbers, max_size=3)),
        duration_s=draw(seconds),
        grammar=draw(st.none() | names),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 200_000), max_size=3))),
    )
