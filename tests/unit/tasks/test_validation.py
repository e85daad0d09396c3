"""Problems of a task file: unknown tools, unreachable goals, duplicates, leaks; and figures by tool."""
# R25

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mcprl.goals import AnyText, Contains, ExpectedCall, ExpectedState, Goal, HasAll, HasNumber, Matches
from mcprl.records import Difficulty, Solution, Task, ToolCall
from mcprl.tasks import read_task_file
from mcprl.tasks.files import Row, TaskEntry, TaskFile
from mcprl.tasks.validation import ProblemKind, normalised_question, validate
from shipped_tools import SHIPPED_TOOLS

DATA = Path(__file__).parents[4] / "shared" / "data"


def task(task_id: str = "a", question: str | None = None, **fields: object) -> Task:
    prompt = ({"role": "user", "content": question or f"{task_id}?"},)
    return Task(id=task_id, prompt=prompt, **({"goal": Goal(answer=AnyText())} | fields))


def file_of(*tasks: Task, name: str = "tasks.jsonl") -> TaskFile:
    path = Path(name)
    rows = [Row(file=path, number=number, value={}) for number in range(1, len(tasks) + 1)]
    return TaskFile(path=path, entries=tuple(TaskEntry(task=t, row=r) for t, r in zip(tasks, rows, strict=True)))


def problems(*tasks: Task, kind: ProblemKind, against: tuple[TaskFile, ...] = ()) -> list[tuple[str, str]]:
    report = validate(file_of(*tasks), SHIPPED_TOOLS, against=against)
    assert report.fine == (not report.problems)
    return [(problem.row, problem.text) for problem in report.problems if problem.kind is kind]


def needs(*tools: str, **fields: object) -> Goal:
    return Goal(calls=tuple(ExpectedCall(tool=name) for name in tools), **fields)


def test_a_tool_that_no_server_lists_is_found_wherever_a_task_names_it():
    wrong = task(
        tools=("tavily_filter", "tavily_search"),
        goal=needs("fmp_get_qoute", state=(ExpectedState(tool="get_slack_history", texts=(AnyText(),)),)),
        solution=Solution(calls=(ToolCall(name="weather", arguments={}),), answer="x"),
    )
    found = [text for _, text in problems(wrong, kind=ProblemKind.UNKNOWN_TOOL)]
    assert found == [
        "offers 'tavily_filter', which no server lists (did you mean 'tavily_search'?)",
        "needs 'fmp_get_qoute', which no server lists (did you mean 'fmp_get_quote'?)",
        "checks its state with 'get_slack_history', which no server lists (did you mean 'get_slack_channel_history'?)",
        "is solved with 'weather', which no server lists",
    ]


def unreachable(**fields: object) -> list[str]:
    return [text for _, text in problems(task(**fields), kind=ProblemKind.UNREACHABLE)]


def test_a_needed_tool_that_is_not_on_offer_is_unreachable():
    assert unreachable(tools=("tavily_search",), goal=needs("fmp_get_quote")) == [
        "it needs fmp_get_quote, which is not one of the task's tools"
    ]
    assert unreachable(tools=("fmp_get_quote",), goal=needs("fmp_get_quote")) == []
    assert unreachable(goal=needs("fmp_get_quote")) == []


def test_an_expected_argument_that_the_tool_does_not_have_is_unreachable_and_one_left_out_is_free():
    call = ExpectedCall(tool="fmp_get_quote", arguments={"ticker": "VLKN"})
    assert unreachable(goal=Goal(calls=(call,))) == ["it needs fmp_get_quote, which has no argument 'ticker'"]


def test_a_solution_that_could_not_be_played_is_unreachable():
    calls = (ToolCall(name="fmp_get_quote", arguments={}), ToolCall(name="tavily_search", arguments={"query": "x"}))
    assert unreachable(tools=("fmp_get_quote",), solution=Solution(calls=calls, answer="x")) == [
        "its solution needs fmp_get_quote, which is called without 'symbol'",
        "its solution needs tavily_search, which is not one of the task's tools",
    ]


@pytest.mark.parametrize(
    ("difficulty", "max_turns", "calls", "reachable"),
    [
        ("easy", None, 4, True),
        ("easy", None, 5, False),
        ("hard", None, 9, True),
        ("hard", 4, 4, False),
        ("easy", 6, 5, True),
    ],
)
def test_a_solution_with_more_calls_than_turns_cannot_be_played(difficulty, max_turns, calls, reachable):
    limits = {"difficulty": Difficulty(difficulty), "max_turns": max_turns}
    made = (ToolCall(name="polygon_get_market_status", arguments={}),) * calls
    assert bool(unreachable(solution=Solution(calls=made, answer="x"), **limits)) == (not reachable)


def test_a_turn_may_have_several_calls_and_the_answer_is_a_turn_of_its_own():
    calls = needs(*["polygon_get_market_status"] * 6)
    both = "it needs one turn for calls and one for the answer, but its limit is 1 turn"
    assert unreachable(goal=calls, max_turns=1) == []
    assert unreachable(goal=replace(calls, answer=AnyText()), max_turns=2) == []
    assert unreachable(goal=replace(calls, answer=AnyText()), max_turns=1) == [both]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (Matches(pattern="(a"), "is not a usable regular expression"),
        (Matches(pattern="a"), None),
        (HasNumber(value=1 / 3), "even the rounded value"),
        (HasNumber(value=1 / 3, tolerance=0.005), None),
        (HasNumber(value=213.88), None),
        (HasNumber(value=391_035_000_000), None),
        (HasNumber(value=0.0000123456, tolerance=1e-12), None),
        (HasNumber(value=1234.56789, tolerance=1e-6), "even the rounded value"),
        (HasAll(members=("VLKN",), none_of=("vlkn",)), "is required both to contain and not to contain 'VLKN'"),
        (HasAll(members=("VLKN",), none_of=("ORBT",)), None),
    ],
)
def test_a_text_that_nothing_can_meet_is_unreachable_in_an_answer_and_in_a_state(text, words):
    state = ExpectedState(tool="list_slack_channels", texts=(Contains(text="x"), text))
    found = unreachable(goal=Goal(answer=text, state=(state,)))
    assert len(found) == (0 if words is None else 2)
    assert all(words in sentence for sentence in found)


def test_a_state_that_its_tool_cannot_be_asked_for_is_unreachable():
    state = ExpectedState(tool="get_slack_channel_history", arguments={"channel": "C1"}, texts=(AnyText(),))
    assert unreachable(goal=Goal(state=(state,))) == [
        "its state is checked with get_slack_channel_history, which has no argument 'channel'",
        "its state is checked with get_slack_channel_history, which is called without 'channel_id'",
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("List the last five messages in #trading‑desk.", "list the  last five messages in #trading-desk", True),
        ("What's AAPL at?", "What’s AAPL at", True),
        ("Is AAPL at 5?", "Is AAPL at 6?", False),
        ("Did it gain 5%?", "Did it gain 5?", False),
        ("Is it −5?", "Is it 5?", False),
    ],
)
def test_questions_are_compared_without_case_spacing_and_typography(one, other, same):
    assert (normalised_question(task(question=one)) == normalised_question(task(question=other))) is same


def test_a_duplicate_question_is_found_with_the_row_of_the_first():
    assert problems(task("a", "Hi?"), task("b"), task("c", "Hey?"), kind=ProblemKind.DUPLICATE) == []
    assert problems(task("a", "Hi?"), task("b"), task("c", "HI"), kind=ProblemKind.DUPLICATE) == [
        ("line 3", "asks the same question as a (line 1)")
    ]


def test_a_task_that_another_file_has_too_leaks_by_its_question_or_its_solution_and_not_by_its_id():
    def solved(answer: str) -> dict:
        return {"goal": Goal(answer=Contains(text=answer)), "solution": Solution(calls=(), answer=answer)}

    other = file_of(task("x", "Same?"), task("y", **solved("3")), task("z"), task("w"), name="validation.jsonl")
    mine = [task("a", "same"), task("b", **solved("3")), task("c", **solved("4")), task("z", "Another?"), task("d")]
    assert problems(*mine, kind=ProblemKind.LEAK, against=(other,)) == [
        ("line 1", "asks the same question as x (validation.jsonl, line 1)"),
        ("line 2", "has the same goal and solution as y (validation.jsonl, line 2)"),
    ]


def test_figures_say_how_often_a_tool_is_offered_needed_and_recorded(tmp_path):
    call = '<tool_call>{"name": "fmp_get_quote", "arguments": {"ticker": "A"}}</tool_call>'
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": call}],
            "env_class": "e",
            "extra_info": {"tools_available": ["fmp_get_quote"], "complexity": "easy"},
            "reward_spec": {"ground_truth": {"expected_tools": ["fmp_get_quote", "gone"][: n + 1]}},
        }
        for n in range(2)
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    report = validate(read_task_file(path), SHIPPED_TOOLS)
    figures = {row.tool: (row.server, row.offered, row.needed, row.recorded, row.drifted) for row in report.by_tool}
    assert figures["fmp_get_quote"] == ("fmp", 2, 2, 2, 2)
    assert figures["gone"] == ("", 0, 1, 0, 0)
    assert figures["tavily_search"] == ("tavily", 0, 0, 0, 0)
    (easy,) = report.by_difficulty
    assert (easy.difficulty, easy.tasks, easy.needed_calls, easy.solved) == ("easy", 2, 1.5, 0)


def test_requirements_that_are_not_checked_are_counted_but_are_not_problems(tmp_path):
    rows = [
        {
            "prompt": f"{n}?",
            "env_class": "e",
            "reward_spec": {"ground_truth": {"success_criteria": {"reasoning_quality_threshold": 60}}},
        }
        for n in range(3)
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    report = validate(read_task_file(path), SHIPPED_TOOLS)
    assert report.fine
    assert report.not_checked == {"reward_spec.ground_truth.success_criteria.reasoning_quality_threshold": 3}


def test_the_report_is_json_with_the_aliases(tmp_path):
    call = '<tool_call>{"name": "fmp_get_quote", "arguments": {"ticker": "A"}}</tool_call>'
    row = {"prompt": [{"role": "user", "content": "?"}, {"role": "assistant", "content": call}], "env_class": "e"}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    document = json.loads(json.dumps(validate(read_task_file(path), SHIPPED_TOOLS).to_json()))
    assert document["fine"] is False
    assert document["drift"][0]["row"] == "line 1"
    assert document["aliases"] == {"fmp": {"argument_aliases": {"ticker": "symbol"}}}


def test_all_ten_questions_of_the_users_processed_file_are_also_in_the_validation_file():
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    read = {
        name: read_task_file(DATA / f"{name}.json")
        for name in ("processed-train", "recorded-validation", "recorded-train")
    }
    leaked = validate(read["processed-train"], SHIPPED_TOOLS, against=[read["recorded-validation"]]).problems
    asked = [json.loads((DATA / f"{name}.json").read_text()) for name in ("processed-train", "recorded-validation")]
    train, held_out = ([row["prompt"][0]["content"] for row in rows] for rows in asked)
    assert sum(question in held_out for question in train) == 10
    assert sum(problem.text.startswith("asks the same question as") for problem in leaked) == 10
    # The two recorded files share no question, but 26 ids.
    shared = validate(read["recorded-train"], SHIPPED_TOOLS, against=[read["recorded-validation"]]).problems
    leaked = [problem.text for problem in shared if problem.kind is ProblemKind.LEAK]
    assert leaked == []


def test_no_task_of_the_users_files_is_said_to_be_unsolvable():
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    for path in sorted(DATA.glob("*.json")):
        assert validate(read_task_file(path), SHIPPED_TOOLS).problems == (), path.name
