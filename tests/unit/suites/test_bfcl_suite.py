"""The suite bfcl-multi-turn: its 800 tasks, its configuration, and how it judges episodes that hit a limit."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from pydantic import ValidationError

pytest.importorskip("bfcl_eval", reason="needs the wheel: pip install --no-deps bfcl-eval==2026.3.23 mpmath")

from mcprl.config import EpisodesConfig, ModelConfig, RunConfig, SamplingConfig, ServersConfig, TasksConfig
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.evaluation.outcomes import named_suite
from mcprl.records import FinishReason, StopReason, Turn
from mcprl.tasks.formats import line_of
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.specs import load_server_specs
from mcprl_suites.bfcl import make_suite, wheel
from mcprl_suites.bfcl.server import BEGIN, STATE
from mcprl_suites.bfcl.simulators import Simulators, all_tools, json_schema, public_state
from mcprl_suites.bfcl.suite import judge_turns
from mcprl_suites.bfcl.wheel import entry_of

SUITE = make_suite()
TASKS = {task.id: task for task in SUITE.tasks()}


def make_config(**sections):
    return RunConfig(
        name="test",
        model=ModelConfig(path="nowhere"),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        **sections,
    )


def test_there_are_200_tasks_of_each_category_in_a_fixed_order():
    assert len(TASKS) == 800
    assert Counter(map(SUITE.category, TASKS.values())) == dict.fromkeys(wheel.CATEGORIES, 200)
    assert list(TASKS) == [f"multi_turn_{category}_{n}" for category in wheel.CATEGORIES for n in range(200)]
    assert type(named_suite("bfcl-multi-turn")) is type(SUITE)


def test_a_task_offers_the_functions_of_its_simulators_and_nothing_of_the_server_itself():
    for task in TASKS.values():
        entry = entry_of(task.id)
        later = [name for follow_up in task.follow_ups for name in follow_up.tools]
        documented = {name for name, tool in all_tools().items() if tool.simulator in entry.simulators}
        assert {*task.tools, *later} == documented
        assert not {BEGIN, STATE} & {*task.tools, *later}
        assert set(task.tools).isdisjoint(later)
        assert 1 + len(task.follow_ups) == len(entry.messages)
        assert task.setup[0].arguments == {"task_id": task.id}


def test_functions_that_come_late_are_announced_with_their_documents():
    task = TASKS["multi_turn_miss_func_0"]
    assert "sort" not in task.tools
    assert [follow_up.tools for follow_up in task.follow_ups] == [(), (), ("sort",), ()]
    (announcement,) = task.follow_ups[2].messages
    assert announcement["role"] == "user"
    assert '[{"name": "sort", "description": ' in announcement["content"]
    assert "{functions}" not in announcement["content"]
    assert sum(bool(f.tools) for t in TASKS.values() for f in t.follow_ups) == 200


def test_the_function_that_an_answer_calls_too_early_is_on_offer_from_the_start():
    task = TASKS["multi_turn_miss_func_49"]
    assert "tail" in task.tools
    assert [follow_up.tools for follow_up in task.follow_ups] == [(), (), ("wc", "cat"), ()]


def test_a_task_that_a_task_file_cannot_express_is_not_written():
    with pytest.raises(ValidationError, match=r"follow_ups|calls_in_order|must_fit"):
        line_of(TASKS["multi_turn_miss_func_0"])


def test_every_document_is_a_schema_that_calls_are_checked_by():
    kinds = Counter()

    def walk(schema):
        kinds.update([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
        for part in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
            walk(part)

    for tool in all_tools().values():
        ArgumentCheck(tool.name, "bfcl", tool.parameters)
        walk(tool.parameters)
    assert set(kinds) == {"object", "string", "number", "integer", "array", "boolean"}
    assert len(all_tools()) == 128


def test_types_of_python_become_types_of_json():
    nested = {"type": "dict", "properties": {"xs": {"type": "tuple", "items": {"type": "float"}}, "y": {"type": "any"}}}
    assert json_schema(nested) == {
        "type": "object",
        "properties": {"xs": {"type": "array", "items": {"type": "number"}}, "y": {}},
    }


def test_the_configuration_gets_the_server_and_loses_injected_errors():
    config = SUITE.adapt(make_config(episodes=EpisodesConfig(injected_errors=0.3, deadline_s=5.0)))
    (spec,) = load_server_specs(config.servers.file, config.servers.settings)
    assert (spec.name, spec.args) == ("bfcl", ("serve", "bfcl"))
    assert spec.settings.isolation == "per_episode"
    assert config.episodes.injected_errors == 0.0
    assert config.episodes.deadline_s == 3600.0
    assert config.model.path == "nowhere"


def test_turns_constrained_by_a_grammar_are_refused_before_anything_starts():
    with pytest.raises(BadValueError, match="in the middle of an episode"):
        SUITE.adapt(make_config(sampling=SamplingConfig(constrain="calls")))


@pytest.mark.parametrize(
    ("stop", "failure"),
    [
        (StopReason.CONTEXT_LIMIT, "context limit"),
        (StopReason.DEADLINE, "deadline"),
        (StopReason.TURN_LIMIT, "turn limit"),
    ],
)
def test_an_episode_ended_by_a_limit_fails_and_names_it(stop, failure):
    judged = judge_turns(entry_of("multi_turn_base_0"), stop, ())
    assert (judged.success, judged.failure) == (False, failure)


def test_a_conversation_without_calls_fails():
    turn = Turn(text="Hm.", sampled_ids=(), finish=FinishReason.STOP, weights_version=0)
    entry = entry_of("multi_turn_base_0")
    judged = judge_turns(entry, StopReason.ANSWERED, [turn] * len(entry.messages))
    assert judged.failure == "no call although one is needed"


def test_without_the_wheel_the_suite_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    wheel._data_folder.cache_clear()
    wheel.entries.cache_clear()
    monkeypatch.setattr(wheel, "version", missing)
    with pytest.raises(MissingExtraError, match=r"pip install --no-deps bfcl-eval==2026\.3\.23 mpmath"):
        make_suite()
    monkeypatch.setattr(wheel, "version", lambda _: "2025.1.1")
    with pytest.raises(MissingExtraError, match=r"2025\.1\.1 is installed"):
        make_suite()


def test_numbers_that_would_take_hours_are_rejected():
    entry = next(e for e in wheel.entries("base").values() if "MathAPI" in e.simulators)
    simulators = Simulators(entry)
    assert simulators.call("power", {"base": 10, "exponent": 10**9}).is_error
    assert simulators.call("logarithm", {"value": 2, "base": 10, "precision": 10**9}).is_error
    assert simulators.call("power", {"base": 2, "exponent": 10}).text == '{"result": 1024}'


def test_unexpected_arguments_give_an_error_result_and_no_crash():
    simulators = Simulators(entry_of("multi_turn_base_0"))
    for arguments in ({"folder": None}, {"folder": {"a": []}}, {}, {"nonsense": 1}):
        assert simulators.call("cd", arguments).is_error
    assert simulators.call("_load_scenario", {"scenario": {}}).is_error


def test_a_state_is_json_without_private_attributes():
    simulators = Simulators(entry_of("multi_turn_base_0"))
    state = simulators.state()
    assert set(state) == {"TwitterAPI", "GorillaFileSystem"}
    assert "parent" not in str(state)
    assert public_state({1: {3, 2}, "t": (1,)}) == {"1": [2, 3], "t": [1]}
