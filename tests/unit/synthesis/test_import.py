"""Recorded conversations become tasks whose checks are proven, a cassette, demonstrations and a recipe."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import Contains, ExpectedCall, Goal, HasNumber, MeetsSome
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
from mcprl.tools import Cassette, ToolDefinition
from mcprl_synthesis import recorded
from mcprl_synthesis.derived_checks import CHEAP, REWARDS, Call, Conversation, Corpus, derive, reward
from mcprl_synthesis.recorded import ImportedProject, ImportedRow, import_project
from shipped_tools import SHIPPED_TOOLS

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "recorded" / "conversations.jsonl"
DATA = ROOT.parent / "shared" / "data"
LABELS = json.loads((Path(__file__).parent / "recorded_labels.json").read_text())
WRITES = {"send_slack_message", "execute_python", "process_mcp_data", "create_data_pipeline", "store_execution_result"}


@pytest.fixture(scope="session")
def shipped():
    """The tools of the shipped servers without starting them."""
    tools: dict[str, list[ToolDefinition]] = {}
    for tool in SHIPPED_TOOLS:
        listed = ToolDefinition(
            name=tool.name, description="", parameters=tool.parameters, read_only=tool.name not in WRITES
        )
        tools.setdefault(tool.server, []).append(listed)
    return {server: tuple(listed) for server, listed in tools.items()}


@pytest.fixture
def without_servers(monkeypatch, shipped):
    async def listed():
        return shipped

    monkeypatch.setattr(recorded, "_shipped_tools", listed)


def quote(symbol: str, text: str) -> Call:
    return Call(tool="get_quote", arguments={"symbol": symbol}, text=text, failed=False, writes=False)


def post(channel: str, message: str) -> Call:
    return Call(
        tool="post_message", arguments={"channel": channel, "message": message}, text="Sent.", failed=False, writes=True
    )


def conversation(question: str, calls: list[Call], answer: str | None, **known) -> Conversation:
    prompt = ({"role": "user", "content": question},)
    return Conversation(prompt=prompt, calls=tuple(calls), answer=answer, **({"defaults": {}} | known))


QUOTE = "**VLKN - Vulkan Inc.**\nPrice: $213.88\nChange: $1.20 (0.56%)\nVolume: 40,268,781\nP/E Ratio: 30.17"
ASKED = conversation(
    "What is the price of Vulkan? Post it to #general.",
    [quote("VLKN", QUOTE), post("general", "VLKN is at $213.88")],
    "VLKN trades at $213.88, and I posted it.",
)
OTHER = conversation(
    "What does ORBT cost?", [quote("ORBT", "**ORBT - Orbit**\nPrice: $7.31\nVolume: 5,112")], "It costs $7.31."
)
CORPUS = Corpus([ASKED, OTHER])


def test_checks_come_from_the_question_the_results_and_what_was_written():
    derived = derive(ASKED, CORPUS)
    assert derived.goal is not None
    assert derived.kinds == {"arguments": 2, "answer": 1, "state": 1}
    assert derived.goal.calls == (
        ExpectedCall(tool="get_quote", arguments={"symbol": "VLKN"}),
        ExpectedCall(tool="post_message", arguments={"channel": "general"}),
    )
    assert isinstance(derived.goal.answer, HasNumber)
    assert derived.goal.answer.value == 213.88
    (write,) = derived.goal.writes
    assert (write.arguments, list(write.texts)) == ({"channel": "general"}, ["message"])


def test_the_quote_of_another_company_the_post_x_and_the_answer_ok_earn_less_than_half():
    goal = derive(ASKED, CORPUS).goal
    assert goal is not None
    assert reward(goal, ASKED.calls, ASKED.answer) == 1.0
    assert reward(goal, (), "") == 0.0
    assert reward(goal, [quote("ORBT", "Price: $7.31"), post("general", "x")], "ok") < CHEAP
    assert reward(goal, ASKED.calls, "") <= CHEAP
    assert reward(goal, ASKED.calls, "213.88, 1.20, 0.56, 40268781, 30.17, 8, 9, 10") <= CHEAP


def test_a_name_of_a_company_determines_its_symbol_but_a_common_word_does_not():
    other = conversation("Price of Vulkan?", [quote("ORBT", "**ORBT - Orbit**\nPrice: $7.31")], "It is $7.31.")
    derived = derive(other, Corpus([ASKED, other]))
    assert derived.goal is not None
    assert derived.goal.calls == (ExpectedCall(tool="get_quote"),), "the question does not name ORBT"


def test_a_number_of_the_question_is_not_a_check():
    echoed = conversation("Is VLKN above 213.88?", [quote("VLKN", QUOTE)], "No, it is at 213.88.")
    assert derive(echoed, CORPUS).goal is None
    assert derive(echoed, CORPUS).lacks[0].startswith("the answer contains no value")


def test_a_default_is_not_an_expected_argument():
    calls = [Call(tool="news", arguments={"limit": 10}, text="Title: Vulkan rises again", failed=False, writes=False)]
    asked = conversation(
        "What are the 10 last headlines?", calls, "Vulkan rises again.", defaults={("news", "limit"): 10}
    )
    without = derive(asked, CORPUS).goal
    assert without is not None
    assert without.calls == (ExpectedCall(tool="news"),)


def test_most_of_several_values_must_be_stated():
    text = "Sector: Basic Materials\nCEO: Ana Lopez\nCity: Lima Norte\nExchange: Old Street"
    answer = "Ana Lopez runs it from Lima Norte; Basic Materials, at Old Street."
    profile = conversation("Describe VLKN.", [quote("VLKN", text)], answer)
    goal = derive(profile, CORPUS).goal
    assert goal is not None
    assert isinstance(goal.answer, MeetsSome)
    assert (len(goal.answer.of), goal.answer.at_least) == (4, 3)
    assert Contains(text="Ana Lopez") in goal.answer.of


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ended_on_tool": True}, "a tool result"),
        ({"calls": (quote("VLKN", QUOTE),), "answer": None}, "without an answer"),
        ({"calls": tuple(replace(call, failed=True) for call in ASKED.calls)}, "most of its calls failed"),
        ({"calls": (quote("VLKN", QUOTE),), "answer": "I will now proceed to look it up."}, "announces"),
    ],
)
def test_a_conversation_that_failed_is_no_example(changes, why):
    derived = derive(replace(ASKED, **changes), CORPUS)
    assert derived.goal is None
    assert why in str(derived.failed)


def test_a_post_that_nobody_asked_for_is_neither_checked_nor_part_of_the_solution():
    asked = replace(ASKED, prompt=({"role": "user", "content": "What is the price of Vulkan?"},))
    derived = derive(asked, Corpus([asked, OTHER]))
    assert derived.goal is not None
    assert derived.goal.writes == ()
    assert [call.tool for call in derived.calls] == ["get_quote"]


def test_a_check_that_other_answers_pass_is_not_proven():
    same = [conversation(f"Question {n} of many", [quote("VLKN", QUOTE)], "It is $213.88.") for n in range(3)]
    derived = derive(same[0], Corpus(same))
    assert derived.goal is None
    assert any("another answer" in why for why in derived.lacks)


@pytest.fixture
def project(without_servers, tmp_path):
    return import_project([EXAMPLE], tmp_path / "quotes", model="Qwen/Qwen3-0.6B")


def test_the_example_becomes_a_project_that_loads(project):
    folder = project.folder
    assert [row.status for row in project.rows] == ["proven"] * 7 + ["failed"] * 2
    config = load_recipe(folder / "recipe.yaml")
    assert config.rewards == REWARDS
    assert config.servers.cassette_mode == "mixed"
    train, validation = load_tasks(folder / "tasks.jsonl"), load_tasks(folder / "validation.jsonl")
    assert (len(train), len(validation)) == (6, 1)
    assert all(task.solution is not None and "fmp_get_stock_news" not in task.tools for task in train)
    assert config.servers.settings["fmp"].argument_aliases == {"ticker": "symbol"}
    with Cassette.open(folder / "cassette.sqlite", writable=False) as cassette:
        found = cassette.find("fmp", "", "fmp_get_quote", {"symbol": "DRNT"})
    assert found is not None
    assert "Price: $210.11" in found.text, "the refusal of `ticker` is not what the tool said"
    report = json.loads((folder / "report.json").read_text())
    assert (report["rows"], report["usable"], report["proven"], report["demonstrations"]) == (9, 7, 7, 6)
    assert "it ends with a tool result" in (folder / "report.md").read_text()


def test_demonstrations_are_chats_in_openai_format_of_proven_training_tasks_only(project):
    lines = [json.loads(line) for line in (project.folder / "demonstrations.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == [task.id for task in load_tasks(project.folder / "tasks.jsonl")]
    for line in lines:
        roles = Counter(message["role"] for message in line["messages"])
        assert roles["tool"] == roles["assistant"] - 1
        assert line["messages"][-1]["role"] == "assistant"
        called = [call["function"] for m in line["messages"] for call in m.get("tool_calls", ())]
        assert all(isinstance(json.loads(call["arguments"]), dict) for call in called)
        assert {call["name"] for call in called} <= {tool["function"]["name"] for tool in line["tools"]}
    compared = next(line for line in lines if "BLKF" in line["messages"][0]["content"])
    assert [m["role"] for m in compared["messages"]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_nothing_is_written_if_nothing_can_be_proven_or_the_folder_is_taken(without_servers, tmp_path):
    file, out = tmp_path / "log.jsonl", tmp_path / "out"
    file.write_text(EXAMPLE.read_text().splitlines()[7] + "\n")
    with pytest.raises(TaskFileError, match="no conversation yields a task"):
        import_project([file], out)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("")
    with pytest.raises(BadValueError, match="not empty"):
        import_project([EXAMPLE], out)


def cheap_rewards(row: ImportedRow, other: str) -> Iterator[tuple[float, str]]:
    """The rewards of policies that know the right tools, or the right calls, but not what they returned."""
    goal, calls = row.derived.goal, row.derived.calls
    assert goal is not None
    texts = {(write.tool, name) for write in goal.writes for name in write.texts}
    question = " ".join(message["content"] for message in row.task.prompt if message["role"] == "user")
    numbers = " ".join(re.findall(r"\d[\d,.]*\d|\d", " ".join(call.text for call in calls)))

    def says(text: str) -> float:
        def said(call: Call) -> Call:
            arguments = {name: text if (call.tool, name) in texts else value for name, value in call.arguments.items()}
            return replace(call, arguments=arguments)

        return reward(goal, [said(call) for call in calls], text)

    wrong = [replace(call, arguments=dict.fromkeys(call.arguments, "x")) for call in calls]
    yield reward(goal, wrong, "ok"), "right tools with wrong arguments"
    yield says(other), "the answer of another task"
    yield says(question), "the question"
    yield says(numbers), "all numbers of the results"
    if goal.answer is not None:  # a task that only writes needs no answer
        yield reward(goal, calls, ""), "right calls with an empty answer"


def most_earned(project: ImportedProject) -> Iterator[tuple[str, tuple[float, str]]]:
    """The highest reward of a cheap policy on each proven task. The other task is the next one."""
    proven = [row for row in project.rows if row.status == "proven"]
    for place, row in enumerate(proven):
        others = [*proven[place + 1 :], *proven[:place]]
        other = next(
            o.conversation.answer for o in others if o.conversation.answer and o.task.prompt != row.task.prompt
        )
        yield f"{row.place.file} {row.place.row}", max(cheap_rewards(row, other))


def test_cheap_policies_earn_at_most_half_on_the_example(project):
    assert {name: earned for name, earned in most_earned(project) if earned[0] > CHEAP} == {}


@pytest.fixture(scope="module")
def users_files(shipped, tmp_path_factory):
    names = ("recorded-train", "recorded-validation", "processed-train")
    files = [DATA / f"{name}.json" for name in names]
    if not all(file.exists() for file in files):
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")

    async def listed():
        return shipped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "_shipped_tools", listed)
        return import_project(files, tmp_path_factory.mktemp("users") / "out")


@pytest.mark.full
def test_most_usable_rows_of_the_users_files_have_a_proven_check(users_files, record_property):
    figures = users_files.to_json()
    record_property("import", json.dumps({name: figures[name] for name in ("rows", "usable", "proven", "checks")}))
    record_property("proven_share", figures["proven"] / figures["usable"])
    assert figures["rows"] == 94 + 28 + 10
    assert figures["proven"] >= 0.8 * figures["usable"]
    for row in users_files.rows:
        if row.status == "proven":
            scores = row.derived.scores
            assert (scores["recorded"], scores["nothing"]) == (1.0, 0.0)
            assert max(value for name, value in scores.items() if name in POLICIES) <= CHEAP
        else:
            assert row.derived.failed or row.derived.lacks


POLICIES = {"wrong arguments", "empty answer", "another answer", "question echoed", "numbers listed"}


@pytest.mark.full
def test_cheap_policies_earn_at_most_half_on_the_users_files(users_files, record_property):
    most = dict(most_earned(users_files))
    paid = {name: earned for name, earned in most.items() if earned[0] > CHEAP}
    share = 1 - len(paid) / len(most)
    record_property("cheap_share", share)
    record_property("paid_tasks", json.dumps(paid))
    assert len(most) == users_files.to_json()["proven"]
    assert share >= 0.95, paid


@pytest.mark.full
def test_the_import_agrees_with_labels_made_by_hand(users_files, record_property):
    agreed = kinds = 0
    for row in users_files.rows:
        label = LABELS[row.place.file.removesuffix(".json")].get(str(row.place.row))
        if label is not None:
            agreed += (row.status != "failed") == label["usable"]
            kinds += set(row.derived.kinds) == set(label["checks"])
    record_property("import_labels", f"usable {agreed} of 30, kinds of checks {kinds} of 30")
    assert agreed >= 27
    assert kinds >= 24


@pytest.mark.full
def test_the_users_first_row_is_not_paid_for_the_quote_of_another_company(users_files):
    row = users_files.rows[0]
    goal: Goal | None = row.derived.goal
    assert goal is not None
    wrong = [
        replace(call, arguments={"symbol": "MSFT"} if not call.writes else {"channel": "general", "message": "x"})
        for call in row.derived.calls
    ]
    assert reward(goal, wrong, "ok") < CHEAP
