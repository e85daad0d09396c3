"""The index of episodes against plain Python: filters, search, orders, and JSON of any kind."""
# R29

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shown_runs import make_episode

from mcprl.episodes import succeeded
from mcprl.records import StopReason, Trajectory
from mcprl.runs.trajectories import write_trajectories
from mcprl_dashboard.episode_index import EpisodeIndex
from mcprl_dashboard.questions import EpisodeKey, Filter, Page

WORDS = ("Lima", "lima beans", "LIMA", "a", "'", '"', "\\", "\n", "%", "Zoë", "é", "", "{}", "null")
episodes = st.builds(
    make_episode,
    step=st.integers(0, 3),
    task_id=st.sampled_from(["t1", "t2", "t'3"]),
    reward=st.sampled_from([0.0, 0.25, 1.0]),
    text=st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
    tool=st.sampled_from(["find_person", "get_time", None]),
    fault=st.booleans(),
    stop=st.sampled_from(StopReason),
    parts=st.dictionaries(
        st.sampled_from(["answer", "state", "check", "rubric", "calls", "format"]),
        st.sampled_from([0.0, 0.4, 0.5, 1.0]),
    ),
    tokens=st.integers(2, 6),
)
filters = st.builds(
    Filter,
    q=st.sampled_from(WORDS),
    task=st.none() | st.sampled_from(["t1", "t'3", "none"]),
    tool=st.none() | st.sampled_from(["find_person", "get_time"]),
    stop=st.none() | st.sampled_from([stop.value for stop in StopReason]),
    outcome=st.sampled_from([None, "solved", "failed"]),
    fault=st.booleans(),
    step_from=st.none() | st.integers(0, 3),
    step_to=st.none() | st.integers(0, 3),
    reward_min=st.none() | st.sampled_from([0.0, 0.25, 1.0]),
    reward_max=st.none() | st.sampled_from([0.0, 0.25, 1.0]),
)
# A policy can write one half of a surrogate pair; both side by side are a character to JSON.
any_text = st.text(st.characters(codec=None, exclude_characters=[chr(code) for code in range(0xDC00, 0xE000)]))
strange = st.builds(make_episode, step=st.just(4), text=any_text, tool=any_text, tokens=st.integers(2, 9))
pages = st.builds(
    Page,
    sort=st.sampled_from(["step", "reward", "turns", "tokens", "duration_s", "task_id"]),
    order=st.sampled_from(["asc", "desc"]),
    offset=st.integers(0, 5),
    limit=st.integers(1, 20),
)


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    """Many different episodes, the same each time."""
    found: list[Trajectory] = []

    @settings(derandomize=True, database=None)
    @given(st.lists(episodes, min_size=2, max_size=2))
    def gather(some: list[Trajectory]) -> None:
        found.extend(some)

    gather()
    members: dict[tuple[int, str], int] = {}
    for place, one in enumerate(found):
        key = (one.step, one.task_id)
        members[key] = members.get(key, -1) + 1
        found[place] = replace(one, member=members[key])
    return found


@pytest.fixture(scope="module")
def index(played, tmp_path_factory):
    index = open_index(tmp_path_factory.mktemp("run"), played)
    yield index
    index.close()


@given(wanted=filters, page=pages)
def test_a_filter_lets_through_what_plain_python_lets_through(index, played, wanted: Filter, page: Page):
    expected = [one for one in played if lets_through(wanted, one)]
    found = index.find(wanted, page)
    assert found.total == len(expected)
    keys = {key_of(one) for one in expected}
    assert all((row["step"], row["task_id"], row["member"]) in keys for row in found.rows)
    assert len(found.rows) == max(0, min(page.limit, len(expected) - page.offset))
    values = [row[page.sort] for row in found.rows]
    assert values == sorted(values, reverse=page.order == "desc")


def test_pages_together_are_everything_once(index, played):
    parts = [index.find(Filter(), Page(offset=offset, limit=7)).rows for offset in range(0, len(played), 7)]
    rows = [row for part in parts for row in part]
    keys = [(row["step"], row["task_id"], row["member"]) for row in rows]
    assert sorted(keys) == sorted(map(key_of, played))


def test_what_counts_as_solved_is_what_training_counts(index, played):
    rows = index.find(Filter(), Page(limit=500)).rows
    solved = {(row["step"], row["task_id"], row["member"]): row["solved"] for row in rows}
    assert solved == {key_of(one): succeeded(one.reward_parts) for one in played}


@settings(max_examples=10)
@given(trajectory=strange)
def test_any_trajectory_is_indexed_and_stored_as_it_was(tmp_path_factory, trajectory: Trajectory):
    index = open_index(tmp_path_factory.mktemp("run"), [trajectory])
    try:
        assert index.problems == []
        (row,) = index.find(Filter(), Page()).rows
        assert (row["turns"], row["tokens"]) == (len(trajectory.turns), len(trajectory.token_ids))
        assert row["calls"] == sum(len(turn.calls) for turn in trajectory.turns)
        stored = index.stored(EpisodeKey(step=4, task_id=trajectory.task_id, member=trajectory.member))
        assert stored is not None
        assert [turn["text"] for turn in json.loads(stored["turns"])] == [turn.text for turn in trajectory.turns]
    finally:
        index.close()


NO_TURNS = ("nope", "5", "null", "[]", "[null, 7, [[]]]", '[{"calls": {"a": 1}}]', "[" * 100_000)


@pytest.mark.parametrize("turns", NO_TURNS, ids=range(len(NO_TURNS)))
def test_turns_that_are_none_hide_no_other_episode(tmp_path, turns):
    index = open_index(tmp_path, [make_episode(member=member) for member in range(2)])
    path = tmp_path / "trajectories" / "step-00000.parquet"
    table = pyarrow.parquet.read_table(path)
    texts = pyarrow.array([turns, table.column("turns")[1].as_py()])
    pyarrow.parquet.write_table(table.set_column(table.column_names.index("turns"), "turns", texts), path)
    index.close()
    index = open_index(tmp_path, [])
    assert (index.find(Filter(), Page()).total, index.problems) == (2, [])
    assert [row["member"] for row in index.find(Filter(q="I DO NOT KNOW"), Page()).rows] == [1]
    index.close()


def open_index(run: Path, written: list[Trajectory]) -> EpisodeIndex:
    """An index of the files of a run, when all of them are read."""
    (run / "trajectories").mkdir(exist_ok=True)
    for step in {one.step for one in written}:
        path = run / "trajectories" / f"step-{step:05d}.parquet"
        write_trajectories(path, [one for one in written if one.step == step])
    index = EpisodeIndex(run)
    index.refresh()
    index.wait()
    return index


def key_of(one: Trajectory) -> tuple[int, str, int]:
    return one.step, one.task_id, one.member


def lets_through(wanted: Filter, one: Trajectory) -> bool:
    calls = [call for turn in one.turns for call in turn.calls]
    seen = [observation for turn in one.turns for observation in turn.observations]
    texts = [turn.text for turn in one.turns]
    texts += [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False, separators=(',', ':'))}" for call in calls]
    texts += [observation.text for observation in seen]
    return all(
        (
            wanted.q.lower() in "\n".join(texts).lower(),
            wanted.task in (None, one.task_id),
            wanted.tool is None or any(call.name == wanted.tool for call in calls),
            wanted.stop in (None, one.stop.value),
            wanted.outcome is None or (wanted.outcome == "solved") == succeeded(one.reward_parts),
            not wanted.fault or any(observation.fault is not None for observation in seen),
            wanted.step_from is None or one.step >= wanted.step_from,
            wanted.step_to is None or one.step <= wanted.step_to,
            wanted.reward_min is None or one.reward >= wanted.reward_min,
            wanted.reward_max is None or one.reward <= wanted.reward_max,
        )
    )
