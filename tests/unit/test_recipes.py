"""Every shipped recipe loads with all its files, and the answers of its tasks are right."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from mcprl.goals import Contains
from mcprl.recipe import load_recipe
from mcprl.records import Task
from mcprl.servers.directory import PEOPLE
from mcprl.tasks import load_preamble, load_tasks, make_order
from mcprl.tools import load_server_specs
from mcprl_market.generation import FAMILIES

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
HELLO = Path(__file__).parents[2] / "recipes" / "hello"
HELLO_TASKS = load_tasks(HELLO / "tasks.jsonl")
HELLO_TOOLS = {"find_person", "list_people", "convert_time", "get_current_time"}
ZONES = {person["name"]: person["timezone"] for person in PEOPLE}
ZONE = r"[A-Z]\w+/[A-Z]\w+"


def test_there_are_recipes():
    assert [recipe.name for recipe in RECIPES if recipe.name == "hello-cpu.yaml"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_loads_with_its_tasks_preamble_and_servers(recipe):
    config = load_recipe(recipe)
    assert config.name == recipe.stem
    tasks = load_tasks(config.tasks.train)
    assert len(make_order(tasks, config).deal(0)) == config.training.tasks_per_step
    load_preamble(config.tasks.preamble)
    assert load_server_specs(config.servers.file, config.servers.settings)


@pytest.mark.parametrize("task", HELLO_TASKS, ids=lambda task: task.id)
def test_a_hello_task_offers_every_tool_that_it_needs_and_none_that_is_unknown(task):
    needed = {call.tool for call in task.goal.calls}
    assert needed <= set(task.tools or ())
    assert set(task.tools or ()) <= HELLO_TOOLS


@pytest.mark.parametrize("task", HELLO_TASKS, ids=lambda task: task.id)
def test_a_hello_task_can_be_solved_in_its_turns(task):
    assert task.max_turns is not None
    assert task.max_turns > len(task.goal.calls)


def converted(source: str, clock: str, target: str, day: date) -> str:
    moment = datetime.combine(day, time.fromisoformat(clock), ZoneInfo(source))
    return moment.astimezone(ZoneInfo(target)).strftime("%H:%M")


def solution(task: Task) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """Answer and calls of a task, worked out from the question alone."""
    question = task.prompt[-1]["content"]
    if asked := re.fullmatch(r"Which time zone is (\w+)'s office in\?", question):
        return ZONES[asked[1]], [("find_person", {"name": asked[1]})]
    asked = re.fullmatch(
        rf"It is (\d\d:\d\d) (?:at (\w+)'s office|in ({ZONE}))\. What time is it in ({ZONE})\?", question
    )
    assert asked is not None, question
    clock, name, source, target = asked.groups()
    calls = [("find_person", {"name": name})] if name else []
    source = source or ZONES[name]
    arguments = {"source_timezone": source, "time": clock, "target_timezone": target}
    return converted(source, clock, target, date(2026, 1, 1)), [*calls, ("convert_time", arguments)]


@pytest.mark.parametrize("task", HELLO_TASKS, ids=lambda task: task.id)
def test_the_answer_and_the_calls_of_a_hello_task_are_right(task):
    answer, calls = solution(task)
    assert task.goal.answer == Contains(text=answer)
    assert [(call.tool, dict(call.arguments)) for call in task.goal.calls] == calls


def test_the_preamble_gives_no_hello_answer_away_and_its_own_are_right():
    preamble = load_preamble(HELLO / "preamble.json")
    questions = {message["content"] for message in preamble if message["role"] == "user"}
    assert questions.isdisjoint(task.prompt[-1]["content"] for task in HELLO_TASKS)
    for question, answer in zip(preamble, preamble[3:], strict=False):
        if question["role"] == "user":
            expected = solution(Task(id="example", prompt=(question,), goal=HELLO_TASKS[0].goal))
            assert answer["content"] == expected[0]


MULTI = {name: load_tasks(HELLO.parent / "finance-multi" / f"{name}.jsonl") for name in ("train", "validation")}
PREFIXES = {"fmp": "fmp", "polygon": "polygon", "tavily": "tavily", "list": "slack", "send": "slack"}


def asked_for(task: Task) -> set[str]:
    """The tickers and names that a question is about, as its calls and its stored results name them."""
    assert task.solution is not None
    values = [value for call in task.solution.calls for value in call.arguments.values() if isinstance(value, str)]
    return {word.upper() for value in values for word in re.findall(r"\b[A-Z]{3,4}\b|\b[a-z]{3,4}(?=_price)", value)}


@pytest.mark.parametrize("tasks", MULTI.values(), ids=MULTI.keys())
def test_multi_turn_tasks_take_two_or_three_calls_over_two_servers_with_few_tools_on_offer(tasks):
    for task in tasks:
        assert task.solution is not None
        called = [call.name for call in task.solution.calls]
        assert 2 <= len(called) <= 3, task.id
        assert len({PREFIXES.get(name.split("_")[0], "python") for name in called}) == 2, task.id
        assert set(called) <= set(task.tools or ()), task.id
        assert 4 <= len(task.tools or ()) <= 6, task.id


def test_no_company_of_a_multi_turn_validation_task_is_in_training_and_half_of_their_wordings_are_new():
    companies = {name: {word for task in tasks for word in asked_for(task)} for name, tasks in MULTI.items()}
    assert len(companies["train"]) >= 40
    assert len(companies["validation"]) >= 10
    assert companies["train"].isdisjoint(companies["validation"])
    families = {family.name: family for family in FAMILIES}
    new = 0
    for task in MULTI["validation"]:
        family = families[task.id.removeprefix("validation-").rpartition("-")[0]]
        fixed = max(re.split(r"\{\w+\}", family.held_out[0]), key=len)
        new += fixed in task.prompt[0]["content"]
    assert 0.45 <= new / len(MULTI["validation"]) <= 0.55
    assert sum(bool(task.goal.state) for task in MULTI["validation"]) >= 40


def test_no_zone_of_the_hello_recipe_observes_daylight_saving_time_until_2030():
    written = (HELLO / "tasks.jsonl").read_text() + (HELLO / "preamble.json").read_text()
    zones = set(re.findall(ZONE, written)) | set(ZONES.values())
    assert len(zones) >= 8
    days = [date(2026, 1, 1) + timedelta(days=n) for n in range(5 * 365 + 2)]
    assert days[-1] > date(2030, 12, 30)
    for zone in zones:
        offsets = {datetime.combine(day, time(12), ZoneInfo(zone)).utcoffset() for day in days}
        assert len(offsets) == 1, zone
