"""Rows in SkyRL's format become tasks; requirements that a goal cannot check are named."""
# R31

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import TaskFileError
from mcprl.goals import AnyText, ExpectedCall, Goal
from mcprl.records import Difficulty
from mcprl.tasks import load_tasks, read_task_file

DATA = Path(__file__).parents[4] / "shared" / "data"
FILES = {"recorded-train.json": 94, "recorded-validation.json": 28, "processed-train.json": 10}


def row(question: str = "What does AAPL trade at?", **fields: object) -> dict:
    prompt = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "I look."},
        {"role": "user", "content": "Thanks!"},
    ]
    spec = {"method": "rule", "ground_truth": {"success_criteria": {"expected_tools": ["fmp_get_quote"]}}}
    return {"prompt": prompt, "env_class": "tools", "reward_spec": spec} | fields


@pytest.fixture
def read(tmp_path):
    def from_file(*rows: object, as_lines: bool = False):
        path = tmp_path / ("rows.jsonl" if as_lines else "rows.json")
        path.write_text("\n".join(map(json.dumps, rows)) if as_lines else json.dumps(rows, indent=1))
        return read_task_file(path)

    return from_file


@pytest.mark.parametrize("name", FILES)
def test_every_row_of_the_users_files_is_a_task(name):
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    tasks = load_tasks(DATA / name)
    rows = json.loads((DATA / name).read_text(encoding="utf-8"))
    assert len(tasks) == len(rows) == len({task.id for task in tasks}) == FILES[name]
    for task, raw in zip(tasks, rows, strict=True):
        metadata = raw.get("task_metadata") or raw["extra_info"]
        truth = raw["reward_spec"]["ground_truth"]
        # No id repeats within one of these files, so none needs a suffix.
        assert task.id == metadata["task_id"]
        assert task.difficulty == metadata["complexity"]
        assert [message["role"] for message in task.prompt] == ["user"]
        assert task.prompt[0]["content"] == raw["prompt"][0]["content"]
        named = [call.tool for call in task.goal.calls]
        assert named == truth.get("tool_sequence", truth["success_criteria"]["expected_tools"])
        assert task.goal.in_any_order == ("tool_sequence" not in truth)
        assert task.goal.min_calls == truth["success_criteria"].get("min_tool_calls", 0)
        assert task.goal.answer == AnyText()
        assert task.tools == (tuple(raw["extra_info"]["tools_available"]) if "task_metadata" in raw else None)


def test_a_row_has_the_goal_that_its_ground_truth_says(read):
    criteria = {"expected_tools": ["a", "b"], "must_use_tools": ["c", "a"], "min_tool_calls": 3}
    spec = {"method": "rule", "ground_truth": {"expected_tools": ["b"], "success_criteria": criteria}}
    (entry,) = read(row(reward_spec=spec)).entries
    calls = tuple(ExpectedCall(tool=name) for name in "bac")
    assert entry.task.goal == Goal(answer=AnyText(), calls=calls, in_any_order=True, min_calls=3)
    assert entry.not_checked == ()


def test_a_sequence_of_tools_is_expected_in_its_order_and_what_it_lacks_is_not_checked(read):
    truth = {"tool_sequence": ["a", "b", "a"], "expected_tools": ["b", "z"]}
    (entry,) = read(row(reward_spec={"method": "rule", "ground_truth": truth})).entries
    calls = tuple(ExpectedCall(tool=name) for name in "aba")
    assert entry.task.goal == Goal(answer=AnyText(), calls=calls, in_any_order=False)
    assert entry.not_checked == ("reward_spec.ground_truth.expected_tools: z, which is not in tool_sequence",)


def test_the_prompt_ends_before_the_first_assistant_message(read):
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "tool", "content": "…"},
    ]
    (task,) = read(row(prompt=prompt)).tasks
    assert task.prompt == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere"})


def test_rows_may_be_one_per_line_with_metadata_in_any_of_its_places(read):
    rows = [
        row("a?", task_metadata={"task_id": "a1", "complexity": "Hard"}),
        row("b?", extra_info={"task_id": 7, "complexity": "easy", "tools_available": ["x", "y", "x"]}),
        row("c?", extra_info={"task_metadata": {"task_id": "c3"}}, task_metadata=None),
    ]
    tasks = read(*rows, as_lines=True).tasks
    assert [task.id for task in tasks] == ["a1", "7", "c3"]
    assert [task.difficulty for task in tasks] == [Difficulty.HARD, Difficulty.EASY, Difficulty.MEDIUM]
    assert [task.tools for task in tasks] == [None, ("x", "y"), None]


def test_a_row_without_an_id_gets_one_from_its_question(read):
    here, there = read(row("a?"), row("b?")).tasks
    again = read(row("c?"), row("b?", env_class="other"), row("a?")).tasks
    assert [task.id for task in again[1:]] == [there.id, here.id]


@given(order=st.permutations(range(4)))
def test_rows_that_share_an_id_get_ids_by_content_and_not_by_order(tmp_path_factory, order):
    metadata = {"task_id": "d03"}
    rows = [row(f"{n}?", task_metadata=metadata) for n in range(3)] + [row("x?", task_metadata={"task_id": "e01"})]
    path = tmp_path_factory.mktemp("rows") / "rows.json"

    def ids(places: object) -> dict[str, str]:
        path.write_text(json.dumps([rows[place] for place in places]))
        return {task.prompt[0]["content"]: task.id for task in load_tasks(path)}

    straight = ids(range(4))
    assert len(set(straight.values())) == 4
    assert straight["x?"] == "e01"
    assert all(straight[f"{n}?"].startswith("d03-") for n in range(3))
    assert ids(order) == straight


def test_copies_of_one_row_stay_tasks_of_their_own(read):
    tasks = read(*[row(task_metadata={"task_id": "d03"})] * 3).tasks
    assert len({task.id for task in tasks}) == 3
    assert tasks[1].id == f"{tasks[0].id}-2"


@pytest.mark.parametrize(
    ("spec", "not_checked"),
    [
        ({"method": "model", "ground_truth": {}}, ["reward_spec.method: model"]),
        ({"method": "rule", "ground_truth": {"success_criteria": {"threshold": 60}}}, ["….success_criteria.threshold"]),
        ({"ground_truth": {"final_state": {"done": True}, "expected_outcome": None, "rules": []}}, ["….final_state"]),
        ({"ground_truth": {}, "weight": 2}, ["reward_spec.weight"]),
        ({"ground_truth": "72"}, ["reward_spec.ground_truth"]),
        ({}, ["reward_spec.ground_truth is missing"]),
        (None, ["reward_spec.ground_truth is missing"]),
        ({"ground_truth": {"success_criteria": {"error_recovery_demonstrated": False}}}, []),
    ],
)
def test_what_no_goal_can_check_is_named_and_what_asks_for_nothing_is_not(read, spec, not_checked):
    (entry,) = read(row(reward_spec=spec)).entries
    assert entry.task.goal.answer == AnyText()
    assert [what.replace("reward_spec.ground_truth.", "….") for what in entry.not_checked] == not_checked


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": 3}, "prompt: it is neither a string nor a list of messages"),
        ({"prompt": []}, "prompt: there is no user message"),
        ({"prompt": [{"role": "assistant", "content": "Hi"}]}, "prompt: there is no user message"),
        ({"prompt": [{"role": "tool", "content": "Hi"}]}, "prompt: message 1 has role 'tool'"),
        (
            {"task_metadata": {"complexity": "expert"}},
            "task_metadata.complexity: 'expert' is not one of easy, medium, hard",
        ),
        ({"extra_info": {"tools_available": "all"}}, "extra_info.tools_available: "),
        (
            {"reward_spec": {"ground_truth": {"success_criteria": {"min_tool_calls": "many"}}}},
            "reward_spec.ground_truth.success_criteria.min_tool_calls: ",
        ),
        ({"reward_spec": {"ground_truth": {"tool_sequence": [3]}}}, "reward_spec.ground_truth.tool_sequence.0: "),
    ],
)
def test_a_wrong_row_is_refused_with_its_number_and_the_field(read, fields, words):
    with pytest.raises(TaskFileError) as caught:
        read(row(), row(**fields))
    assert f"rows.json: row 2: {words}" in caught.value.what
