"""Task files and preambles: what a line may say, and how a wrong one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import TaskFileError
from mcprl.records import Difficulty, ExpectedCall, Goal, Task
from mcprl.tasks import load_preamble, load_tasks

GOOD = '{"id": "a", "prompt": "Hi"}'


@pytest.fixture
def write(tmp_path):
    def to_file(text: str | bytes) -> Path:
        path = tmp_path / "tasks.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


def refusal(path: Path) -> TaskFileError:
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    return caught.value


def test_a_line_with_all_fields_becomes_a_task(write):
    line = {
        "id": "meet-ana",
        "prompt": "What time is it?",
        "answer": "23:30",
        "calls": [{"tool": "find_person", "arguments": {"name": "Ana"}}, {"tool": "get_current_time"}],
        "tools": ["find_person"],
        "difficulty": "hard",
        "max_turns": 3,
    }
    (task,) = load_tasks(write(json.dumps(line)))
    calls = (ExpectedCall(tool="find_person", arguments={"name": "Ana"}), ExpectedCall(tool="get_current_time"))
    assert task == Task(
        id="meet-ana",
        prompt=({"role": "user", "content": "What time is it?"},),
        goal=Goal(answer="23:30", calls=calls),
        tools=("find_person",),
        difficulty=Difficulty.HARD,
        max_turns=3,
    )


def test_what_is_left_out_has_its_default(write):
    (task,) = load_tasks(write(GOOD))
    assert (task.goal, task.tools, task.difficulty, task.max_turns) == (Goal(), None, Difficulty.MEDIUM, None)


def test_no_tools_and_every_tool_are_told_apart(write):
    (task,) = load_tasks(write('{"id": "a", "prompt": "Hi", "tools": []}'))
    assert task.tools == ()


def test_a_prompt_may_be_a_list_of_messages(write):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (task,) = load_tasks(write(json.dumps({"id": "a", "prompt": messages})))
    assert task.prompt == tuple(messages)


def test_tasks_come_in_the_order_of_the_file_and_empty_lines_are_skipped(write):
    path = write('{"id": "b", "prompt": "x"}\n\n  \r\n{"id": "a", "prompt": "y"}\r\n')
    assert [task.id for task in load_tasks(path)] == ["b", "a"]


@given(prompt=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_prompt_survives_the_file_also_where_it_holds_odd_line_separators(tmp_path_factory, prompt):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    lines = [json.dumps({"id": name, "prompt": prompt}, ensure_ascii=False) for name in "ab"]
    path.write_bytes("\n".join(lines).encode())
    assert [task.prompt[0]["content"] for task in load_tasks(path)] == [prompt, prompt]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"id": "b" "prompt": "x"}', "not JSON"),
        ("3", ":3: Input should be a valid dictionary"),
        ('{"prompt": "x"}', "id: Field required"),
        ('{"id": "", "prompt": "x"}', "id: "),
        ('{"id": "b"}', "prompt: Field required"),
        ('{"id": "b", "prompt": 3}', "prompt: "),
        ('{"id": "b", "prompt": []}', "prompt: "),
        ('{"id": "b", "prompt": "x", "anwser": "y"}', "anwser: Extra inputs are not permitted"),
        ('{"id": "b", "prompt": "x", "answer": 3}', "answer: "),
        ('{"id": "b", "prompt": "x", "difficulty": "trivial"}', "difficulty: "),
        ('{"id": "b", "prompt": "x", "max_turns": 0}', "max_turns: "),
        ('{"id": "b", "prompt": "x", "tools": "find_person"}', "tools: "),
        ('{"id": "b", "prompt": "x", "calls": [{"tool": "a"}, {"arguments": {}}]}', "calls.1.tool: Field required"),
        ('{"id": "b", "prompt": "x", "calls": [{"tool": "a", "args": {}}]}', "calls.0.args: Extra inputs"),
        ('{"id": "b", "prompt": [{"role": "user", "content": "x", "nmae": "y"}]}', "prompt.0.nmae: Extra inputs"),
        ('{"id": "b", "prompt": [{"role": "user"}]}', "prompt.0.content: Field required"),
        ('{"id": "b", "prompt": ' + "[" * 100_000, "too deeply nested"),
        ('{"id": "b", "prompt": ' + "9" * 5000 + "}", "a number too long"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_the_field(write, line, words):
    path = write(f"{GOOD}\n\n{line}\n")
    error = refusal(path)
    assert error.what.startswith(f"{path}:3: ")
    assert words in error.what


def test_an_id_used_twice_is_refused_at_the_second_line(write):
    path = write(f"{GOOD}\n{GOOD}\n")
    assert refusal(path).what == f"{path}:2: a second task has the id 'a'"


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_tasks_is_refused(write, text):
    assert "holds no task" in refusal(write(text)).what


def test_a_file_that_cannot_be_read_is_refused_by_name(write, tmp_path):
    assert "No such file" in refusal(tmp_path / "nothing.jsonl").what
    assert "no UTF-8 text" in refusal(write(b"\xff\xfe")).what


def test_no_preamble_is_no_messages():
    assert load_preamble(None) == ()


def test_a_preamble_is_a_list_of_messages_with_calls_and_results(write):
    messages = [
        {"role": "system", "content": "Use the tools."},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "1", "name": "f"},
    ]
    assert load_preamble(write(json.dumps(messages))) == tuple(messages)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "valid array"),
        ("[", "Invalid JSON"),
        ('[{"role": "user"}]', "0.content: Field required"),
        ('[{"role": "user", "content": "x", "nmae": "y"}]', "0.nmae: Extra inputs"),
    ],
)
def test_a_wrong_preamble_is_refused_with_the_file_and_the_field(write, text, words):
    path = write(text)
    with pytest.raises(TaskFileError) as caught:
        load_preamble(path)
    assert caught.value.what.startswith(f"{path}: ")
    assert words in caught.value.what
    assert ": : " not in caught.value.what
