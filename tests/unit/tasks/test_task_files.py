"""Task files and preambles: valid lines, refused lines, and writing tasks."""
# R25

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcprl.errors import TaskFileError
from mcprl.goals import (
    AnyText,
    Contains,
    Exactly,
    ExpectedCall,
    ExpectedCheck,
    ExpectedState,
    Goal,
    HasAll,
    HasDate,
    HasFields,
    HasNumber,
    Matches,
)
from mcprl.records import Difficulty, SimulatedUser, Solution, Task, ToolCall
from mcprl.tasks import load_preamble, load_tasks, write_tasks
from mcprl.tasks.formats import line_of, task_of, task_schema

ROOT = Path(__file__).parents[3]
SCHEMA = Draft202012Validator(task_schema())
GOOD = '{"id": "a", "prompt": "Hi", "answer": "y"}'


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
        "in_any_order": True,
        "min_calls": 2,
        "state": [{"tool": "history", "arguments": {"limit": 1}, "texts": ["23:30", {"number": 3, "at_most": None}]}],
        "rubric": "It is polite.",
        "tools": ["find_person"],
        "difficulty": "hard",
        "max_turns": 3,
        "world": "market-7",
        "solution": {"calls": [{"name": "find_person", "arguments": {"name": "Ana"}}], "answer": "At 23:30."},
    }
    (task,) = load_tasks(write(json.dumps(line)))
    calls = (ExpectedCall(tool="find_person", arguments={"name": "Ana"}), ExpectedCall(tool="get_current_time"))
    assert task == Task(
        id="meet-ana",
        prompt=({"role": "user", "content": "What time is it?"},),
        goal=Goal(
            answer=Contains(text="23:30"),
            calls=calls,
            in_any_order=True,
            min_calls=2,
            state=(
                ExpectedState(
                    tool="history",
                    arguments={"limit": 1},
                    texts=(Contains(text="23:30"), HasNumber(value=3, at_most=None)),
                ),
            ),
            rubric="It is polite.",
        ),
        tools=("find_person",),
        difficulty=Difficulty.HARD,
        max_turns=3,
        world="market-7",
        solution=Solution(calls=(ToolCall(name="find_person", arguments={"name": "Ana"}),), answer="At 23:30."),
    )


@pytest.mark.parametrize(
    ("answer", "goal"),
    [
        ("23:30", Contains(text="23:30")),
        ({"any": True}, AnyText()),
        ({"contains": "Ana"}, Contains(text="Ana")),
        ({"exactly": "yes"}, Exactly(text="yes")),
        ({"number": 213.88}, HasNumber(value=213.88, tolerance=0.0, at_most=4)),
        ({"number": 3, "tolerance": 0.5, "at_most": 1}, HasNumber(value=3.0, tolerance=0.5, at_most=1)),
        ({"all": ["VLKN", "ORBT"]}, HasAll(members=("VLKN", "ORBT"))),
        ({"all": ["VLKN"], "none_of": ["HALE"]}, HasAll(members=("VLKN",), none_of=("HALE",))),
        ({"matches": "^[A-Z]{4}$"}, Matches(pattern="^[A-Z]{4}$")),
        ({"number": 5, "unit": "km"}, HasNumber(value=5.0, unit="km")),
        ({"date": "2025-11-14", "tolerance_days": 1}, HasDate(date="2025-11-14", tolerance_days=1)),
        (
            {"fields": {"a.b": "x", "c": {"number": 3}}},
            HasFields(fields={"a.b": Contains(text="x"), "c": HasNumber(value=3.0)}),
        ),
    ],
)
def test_each_shape_of_an_answer_is_its_goal_also_in_the_texts_of_a_state(write, answer, goal):
    line = {"id": "a", "prompt": "Hi", "answer": answer, "state": [{"tool": "t", "texts": [answer]}]}
    (task,) = load_tasks(write(json.dumps(line)))
    assert task.goal == Goal(answer=goal, state=(ExpectedState(tool="t", texts=(goal,)),))


@pytest.mark.parametrize("check", ["checks.py:closed", {"function": "checks.py:closed", "probes": ["tickets"]}])
def test_the_file_of_a_check_is_relative_to_the_task_file_and_calls_may_come_in_sets(write, check, tmp_path):
    calls = [{"tool": "a"}, [{"tool": "b"}, {"tool": "c"}]]
    path = write(json.dumps({"id": "a", "prompt": "Hi", "check": check, "calls": calls}))
    (task,) = load_tasks(path)
    probes = () if isinstance(check, str) else ("tickets",)
    assert task.goal.check == ExpectedCheck(function=f"{tmp_path}/checks.py:closed", probes=probes)
    assert [call.tool for call in task.goal.calls] == ["a", "b", "c"]
    assert task.goal.call_sets == (1, 2)
    write_tasks([task], path)
    assert load_tasks(path) == (task,)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"answer": {"date": "2025-02-30"}}, "answer.date: there is no such day"),
        ({"answer": {"number": 5, "unit": "kn"}}, "answer.unit: Input should be 'mm', "),
        ({"check": "checks.py"}, "check.function: String should match pattern"),
        ({"calls": [[{"tool": "a"}]]}, "calls.0: List should have at least 2 items"),
        ({"calls": [[{"tool": "a"}, {"tool": "b"}]], "in_any_order": True}, "remove it, or the nested lists in calls"),
    ],
)
def test_a_check_that_cannot_be_met_is_refused_with_its_field(write, wrong, said):
    assert said in refusal(write(json.dumps({"id": "a", "prompt": "Hi"} | wrong))).what


def test_what_is_left_out_has_its_default(write):
    (task,) = load_tasks(write(GOOD))
    assert task == Task(
        id="a",
        prompt=({"role": "user", "content": "Hi"},),
        goal=Goal(answer=Contains(text="y")),
        tools=None,
        difficulty=Difficulty.MEDIUM,
        max_turns=None,
    )


def test_no_tools_and_every_tool_are_told_apart(write):
    (task,) = load_tasks(write('{"id": "a", "prompt": "Hi", "answer": "y", "tools": []}'))
    assert task.tools == ()


def test_a_prompt_may_be_a_list_of_messages(write):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (task,) = load_tasks(write(json.dumps({"id": "a", "prompt": messages, "answer": "y"})))
    assert task.prompt == tuple(messages)


def test_tasks_come_in_the_order_of_the_file_and_empty_lines_are_skipped(write):
    path = write('{"id": "b", "prompt": "x", "answer": "y"}\n\n  \r\n{"id": "a", "prompt": "y", "answer": "y"}\r\n')
    assert [task.id for task in load_tasks(path)] == ["b", "a"]


@given(prompt=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_prompt_survives_the_file_even_with_odd_line_separators(tmp_path_factory, prompt):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    lines = [json.dumps({"id": name, "prompt": prompt, "answer": "y"}, ensure_ascii=False) for name in "ab"]
    path.write_bytes("\n".join(lines).encode())
    assert [task.prompt[0]["content"] for task in load_tasks(path)] == [prompt, prompt]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"id": "b" "prompt": "x"}', "not JSON"),
        ("3", ":3: 3 is not an object"),
        ('{"prompt": "x"}', "id: this field is missing"),
        ('{"id": "", "prompt": "x"}', "id: "),
        ('{"id": "b"}', "prompt: this field is missing"),
        ('{"id": "b", "prompt": 3}', "prompt: "),
        ('{"id": "b", "prompt": []}', "prompt: "),
        (
            '{"id": "b", "prompt": "x", "anwser": "y"}',
            "anwser: unknown field (did you mean 'answer'?)",
        ),
        ('{"id": "b", "prompt": "x", "answer": 3}', "answer: "),
        ('{"id": "b", "prompt": "x", "difficulty": "trivial"}', "difficulty: "),
        ('{"id": "b", "prompt": "x", "max_turns": "three"}', "max_turns: 'three' is not a whole number"),
        ('{"id": "b", "prompt": "x", "tools": "find_person"}', "tools: 'find_person' is not a list"),
        (
            '{"id": "b", "prompt": "x", "calls": [{"tool": "a"}, {"arguments": {}}]}',
            "calls.1.tool: this field is missing",
        ),
        (
            '{"id": "b", "prompt": "x", "calls": [{"tool": "a", "args": {}}]}',
            "calls.0.args: unknown field (did you mean 'arguments'?)",
        ),
        (
            '{"id": "b", "prompt": [{"role": "user", "content": "x", "nmae": "y"}]}',
            "prompt.0.nmae: unknown field (did you mean 'name'?)",
        ),
        ('{"id": "b", "prompt": [{"role": "user"}]}', "prompt.0.content: this field is missing"),
        ('{"id": "b", "prompt": "x"}', "the task checks nothing"),
        ('{"id": "b", "prompt": "x", "in_any_order": true}', "the task checks nothing"),
        ('{"id": "b", "id": "c", "prompt": "x", "answer": "y"}', "the key 'id' appears twice in one object"),
        ('{"id": "b", "prompt": "x", "calls": [{"tool": "t", "tool": "u"}]}', "the key 'tool' appears twice"),
        ('{"id": "b", "prompt": "x", "answer": ""}', "answer: "),
        ('{"id": "b", "prompt": "x", "answer": {}}', "answer: write a string, or an object with one of the keys any,"),
        ('{"id": "b", "prompt": "x", "answer": {"any": false}}', "answer.any: "),
        ('{"id": "b", "prompt": "x", "answer": {"number": "3"}}', "answer.number: "),
        ('{"id": "b", "prompt": "x", "answer": {"number": NaN}}', "NaN is not JSON"),
        ('{"id": "b", "prompt": "x", "answer": {"number": 3, "tolerance": -1}}', "answer.tolerance: "),
        (
            '{"id": "b", "prompt": "x", "answer": {"number": 3, "contains": "x"}}',
            "contains: unknown field",
        ),
        ('{"id": "b", "prompt": "x", "answer": {"all": []}}', "answer.all: "),
        (
            '{"id": "b", "prompt": "x", "answer": {"matches": "(a"}}',
            "is not a usable regular expression",
        ),
        ('{"id": "b", "prompt": "x", "state": [{"tool": "t", "texts": []}]}', "state.0.texts: "),
        ('{"id": "b", "prompt": "x", "state": [{"tool": "t", "texts": ["a", {"matches": "*"}]}]}', "texts.1.matches: "),
        ('{"id": "b", "prompt": "x", "answer": "y", "min_calls": "2"}', "min_calls: "),
        ('{"id": "b", "prompt": "x", "answer": "y", "in_any_order": 1}', "in_any_order: 1 is not true or false"),
        (
            '{"id": "b", "prompt": "x", "answer": "y", "solution": {"calls": []}}',
            "solution.answer: this field is missing",
        ),
        ('{"id": "b", "prompt": "x", "answer": "y"} {}', "not JSON (there is text after the value)"),
        ('{"id": "b", "prompt": "\\ud83d", "answer": "y"}', "a lone surrogate"),
        (
            '{"id": "b", "prompt": "x", "env_class": "e", "reward_spec": {}}',
            "the file mixes SkyRL rows and tasks in mcprl's own format",
        ),
        (
            '{"id": "b", "prompt": "x", "solution": {"awnser": ""}}',
            "awnser: unknown field (did",
        ),
        (
            '{"id": "b", "prompt": "x", "solution": {"calls": [{"tool": "t"}], "answer": ""}}',
            "solution.calls.0.tool: unknown field (it may have name, arguments)",
        ),
        ('{"id": "b", "prompt": "x", "answer": {"matches": "' + "a" * 5000 + '"}}', "more than 4096 characters"),
        ('{"id": "b", "prompt": ' + "[" * 101 + "]" * 101 + "}", "it is nested more than 100 levels deep"),
        ('{"id": "b", "prompt": ' + "[" * 100_000, "it is nested more than 100 levels deep"),
        ('{"id": "b", "prompt": ' + "9" * 5000 + "}", "a number has too many digits"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number_and_the_field(write, line, words):
    path = write(f"{GOOD}\n\n{line}\n")
    error = refusal(path)
    assert error.what.startswith(f"{path}:3: ")
    assert words in error.what


def test_the_first_five_wrong_lines_are_named_in_one_error(write):
    wrong = [json.dumps({"id": f"b{number}", "prompt": "x", "answer": {"numbr": 3}}) for number in range(7)]
    path = write("\n".join([GOOD, *wrong]))
    with pytest.raises(TaskFileError) as caught:
        load_tasks(path)
    named = [part.split(":")[1] for part in caught.value.what.split("; ")]
    assert named == ["2", "3", "4", "5", "6"]
    assert caught.value.fix == "correct these fields"


def test_an_id_used_twice_is_refused_at_the_second_line(write):
    path = write(f"{GOOD}\n{GOOD}\n")
    assert refusal(path).what == f"{path}:2: an earlier task has the id 'a'"


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_tasks_is_refused(write, text):
    assert "has no tasks" in refusal(write(text)).what


def test_a_file_that_cannot_be_read_is_refused_by_name(write, tmp_path):
    assert "No such file" in refusal(tmp_path / "nothing.jsonl").what
    assert "not UTF-8 text" in refusal(write(b"\xff\xfe")).what


def test_without_a_preamble_there_are_no_messages():
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
        ("{}", "{} is not a list"),
        ("[", "not JSON"),
        ('[{"role": "user", "role": "system", "content": "x"}]', "the key 'role' appears twice"),
        ('[{"role": "user"}]', "0.content: this field is missing"),
        ('[{"role": "user", "content": "x", "nmae": "y"}]', "0.nmae: unknown field"),
    ],
)
def test_a_wrong_preamble_is_refused_with_the_file_and_the_field(write, text, words):
    path = write(text)
    with pytest.raises(TaskFileError) as caught:
        load_preamble(path)
    assert caught.value.what.startswith(f"{path}: ")
    assert words in caught.value.what
    assert ": : " not in caught.value.what


def test_a_list_of_tasks_is_read_like_lines_and_an_error_names_its_row(write):
    assert [task.id for task in load_tasks(write(f"\n[{GOOD},\n{GOOD.replace('a', 'b', 1)}]\n"))] == ["a", "b"]
    path = write(f'[{GOOD}, {{"id": "b", "prompt": "x"}}]')
    assert refusal(path).what.startswith(f"{path}: row 2: the task checks nothing")


@pytest.mark.parametrize("text", [f"[{GOOD}", f"[{GOOD} {GOOD}]", f"[{GOOD},]", f"[{GOOD}] x", "[nonsense]"])
def test_a_broken_list_is_refused(write, text):
    assert "not JSON" in refusal(write(text)).what


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = texts.filter(lambda text: bool(text.strip()))
# JSON has no infinite numbers, and what its decoder reads back of a float is the same float.
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**15), 10**15)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
arguments = st.dictionaries(texts, json_values, max_size=2)
expected_texts = st.one_of(
    st.builds(AnyText),
    st.builds(Contains, text=words),
    st.builds(Exactly, text=words),
    st.builds(
        HasNumber,
        value=numbers.map(float),
        tolerance=st.floats(0, 1e6),
        at_most=st.none() | st.integers(1, 9),
    ),
    st.builds(
        HasAll,
        members=st.lists(words, min_size=1, max_size=3).map(tuple),
        none_of=st.lists(words, max_size=2).map(tuple),
    ),
    st.builds(Matches, pattern=st.sampled_from(["a", "^x+$", r"\\d{3}", "(?i)né", "\u2028"])),
)


def tuples(strategy, **sizes):
    return st.lists(strategy, **({"max_size": 2} | sizes)).map(tuple)


goals = st.builds(
    Goal,
    answer=expected_texts | st.none(),
    calls=tuples(st.builds(ExpectedCall, tool=words, arguments=arguments)),
    in_any_order=st.booleans(),
    min_calls=st.integers(0, 5),
    state=tuples(st.builds(ExpectedState, tool=words, arguments=arguments, texts=tuples(expected_texts, min_size=1))),
    rubric=words | st.none(),
).filter(lambda goal: goal.answer or goal.calls or goal.min_calls or goal.state or goal.rubric)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts},
    optional={"name": texts, "tool_calls": st.lists(arguments, max_size=2)},
)
tasks = st.builds(
    Task,
    id=texts.filter(bool),
    prompt=tuples(messages, min_size=1),
    goal=goals,
    tools=st.none() | tuples(texts),
    difficulty=st.sampled_from(Difficulty),
    max_turns=st.none() | st.integers(1, 20),
    world=st.none() | words,
    solution=st.none()
    | st.builds(
        Solution, calls=tuples(st.builds(ToolCall, name=words, arguments=arguments, problem=st.none())), answer=texts
    ),
)


# A task has many fields: drawing some is slow on a busy machine, which says nothing about the code.
@given(st.lists(tasks, min_size=1, max_size=3, unique_by=lambda task: task.id))
def test_what_is_written_is_read_back_the_same_and_fits_the_published_schema(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("written") / "tasks.jsonl"
    write_tasks(written, path)
    assert load_tasks(path) == tuple(written)
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert len(lines) == len(written)
    for line in lines:
        SCHEMA.validate(json.loads(line))


def test_a_conversation_is_read_and_written_back_the_same(write, tmp_path):
    solution = {"calls": [{"name": "convert", "arguments": {}}], "answer": "23:30"}
    follow_ups = ["Sure?", {"prompt": "And now?", "tools": ["convert"], "solution": solution}]
    line = json.loads(GOOD) | {"setup": [{"tool": "reset", "arguments": {"to": 7}}], "follow_ups": follow_ups}
    line["solution"] = {"calls": [], "answer": "Lima"}
    (task,) = load_tasks(write(json.dumps(line)))
    assert task.setup == (ToolCall(name="reset", arguments={"to": 7}),)
    assert [follow_up.messages[0]["content"] for follow_up in task.follow_ups] == ["Sure?", "And now?"]
    assert task.follow_ups[1].tools == ("convert",)
    assert [part.answer for part in task.solutions] == ["Lima", "Lima", "23:30"]
    assert task_of(line_of(task)) == task
    assert line_of(task)["follow_ups"] == follow_ups
    by_function, by_model = "users.py:f", {"instructions": "Ask for Ana.", "max_messages": 2}
    (first,) = load_tasks(write(json.dumps(json.loads(GOOD) | {"user": by_function})))
    (second,) = load_tasks(write(json.dumps(json.loads(GOOD) | {"user": by_model})))
    assert first.user == SimulatedUser(function=f"{tmp_path}/users.py:f")
    assert second.user == SimulatedUser(instructions="Ask for Ana.", max_messages=2)
    assert all(task_of(line_of(task)) == task for task in (first, second))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"user": {"function": "users.py:f", "instructions": "x"}}, "either a function or instructions"),
        ({"user": {}}, "either a function or instructions"),
        ({"user": "users.py:f", "follow_ups": ["More?"]}, "from follow_ups or from user"),
        ({"follow_ups": [{"prompt": "x", "tool": ["y"]}]}, r"unknown field.*did you mean 'tools'"),
        ({"follow_ups": [{"prompt": "x", "solution": {"answer": "y"}}], "solution": None}, "own prompt has none"),
    ],
)
def test_a_conversation_that_is_wrong_is_refused_with_its_reason(write, wrong, said):
    with pytest.raises(TaskFileError, match=said):
        load_tasks(write(json.dumps(json.loads(GOOD) | wrong)))


def test_a_written_line_leaves_out_defaults():
    assert line_of(task_of(json.loads(GOOD))) == json.loads(GOOD)


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal(), "the task checks nothing"),
        (Goal(answer=Contains(text=" ")), "answer: "),
        (Goal(min_calls=-1), "min_calls: "),
    ],
)
def test_a_task_that_cannot_be_written_is_refused_and_the_file_stays_unchanged(tmp_path, goal, words):
    path = tmp_path / "tasks.jsonl"
    good = task_of(json.loads(GOOD))
    write_tasks([good], path)
    before = path.read_bytes()
    bad = Task(id="bad", prompt=({"role": "user", "content": "Hi"},), goal=goal)
    with pytest.raises(TaskFileError, match=f"task 'bad' cannot be written: {words}"):
        write_tasks([good, bad], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_duplicate_ids_and_empty_lists_are_not_written(tmp_path):
    good = task_of(json.loads(GOOD))
    with pytest.raises(TaskFileError, match="two of the tasks to be written have the id 'a'"):
        write_tasks([good, good], tmp_path / "tasks.jsonl")
    with pytest.raises(TaskFileError, match="the list of tasks to write"):
        write_tasks([], tmp_path / "tasks.jsonl")
    with pytest.raises(TaskFileError, match="No such file"):
        write_tasks([good], tmp_path / "nowhere" / "tasks.jsonl")


def test_the_published_schema_is_that_of_the_code():
    published = (ROOT / "docs" / "schemas" / "task.json").read_text(encoding="utf-8")
    fix = "run: mcprl tasks schema > docs/schemas/task.json"
    assert published == json.dumps(task_schema(), indent=2, ensure_ascii=False) + "\n", fix


@pytest.mark.parametrize(
    "field",
    [
        {"anwser": "y"},
        {"answer": ""},
        {"answer": {"any": False}},
        {"answer": {"number": "3"}},
        {"answer": {"all": []}},
        {"answer": {"number": 3, "contains": "x"}},
        {"state": [{"tool": "t", "texts": []}]},
        {"min_calls": -1},
        {"max_turns": 0},
        {"difficulty": "trivial"},
        {"prompt": []},
        {"prompt": [{"role": "user"}]},
        {"tools": "find_person"},
        {"solution": {"calls": []}},
    ],
)
def test_the_schema_and_the_loader_refuse_the_same_lines(write, field):
    line = json.loads(GOOD) | field
    assert not SCHEMA.is_valid(line)
    refusal(write(json.dumps(line)))
