"""Faults that cost people weeks, planted in a correct recipe: each is found by name, with its fix."""
# R25

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from patients import Patient, server, task, tool

from mcprl import errors
from mcprl.checks.doctor import Check, Examination, Finding, server_checks
from mcprl.episodes import reward_functions
from mcprl.goals import AnyText, Goal
from mcprl.records import Solution, Task, ToolCall
from mcprl.tools import Tool
from mcprl.tools.catalog import Catalog
from mcprl.verdicts import Severity
from shipped_tools import SHIPPED_TOOLS

BAD, WARN = Severity.BAD, Severity.WARN
DATA = Path(__file__).parents[5] / "shared" / "data"
GB = 10**9


@dataclass(frozen=True)
class Fault:
    """A fault and the expected finding: its check, severity, code, and parts of its words and fix."""

    plant: Callable[[Patient, pytest.MonkeyPatch], None]
    check: str
    severity: Severity
    says: str
    fix: str
    code: str = ""


FAULTS: dict[str, Fault] = {}
Follow = Callable[[Patient, pytest.MonkeyPatch], object]

# The checks that have to run for a finding of that first word, so that following advice starts no server for nothing.
_FILES = ("recipe", "installed", "code", "GPUs", "tasks")
_SERVERS = (*_FILES, "keys", "servers")
_TOOLS = (*_SERVERS, "tasks and tools", "preamble", "worlds", "leaks", "model")
_MACHINE = (*_FILES, "model", "memory", "disk", "trackers")
BEFORE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("recipe", "limits", "learning", "installed", "code", "GPUs"), _FILES),
    "tasks": _TOOLS,
    **dict.fromkeys(("scoring", "leaks", "answers", "learnable"), (*_FILES, "leaks")),
    **dict.fromkeys(("keys", "server", "servers", "catalog"), _SERVERS),
    "call": (*_SERVERS, "calls"),
    "isolation": (*_SERVERS, "isolation"),
    **dict.fromkeys(("preamble", "names", "solvable", "recorded", "duplicates", "worlds"), _TOOLS),
    **dict.fromkeys(("prompt", "warm"), (*_TOOLS, "prompt length")),
    **dict.fromkeys(
        ("model", "renderer", "memory", "disk", "trackers"), (*_FILES, "model", "memory", "disk", "trackers")
    ),
    "forecast": (*_FILES, "keys", "forecast"),
}


def fault(check: str, severity: Severity, says: str, fix: str, code: str = ""):
    """The decorated function plants a fault of its name."""

    def add(plant: Callable[[Patient, pytest.MonkeyPatch], None]):
        FAULTS[plant.__name__.replace("_", "-")] = Fault(plant, check, severity, says, fix, code)
        return plant

    return add


# ---- the recipe ------------------------------------------------------------------------------------------------------


@fault("recipe", BAD, "unknown key 'sampling.temprature'", "rename it to 'temperature'", "E-CONF-002")
def unknown_setting(patient, monkeypatch):
    patient.set("sampling.temprature", 0.7)


@fault("recipe", BAD, "recipe.yaml:1", "correct the YAML at this line", "E-CONF-001")
def bad_yaml(patient, monkeypatch):
    patient.files["recipe.yaml"] = "name: [small"


@fault("recipe", BAD, "cannot read", "pass the path of a recipe", "E-CONF-001")
def missing_recipe(patient, monkeypatch):
    patient.folder = patient.folder / "elsewhere"
    patient.write = lambda: None


@fault("recipe", BAD, "training.steps: Input should be greater than or equal to 1", "config explain")
def second_bad_setting_of_two(patient, monkeypatch):
    patient.set("training.steps", 0)
    patient.set("nonsense", 1)


@fault("limits", BAD, "leave no room for the prompt", "lower sampling.max_tokens to about 64")
def turn_as_long_as_the_context(patient, monkeypatch):
    patient.set("sampling.max_tokens", 512)


@fault("code", BAD, "losses.py:1: SyntaxError", "correct the code at this line", "E-CODE-001")
def own_loss_that_is_not_python(patient, monkeypatch):
    patient.files["losses.py"] = "def own(logprob_N, *others, **clips)\n    return logprob_N\n"
    patient.set("algorithm.loss", "losses.py:own")


@fault("code", BAD, "gone.py, which is not a file", "correct the path", "E-CODE-001")
def own_tracker_in_a_missing_file(patient, monkeypatch):
    patient.set("tracking.tracker", "gone.py:Mine")


@fault("installed", BAD, "workers.count is above 0, which needs ray", "pip install 'mcprl[ray]'", "E-CONF-004")
def missing_extra(patient, monkeypatch):
    patient.set("workers.count", 2)
    hide_modules(monkeypatch, "ray")


@fault("installed", BAD, "engine is vllm", "set engine to transformers", "E-CONF-004")
def missing_vllm(patient, monkeypatch):
    patient.set("engine", "vllm")
    hide_modules(monkeypatch, "vllm")


@fault("installed", BAD, "this is macOS, but training needs Linux", "train on Linux", "E-ENG-001")
def machine_of_apple(patient, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")


@fault("installed", BAD, "which does not exist", "scripts/setup", "E-CONF-004")
def missing_environment_of_skyrl(patient, monkeypatch):
    patient.set("engine", "skyrl")
    patient.set("learner.max_grad_norm", None)
    patient.set("skyrl.python", "nowhere/bin/python")


@fault("installed", WARN, "learner.tuning is lora_4bit, which needs bitsandbytes", "mcprl[four-bit]")
def four_bits_without_their_library_on_a_machine_without_a_gpu(patient, monkeypatch):
    patient.set("learner.tuning", "lora_4bit")
    hide_modules(monkeypatch, "bitsandbytes")


@fault("GPUs", WARN, "this machine has no GPUs, but learner.processes=4 needs 4", "a machine with 4 GPUs")
def more_processes_than_gpus(patient, monkeypatch):
    patient.set("learner.processes", 4)


@fault("code", BAD, "rewards.py:2: importing your functions took longer than", "make the import faster", "E-CODE-001")
def reward_functions_that_hang_while_they_are_imported(patient, monkeypatch):
    patient.files["rewards.py"] = "import time\ntime.sleep(600)\n"
    patient.set("rewards.functions", {"own": {"function": "rewards.py:own", "weight": 1.0}})
    monkeypatch.setattr(reward_functions, "_START_S", 5.0)


@fault("code", BAD, "rewards.functions.own.function refers to", "correct the path", "E-CODE-001")
def reward_function_in_a_missing_file(patient, monkeypatch):
    patient.set("rewards.functions", {"own": {"function": "gone.py:own", "weight": 1.0}})


@fault("leaks", BAD, "gone.jsonl", "correct the path", "E-TASK-001")
def missing_validation_file(patient, monkeypatch):
    patient.set("tasks.validation", "gone.jsonl")


# ---- keys and servers ------------------------------------------------------------------------------------------------


@fault("keys", BAD, "PEOPLE_KEY_OF_NOBODY for server 'people'", "set each key in the environment", "E-TOOL-007")
def missing_key(patient, monkeypatch):
    patient.servers["people"]["env"] = {"KEY": "${PEOPLE_KEY_OF_NOBODY}"}


@fault("keys", BAD, "the judge needs a key, but JUDGE_KEY_OF_NOBODY is not set", "rewards.judge.key_env", "E-TOOL-007")
def missing_key_of_the_judge(patient, monkeypatch):
    patient.set("rewards.judge", {"url": "http://127.0.0.1:9/v1", "model": "none", "key_env": "JUDGE_KEY_OF_NOBODY"})


@fault("server file", BAD, "elsewhere.json cannot be read", "path of an mcpServers file", "E-TOOL-001")
def missing_server_file(patient, monkeypatch):
    patient.set("servers.file", "elsewhere.json")


@fault("server file", BAD, "is not valid JSON", "correct the file at this position", "E-TOOL-001")
def server_file_that_is_no_json(patient, monkeypatch):
    patient.files["servers.json"] = "{"


@fault("server file", BAD, "'poeple', which is not in", "correct the name", "E-TOOL-001")
def settings_of_a_server_that_does_not_exist(patient, monkeypatch):
    patient.set("servers.settings.poeple.call_deadline_s", 3)


@fault("server people", BAD, "no-such-program", "correct its entry in servers.json", "E-TOOL-010")
def server_command_not_found(patient, monkeypatch):
    patient.servers["people"] = {"command": "no-such-program"}


@fault("server people", BAD, "srv", "correct its entry in servers.json", "E-TOOL-010")
def server_command_that_is_not_executable(patient, monkeypatch):
    (patient.folder / "srv").write_text("#!/bin/sh")
    patient.servers["people"] = {"command": str(patient.folder / "srv")}


@fault("server people", BAD, "'/nowhere'", "correct its entry in servers.json", "E-TOOL-010")
def server_in_a_missing_folder(patient, monkeypatch):
    patient.servers["people"] |= {"cwd": "/nowhere"}


@fault("servers", BAD, "gone.sqlite does not exist", "record one with servers.cassette_mode=record", "E-TOOL-009")
def missing_cassette(patient, monkeypatch):
    patient.set("servers.cassette", "gone.sqlite")
    patient.set("servers.cassette_mode", "replay")


@fault("servers", BAD, "its folder does not exist", "create the folder", "E-TOOL-009")
def cassette_in_a_missing_folder(patient, monkeypatch):
    patient.set("servers.cassette", "gone/calls.sqlite")
    patient.set("servers.cassette_mode", "record")


@fault("server people", BAD, "the licence has expired", "run its command by hand", "E-TOOL-010")
def server_that_dies_at_start(patient, monkeypatch):
    patient.servers["people"] = server(mood="dies")


@fault("server people", BAD, "0.5 s", "run its command by hand", "E-TOOL-010")
def server_that_hangs_at_start(patient, monkeypatch):
    patient.servers["people"] = server(mood="hangs")
    monkeypatch.setattr("mcprl.tools.connection.START_S", 0.5)


@fault("server idle", WARN, "offers no tool", "servers.settings.idle.allow")
def one_server_without_tools(patient, monkeypatch):
    patient.servers["idle"] = server()


@fault("server people", WARN, "stdout, which must carry only MCP messages: ", "make the server print and log to stderr")
def server_that_prints_to_stdout(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="chatty")


@fault("catalog", BAD, "the servers offer no tools", "enable a server that offers tools", "E-TOOL-004")
def tools_that_were_never_initialised(patient, monkeypatch):
    patient.servers["people"] = server()


@fault("catalog", BAD, "'people' and 'others' both offer a tool named 'find_person'", "exclude its tool", "E-TOOL-002")
def two_servers_with_the_same_tool(patient, monkeypatch):
    patient.servers["others"] = server(tool("find_person"))


@fault("server people", BAD, "'find_person'", "", "E-TOOL-005")
def tool_with_a_broken_schema(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person", type="object", properties={"name": {"type": "strnig"}}))


@fault("server people", BAD, "'find_person' with a schema that has more than 10000 schemas", ".deny", "E-LIMIT-001")
def tool_with_references_that_multiply(patient, monkeypatch):
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(22)}
    schema = {"type": "object", "$defs": {**twice, "d22": {}}, "$ref": "#/$defs/d0"}
    patient.servers["people"] = server(tool("find_person", **schema))


@fault("server people", WARN, "not enforce the pattern '^(?!x)' of find_person", "servers.settings.people.deny")
def tool_with_a_pattern_that_is_not_linear(patient, monkeypatch):
    name = {"type": "string", "pattern": "^(?!x)"}
    patient.servers["people"] = server(tool("find_person", type="object", properties={"name": name}))


@fault("call people", BAD, "find_person", "call_deadline_s", "E-TOOL-012")
def tool_slower_than_its_deadline(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="slow", slow_s=0.5)
    patient.set("servers.settings.people", {"call_deadline_s": 0.2, "attempts": 1})


@fault("call people", WARN, "rejected a call that should succeed: No such person.", "mcprl tools call")
def tool_that_refuses_the_call_of_a_task(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="refuses")


@fault("call people", BAD, "exited after 3 calls", "look for the cause in its stderr", "E-TOOL-011")
def server_that_dies_after_every_three_calls(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="tired")


@fault("call people", WARN, "find_person returned an empty result", "return its result as text")
def tool_that_returns_nothing(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), content=[])


@fault("call people", WARN, "find_person returned only [image omitted]", "return its result as text")
def tool_that_returns_only_an_image(patient, monkeypatch):
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    patient.servers["people"] = server(tool("find_person"), content=[image])


@fault(
    "call people", WARN, """error marked as success: {"error": "quota""", "servers.settings.people.errors to [{match: "
)
def tool_that_returns_an_error_as_a_success(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), content=[{"type": "text", "text": '{"error": "quota"}'}])


# ---- tasks -----------------------------------------------------------------------------------------------------------


@fault("tasks", BAD, "elsewhere.jsonl", "", "E-TASK-001")
def missing_task_file(patient, monkeypatch):
    patient.set("tasks.train", "elsewhere.jsonl")


@fault("tasks", BAD, "train.jsonl:2", "correct this field", "E-TASK-001")
def bad_row(patient, monkeypatch):
    patient.tasks[1] = {"id": "hiro", "prompt": "Where is Hiro?", "anwser": "Lima"}


@fault("tasks", BAD, "an earlier task has the id 'ana'", "change its id", "E-TASK-001")
def duplicate_ids(patient, monkeypatch):
    patient.tasks[1]["id"] = "ana"


@fault("tasks", BAD, "3", "training.tasks_per_step", "")
def fewer_tasks_than_a_step_takes(patient, monkeypatch):
    patient.set("training.tasks_per_step", 3)


@fault("preamble", BAD, "elsewhere.json", "", "E-TASK-001")
def missing_preamble(patient, monkeypatch):
    patient.set("tasks.preamble", "elsewhere.json")


@fault("preamble", BAD, "message 1: lookup_person: no server lists it", "correct these calls", "E-TOOL-003")
def preamble_that_calls_a_tool_that_is_not_there(patient, monkeypatch):
    call = {"function": {"name": "lookup_person", "arguments": {"name": "Ana"}}}
    patient.files["preamble.json"] = json.dumps([{"role": "assistant", "content": "", "tool_calls": [call]}])
    patient.set("tasks.preamble", "preamble.json")


@fault("preamble", BAD, "message 1: find_person: has no argument 'nane'", "correct these calls")
def preamble_with_a_wrong_argument(patient, monkeypatch):
    call = {"function": {"name": "find_person", "arguments": {"nane": "Ana"}}}
    patient.files["preamble.json"] = json.dumps([{"role": "assistant", "content": "", "tool_calls": [call]}])
    patient.set("tasks.preamble", "preamble.json")


@fault("names in prompts", WARN, "'find_persons' (did you mean 'find_person'?)", "use the name that the server lists")
def prompt_that_names_a_tool_that_is_not_there(patient, monkeypatch):
    patient.files["preamble.json"] = json.dumps([{"role": "system", "content": "Call find_persons(name=…) first."}])
    patient.set("tasks.preamble", "preamble.json")


@fault("learning rate", BAD, "learner.learning_rate is 1", "lower learner.learning_rate to 0.02 or less", "E-CONF-003")
def learning_rate_of_one(patient, monkeypatch):
    patient.set("learner.learning_rate", 1.0)


@fault("tasks and tools", BAD, "(did you mean 'find_person'?)", "correct the name in the task", "E-TOOL-003")
def tool_name_that_drifted(patient, monkeypatch):
    patient.tasks[0]["tools"] = ["find_persons"]


@fault("solvable", BAD, "find_person, which has no argument 'full_name'", "correct the tasks")
def argument_that_no_longer_exists(patient, monkeypatch):
    patient.tasks[0]["calls"][0]["arguments"] = {"full_name": "Ana"}


@fault("solvable", BAD, "one turn for calls and one for the answer, but its limit is 1 turn", "raise max_turns")
def too_few_turns(patient, monkeypatch):
    patient.tasks[0]["max_turns"] = 1


@fault("recorded calls", WARN, "no longer match the tools", "servers.settings.people.argument_aliases: {nane: name}")
def recorded_call_that_drifted(patient, monkeypatch):
    call = {"type": "function", "function": {"name": "find_person", "arguments": '{"nane": "Ana"}'}}
    messages = [
        {"role": "user", "content": "Where is Ana?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    truth = {"expected_tools": ["find_person"]}
    row = {"prompt": messages[:1], "env_class": "MCP", "reward_spec": {"method": "rule", "ground_truth": truth}}
    rows = [row | {"extra_info": {"task_id": name, "original_conversation": messages}} for name in ("a", "b")]
    rows[1] = rows[1] | {"prompt": [{"role": "user", "content": "And Hiro?"}]}
    patient.files["train.json"] = json.dumps(rows)
    patient.set("tasks.train", "train.json")


@fault("duplicates", WARN, "twice asks the same question as ana", "keep one task for each question")
def question_that_stands_twice(patient, monkeypatch):
    patient.tasks.append(task("twice", "Ana"))


@fault("leaks", BAD, "ana asks the same question as judged (validation.jsonl", "mcprl tasks validate")
def validation_task_in_training(patient, monkeypatch):
    patient.files["validation.jsonl"] = json.dumps(task("judged", "Ana"))


@fault("answers in prompts", WARN, "1 of 2 tasks give the answer away in the question", "only a tool can provide")
def answer_in_the_prompt(patient, monkeypatch):
    patient.tasks[0]["prompt"] = "Ana is in Lima. Where is Ana?"


@fault("scoring", BAD, "task ana", "", "E-CONF-003")
def goal_that_nothing_can_be_gained_from(patient, monkeypatch):
    for part in ("answer", "calls", "arguments", "efficiency"):
        patient.set(f"rewards.{part}", 0.0)


@fault("scoring", BAD, "checked only by its rubric", "configure rewards.judge", "E-CONF-003")
def rubric_without_a_judge(patient, monkeypatch):
    patient.tasks[0] = {"id": "ana", "prompt": "Where is Ana?", "rubric": "Is it friendly?"}


@fault("scoring", WARN, "1 of 2 tasks have a rubric, but no judge is configured", "configure rewards.judge")
def rubric_that_is_left_out(patient, monkeypatch):
    patient.tasks[0]["rubric"] = "Is it friendly?"


@fault("isolation", WARN, "1 of 2 tasks read their `state` from server people", "isolation to per_episode")
def writes_that_other_episodes_meet(patient, monkeypatch):
    patient.tasks[0]["state"] = [{"tool": "find_person", "arguments": {"name": "Ana"}, "texts": [{"contains": "Rome"}]}]


@fault("worlds", BAD, "world market-7, but server 'people' provides the world market-9", "--world 7", "E-TASK-002")
def tasks_of_another_world(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), version="1+market-9")
    patient.tasks[0]["world"] = "market-7"


@fault("prompt length", BAD, "leave no room in model.context_tokens (512)", "raise model.context_tokens", "E-CONF-003")
def prompt_longer_than_the_context(patient, monkeypatch):
    patient.tasks[0]["prompt"] = "Where is Ana? " * 200


@fault(
    "prompt length", WARN, "the longest prompt plus a turn of sampling.max_tokens (500)", "lower sampling.max_tokens"
)
def prompt_that_leaves_no_room_for_a_turn(patient, monkeypatch):
    patient.set("sampling.max_tokens", 500)


@fault("model context", WARN, "but the model has 256 positions", "set model.context_tokens to 256 or less")
def context_beyond_the_model(patient, monkeypatch):
    file = copied_model(patient) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 256}))


@fault("model context", BAD, "vLLM would not start", "set model.context_tokens to 256 or less", "E-CONF-003")
def context_that_vllm_refuses(patient, monkeypatch):
    context_beyond_the_model(patient, monkeypatch)
    patient.set("engine", "vllm")


# ---- the model and the machine ---------------------------------------------------------------------------------------


@fault("model", BAD, "which does not exist", "correct model.path", "E-CONF-003")
def missing_model_folder(patient, monkeypatch):
    patient.set("model.path", "./no-such-model")


@fault(
    "renderer",
    BAD,
    "model.renderer is auto",
    "to chatml or to template; for chatml and template, also remove",
    "E-CONF-003",
)
def renderer_auto_for_a_folder(patient, monkeypatch):
    patient.set("model.renderer", "auto")
    patient.set("model.thinking", False)


@fault(
    "renderer",
    BAD,
    "model.thinking is false, but chatml cannot turn thinking on or off",
    "remove model.thinking",
    "E-CONF-003",
)
def thinking_without_a_switch(patient, monkeypatch):
    patient.set("model.thinking", False)


@fault(
    "model", BAD, "model.safetensors is missing, truncated", "download or copy the complete model again", "E-CONF-003"
)
def model_that_was_cut_off(patient, monkeypatch):
    folder = copied_model(patient)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])


@fault("model", BAD, "has no tokenizer", "copy the tokenizer files", "E-CONF-003")
def model_without_a_tokenizer(patient, monkeypatch):
    (copied_model(patient) / "tokenizer.json").unlink()


@fault(
    "model", BAD, "tokenizer.json is not a tokenizer, or is truncated", "copy the complete model again", "E-CONF-003"
)
def tokenizer_that_was_cut_off(patient, monkeypatch):
    (copied_model(patient) / "tokenizer.json").write_text('{"model": {')


@fault("model", WARN, "Nobody/No-Model-1B is not in this machine's cache", "hf download Nobody/No-Model-1B")
def hub_model_that_is_not_here(patient, monkeypatch):
    patient.set("model.path", "Nobody/No-Model-1B")


@fault("memory", BAD, "about 3.7 GB needed", "use a smaller model")
def too_little_memory(patient, monkeypatch):
    patient.set("learner.tuning", "full")
    folder = copied_model(patient)
    shape = json.loads((folder / "config.json").read_text()) | {"vocab_size": 23_000_000}
    (folder / "config.json").write_text(json.dumps(shape))
    memory = namedtuple("memory", "total available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(2 * GB, GB))


@fault("memory", WARN, "but only 1.0 GB is free now", "stop other programs")
def memory_that_others_use(patient, monkeypatch):
    too_little_memory(patient, monkeypatch)
    memory = namedtuple("memory", "total available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(8 * GB, GB))


@fault("memory", BAD, "and vLLM leaves 2.1 GB", "lower sampling.vllm.memory_fraction")
def too_little_memory_on_the_gpu(patient, monkeypatch):
    too_little_memory(patient, monkeypatch)
    patient.set("engine", "vllm")
    patient.set("training.max_staleness", 1)
    patient.set("algorithm.old_logprobs", "recomputed")
    monkeypatch.setattr("mcprl.checks.doctor.resource_checks.gpu_memories", lambda: (5 * GB,))


@fault("trackers", WARN, "tracking.wandb is online, but no W&B API key is set", "run `wandb login`")
def tracker_without_a_key(patient, monkeypatch):
    patient.set("tracking.wandb.project", "mine")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(patient.folder))


@fault(
    "server shown", WARN, "answers without a key, so every user of this machine can call", "send the key in 'headers'"
)
def server_that_answers_anyone(patient, monkeypatch):
    async def opened(examination: Any, spec: Any) -> Any:
        return (SimpleNamespace(catalog=(), restarts=0), None, 0.0) if spec.url else await opens(examination, spec)

    async def answers(url: str) -> bool:
        return "headers" not in patient.servers["shown"]

    opens = server_checks._open
    monkeypatch.setattr(server_checks, "_open", opened)
    monkeypatch.setattr(server_checks, "_answers_anyone", answers)
    patient.servers["shown"] = {"url": "http://127.0.0.1:9/mcp"}


def warm(patient, *solutions: dict | None) -> None:
    patient.set("algorithm.warm_start.weight", 1.0)
    for line, solution in zip(patient.tasks, solutions, strict=True):
        if solution is not None:
            line["solution"] = solution


LOOK = {"name": "find_person", "arguments": {"name": "Ana"}}


@fault("warm start", BAD, "but none of the 2 tasks has a solution", "give tasks a solution", "E-CONF-003")
def warm_start_without_a_solution(patient, monkeypatch):
    warm(patient, None, None)


@fault("warm start", BAD, "task ana does not meet the goal: 'In Oslo'", "correct the solution")
def solution_with_a_wrong_answer(patient, monkeypatch):
    warm(patient, {"calls": [LOOK], "answer": "In Oslo"}, None)


@fault("warm start", BAD, "takes more turns than its limit of 3", "raise episodes.max_turns", "E-CONF-003")
def solution_with_too_many_turns(patient, monkeypatch):
    warm(patient, {"calls": [LOOK] * 3, "answer": "Lima"}, None)
    patient.tasks[0]["max_turns"] = 3


@fault(
    "warm start",
    BAD,
    "1 solutions (each with its prompt) exceed model.context_tokens (512)",
    "raise model.context_tokens",
)
def solution_longer_than_the_context(patient, monkeypatch):
    warm(patient, None, {"calls": [LOOK], "answer": "Lima " * 600})


@fault("warm start", BAD, "1 solutions have a turn that exceeds sampling.max_tokens (4)", "raise sampling.max_tokens")
def solution_with_a_turn_longer_than_a_turn_may_be(patient, monkeypatch):
    warm(patient, {"calls": [LOOK], "answer": "Lima"}, None)


@fault("learnable tokens", BAD, "have at most", "lower algorithm.min_learnable_tokens (default 16)", "E-CONF-003")
def more_learnable_tokens_than_a_step_has(patient, monkeypatch):
    patient.set("algorithm.min_learnable_tokens", 100_000)


@fault("disk", BAD, "a checkpoint takes", "training.outputs", "E-RUN-005")
def too_little_disk(patient, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(GB, GB, 100))


@fault("disk", BAD, "is not writable", "a folder with write permission", "E-RUN-010")
def outputs_that_cannot_be_written(patient, monkeypatch):
    patient.set("training.outputs", "/proc/outputs")


@fault("disk", BAD, "is not writable", "a folder with write permission", "E-RUN-010")
def outputs_that_are_a_file(patient, monkeypatch):
    patient.files["file"] = "x"
    patient.set("training.outputs", str(patient.folder / "file"))


@fault("forecast", WARN, "slow on a CPU: time about ", "train on a machine with a GPU")
def run_that_takes_days_on_a_cpu(patient, monkeypatch):
    monkeypatch.setattr("mcprl.checks.doctor.resource_checks.gpu_memories", lambda: ())
    patient.set("training.steps", 100_000_000)


@fault("forecast", WARN, "servers.settings.people.budget.calls is 3", "raise this budget")
def budget_that_ends_before_the_run(patient, monkeypatch):
    patient.set("servers.settings.people.budget.calls", 3)


@fault("trackers", WARN, "http://127.0.0.1:9 does not answer", "start the tracker, correct its address")
def tracker_that_is_down(patient, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    patient.set("tracking.weave.project", "e/p")


# ---- the advice, followed --------------------------------------------------------------------------------------------

WELL = server(tool("find_person"))
SOLVED = {"calls": [LOOK], "answer": "Lima"}


def sets(**values: Any) -> Follow:
    """Follows advice to change settings: sets(training__steps=2)."""

    def follow(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in values.items():
            patient.set(name.replace("__", "."), value)

    return follow


def removes(dotted: str, **then: Any) -> Follow:
    def follow(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        *sections, key = dotted.split(".")
        target = patient.settings
        for section in sections:
            target = target[section]
        del target[key]
        sets(**then)(patient, monkeypatch)

    return follow


def serves(**entries: Any) -> Follow:
    """Follows advice to correct, replace or disable entries of the mcpServers file."""

    def follow(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        patient.servers.update(entries)

    return follow


def writes(name: str, text: str | None) -> Follow:
    """Follows advice to write a file, or to restore it (None)."""

    def follow(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        if text is None:
            del patient.files[name]
        else:
            patient.files[name] = text

    return follow


def task_has(place: int, **fields: Any) -> Follow:
    """Follows advice to correct a task; None removes a field."""

    def follow(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
        changed = patient.tasks[place] | fields
        patient.tasks[place] = {name: value for name, value in changed.items() if value is not None}

    return follow


def exports(**values: str) -> Follow:
    return lambda patient, monkeypatch: [monkeypatch.setenv(name, value) for name, value in values.items()]


def installs(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # what was hidden is there


def copies_the_model(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(patient.folder / "model")
    shutil.copytree(patient.model, patient.folder / "model")


def gives_the_path(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    patient.folder = patient.folder.parent
    del patient.write


def all_of(*follows: Follow) -> Follow:
    return lambda patient, monkeypatch: [follow(patient, monkeypatch) for follow in follows]


PREAMBLE = [{"role": "assistant", "content": "Call find_person first.", "tool_calls": [{"function": LOOK}]}]
DENIED = sets(servers__settings__people__deny=["find_person"])

# How the advice for each fault is followed: every alternative that it names. A text says why it is not followed here.
FOLLOWED: dict[str, tuple[Follow, ...] | str] = {
    "unknown-setting": (removes("sampling.temprature", sampling__temperature=0.7),),
    "bad-yaml": (writes("recipe.yaml", None),),
    "missing-recipe": (gives_the_path,),
    "second-bad-setting-of-two": (removes("nonsense", training__steps=2),),
    "turn-as-long-as-the-context": (sets(sampling__max_tokens=64), sets(model__context_tokens=4096)),
    "own-loss-that-is-not-python": (
        writes("losses.py", "def own(logprob_N, *others, **clips):\n    return logprob_N\n"),
    ),
    "own-tracker-in-a-missing-file": (writes("gone.py", "class Mine: ...\n"),),
    "missing-extra": (installs, sets(workers__count=0)),
    "missing-vllm": (installs, sets(engine="transformers")),
    "machine-of-apple": (installs,),
    "missing-environment-of-skyrl": (sets(skyrl__url="http://127.0.0.1:9"),),
    "four-bits-without-their-library-on-a-machine-without-a-gpu": (sets(learner__tuning="lora"),),
    "more-processes-than-gpus": (sets(learner__processes=1, learner__tuning="lora"),),
    "missing-key": (exports(PEOPLE_KEY_OF_NOBODY="k" * 20),),
    "missing-key-of-the-judge": (exports(JUDGE_KEY_OF_NOBODY="k" * 20), removes("rewards.judge.key_env")),
    "missing-server-file": (sets(servers__file="servers.json"),),
    "server-file-that-is-no-json": (writes("servers.json", None),),
    "settings-of-a-server-that-does-not-exist": (removes("servers.settings.poeple"),),
    "server-command-not-found": (serves(people=WELL),),
    "reward-functions-that-hang-while-they-are-imported": (
        writes("rewards.py", "def own(episode):\n    return 1.0\n"),
    ),
    "reward-function-in-a-missing-file": (writes("gone.py", "def own(episode):\n    return 1.0\n"),),
    "missing-validation-file": (writes("gone.jsonl", json.dumps(task("judged", "Bo"))), sets(tasks__validation=None)),
    "server-command-that-is-not-executable": (serves(people=WELL),),
    "server-in-a-missing-folder": (serves(people=WELL),),
    "missing-cassette": (sets(servers__cassette_mode="record"),),
    "cassette-in-a-missing-folder": (lambda patient, _: (patient.folder / "gone").mkdir(),),
    "outputs-that-are-a-file": (sets(training__outputs="outputs"),),
    "server-that-dies-at-start": (serves(people=WELL),),
    "server-that-hangs-at-start": (serves(people=WELL),),
    "one-server-without-tools": (serves(idle=server(tool("other"))), serves(idle=server() | {"disabled": True})),
    "server-that-prints-to-stdout": (serves(people=WELL),),
    "tools-that-were-never-initialised": (serves(people=WELL),),
    "two-servers-with-the-same-tool": (
        serves(others=server() | {"disabled": True}),
        sets(servers__settings__others__deny=["find_person"]),
    ),
    "tool-with-a-broken-schema": (serves(people=WELL), DENIED),
    "tool-with-references-that-multiply": (serves(people=WELL), DENIED),
    "tool-with-a-pattern-that-is-not-linear": (DENIED,),
    "tool-slower-than-its-deadline": (sets(servers__settings__people__call_deadline_s=20),),
    "tool-that-refuses-the-call-of-a-task": (serves(people=WELL),),
    "server-that-dies-after-every-three-calls": (serves(people=WELL),),
    "tool-that-returns-nothing": (serves(people=WELL), DENIED),
    "tool-that-returns-only-an-image": (serves(people=WELL), DENIED),
    "tool-that-returns-an-error-as-a-success": (serves(people=WELL),),
    "missing-task-file": (sets(tasks__train="train.jsonl"),),
    "bad-row": (task_has(1, anwser=None, answer="Lima"),),
    "duplicate-ids": (task_has(1, id="hiro"),),
    "fewer-tasks-than-a-step-takes": (sets(training__tasks_per_step=2),),
    "missing-preamble": (sets(tasks__preamble=None), writes("elsewhere.json", json.dumps(PREAMBLE))),
    "preamble-that-calls-a-tool-that-is-not-there": (writes("preamble.json", json.dumps(PREAMBLE)),),
    "preamble-with-a-wrong-argument": (writes("preamble.json", json.dumps(PREAMBLE)),),
    "prompt-that-names-a-tool-that-is-not-there": (writes("preamble.json", json.dumps(PREAMBLE)),),
    "learning-rate-of-one": (sets(learner__learning_rate=0.02),),
    "tool-name-that-drifted": (task_has(0, tools=["find_person"]), serves(others=server(tool("find_persons")))),
    "argument-that-no-longer-exists": (task_has(0, calls=[{"tool": "find_person", "arguments": {"name": "Ana"}}]),),
    "too-few-turns": (task_has(0, max_turns=2), task_has(0, max_turns=None)),
    "recorded-call-that-drifted": (sets(servers__settings__people__argument_aliases={"nane": "name"}),),
    "question-that-stands-twice": (lambda patient, _: patient.tasks.pop(),),
    "validation-task-in-training": (writes("validation.jsonl", json.dumps(task("judged", "Bo"))),),
    "answer-in-the-prompt": (task_has(0, prompt="Where is Ana?"),),
    "goal-that-nothing-can-be-gained-from": (sets(rewards__answer=1.0),),
    "rubric-without-a-judge": (sets(rewards__judge={"url": "http://127.0.0.1:9/v1", "model": "none"}),),
    "rubric-that-is-left-out": (
        task_has(0, rubric=None),
        sets(rewards__judge={"url": "http://127.0.0.1:9/v1", "model": "none"}),
    ),
    "writes-that-other-episodes-meet": (sets(servers__settings__people__isolation="per_episode"),),
    "tasks-of-another-world": (
        serves(people=server(tool("find_person"), version="1+market-7")),
        task_has(0, world="market-9"),
    ),
    "prompt-longer-than-the-context": (sets(model__context_tokens=4096), task_has(0, prompt="Where is Ana?")),
    "prompt-that-leaves-no-room-for-a-turn": (sets(sampling__max_tokens=100), sets(model__context_tokens=1024)),
    "context-beyond-the-model": (sets(model__context_tokens=256, sampling__max_tokens=16),),
    "context-that-vllm-refuses": (sets(model__context_tokens=256, sampling__max_tokens=16),),
    "missing-model-folder": (lambda patient, _: patient.set("model.path", str(patient.model)),),
    "renderer-auto-for-a-folder": (removes("model.thinking", model__renderer="chatml"),),
    "thinking-without-a-switch": (removes("model.thinking"),),
    "model-that-was-cut-off": (copies_the_model,),
    "model-without-a-tokenizer": (copies_the_model,),
    "tokenizer-that-was-cut-off": (copies_the_model,),
    "hub-model-that-is-not-here": "the hub cannot be reached from a test",
    "too-little-memory": (sets(learner__tuning="lora"), copies_the_model),
    "warm-start-without-a-solution": (task_has(0, solution=SOLVED), sets(algorithm__warm_start__weight=0.0)),
    "solution-with-a-wrong-answer": (task_has(0, solution=SOLVED), task_has(0, answer="Oslo")),
    "solution-with-too-many-turns": (task_has(0, max_turns=4), task_has(0, solution=SOLVED)),
    "solution-longer-than-the-context": (sets(model__context_tokens=4096), task_has(1, solution=SOLVED)),
    "solution-with-a-turn-longer-than-a-turn-may-be": (sets(sampling__max_tokens=64),),
    "more-learnable-tokens-than-a-step-has": (sets(algorithm__min_learnable_tokens=16),),
    "too-little-disk": (installs,),
    "outputs-that-cannot-be-written": (sets(training__outputs="outputs"),),
    "run-that-takes-days-on-a-cpu": (sets(training__steps=2),),
    "budget-that-ends-before-the-run": (sets(servers__settings__people__budget__calls=10_000),),
    "memory-that-others-use": (installs,),
    "too-little-memory-on-the-gpu": (
        sets(sampling__vllm__memory_fraction=0.1),
        sets(learner__processes=4),
        sets(learner__tuning="lora"),
    ),
    "tracker-without-a-key": (exports(WANDB_API_KEY="k" * 40), writes(".netrc", "machine api.wandb.ai")),
    "server-that-answers-anyone": (
        serves(shown={"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer key"}}),
        serves(shown=server(tool("other"))),
    ),
    "tracker-that-is-down": (sets(tracking__weave=None),),
}

# Faults of the audit against the user's documents: "doctor says ready and should not", and sick results.
OF_THE_AUDIT = (
    "warm-start-without-a-solution",
    "solution-with-a-wrong-answer",
    "solution-longer-than-the-context",
    "solution-with-a-turn-longer-than-a-turn-may-be",
    "more-learnable-tokens-than-a-step-has",
    "server-that-dies-after-every-three-calls",
    "learning-rate-of-one",
    "preamble-that-calls-a-tool-that-is-not-there",
    "tool-that-returns-nothing",
    "tool-that-returns-only-an-image",
    "tool-that-returns-an-error-as-a-success",
    "renderer-auto-for-a-folder",
    "thinking-without-a-switch",
)


def complaints(planted: Fault, findings: Sequence[Finding]) -> list[Finding]:
    of_check = [one for one in findings if one.check == planted.check and one.severity is planted.severity]
    return [one for one in of_check if planted.says in one.measured]


WAYS = [
    pytest.param(name, way, id=f"{name}-{number}")
    for name, ways in FOLLOWED.items()
    for number, way in enumerate([None] if isinstance(ways, str) else ways, start=1)
]


@pytest.mark.process
@pytest.mark.parametrize(("name", "way"), WAYS)
async def test_a_planted_fault_is_found_by_name_and_its_advice_removes_it(name, way, patient, monkeypatch):
    planted = FAULTS[name]
    only = BEFORE[planted.check.partition(" ")[0]]
    planted.plant(patient, monkeypatch)
    patient.write()
    findings = await patient.examined(only=only)
    found = complaints(planted, findings)
    assert found, "\n".join(f"{one.severity} {one.check}: {one.measured}" for one in findings)
    assert planted.fix in found[0].fix
    assert found[0].fix
    if planted.code:
        assert found[0].code == planted.code
    if way is not None:
        way(patient, monkeypatch)
        patient.write()
        assert complaints(planted, await patient.examined(only=only)) == []


def test_the_advice_of_every_fault_is_followed_or_cannot_be():
    assert set(FOLLOWED) == set(FAULTS)
    assert set(OF_THE_AUDIT) <= {name for name, ways in FOLLOWED.items() if not isinstance(ways, str)}


# Codes of errors whose advice is followed by tests elsewhere, or by none.
_RESUMED = "training/test_resumed_settings.py::test_can_be_resumed_once_the_advice_of_its_errors_is_followed"
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "E-TOOL-008": (
        "tools/test_budget.py::test_a_raised_budget_allows_the_call_that_was_refused",
        "training/test_resumed_settings.py::test_a_run_stopped_by_its_budget_ends_well_once_it_is_shortened",
    ),
    "E-TOOL-009": (
        "tools/test_cassette.py::test_following_the_advice_about_a_cassette_makes_it_usable",
        "tools/test_cassette.py::test_a_cassette_is_usable_once_no_other_process_locks_it",
        "synthesis/test_recordings.py::test_following_the_advice_about_recorded_files_makes_them_readable",
    ),
    "E-CHAT-001": ("checks/doctor/test_faults_of_models.py::test_a_template_that_rewrites_history_is_found",),
    "E-CHAT-002": (
        "checks/doctor/test_faults_of_models.py::test_a_schema_that_no_grammar_can_hold_is_found_by_its_tool",
    ),
    "E-CHAT-003": (
        "checks/doctor/test_faults_of_models.py::test_a_renderer_without_a_grammar_is_found",
        "checks/doctor/test_faults_of_models.py::test_a_renderer_that_writes_no_demonstrations_is_found",
    ),
    "E-TASK-003": ("synthesis/test_synthesize.py::test_two_hints_are_enough_for_a_server_without_a_listing",),
    "E-TASK-004": ("synthesis/test_synthesize.py::test_tools_that_may_write_are_never_called_unless_they_are_allowed",),
    "E-CHAT-004": ("chat/test_grammars.py::test_a_corrected_schema_compiles",),
    "E-EPIS-013": ("episodes/test_reward_functions.py::test_a_slow_function_counts_once_its_deadline_is_raised",),
    "E-LEARN-002": (
        "learning/test_parity_stop.py::test_one_token_far_off_among_many_stops_nothing_in_bfloat16_and_all_in_float32",
        "learning/test_parity_stop.py::test_a_sampler_with_the_weights_of_the_learner_stops_nothing",
    ),
    "E-LEARN-003": ("learning/test_non_finite.py::test_a_lower_learning_rate_ends_the_overflows",),
    "E-LEARN-004": ("learning/test_update_edges.py::test_a_model_with_windows_learns_without_shared_prefixes",),
    **dict.fromkeys(("E-RUN-001", "E-RUN-002", "E-RUN-003", "E-RUN-004"), (_RESUMED,)),
}
OUTSIDE = "what has to be repaired is outside of mcprl: a server, an agent, a machine, a network"
OURS = "it is a fault of mcprl, and the advice is to report it"
NOT_FOLLOWED = {
    **dict.fromkeys(("E-TOOL-013", "E-TOOL-014", "E-TOOL-015", "E-SAND-001", "E-SAND-010", "E-SAMP-010"), OUTSIDE),
    **dict.fromkeys(("E-SAMP-011", "E-EPIS-010", "E-EPIS-011", "E-EPIS-012", "E-EPIS-014", "E-LEARN-010"), OUTSIDE),
    **dict.fromkeys(("E-TOOL-006", "E-AGENT-010", "E-AGENT-011", "E-AGENT-012", "E-AGENT-013"), OUTSIDE),
    **dict.fromkeys(("E-ENG-010", "E-ENG-011", "E-WORK-010", "E-WORK-011", "E-RUN-011"), OUTSIDE),
    **dict.fromkeys(("E-SAMP-001", "E-SAMP-002", "E-LEARN-001"), OURS),
}


def test_the_advice_of_every_error_is_followed_or_it_is_said_why_not():
    made = [getattr(errors, name) for name in errors.__all__]
    codes = {error.code for error in made if isinstance(error, type) and "code" in vars(error)}
    followed = {FAULTS[name].code for name, ways in FOLLOWED.items() if not isinstance(ways, str)} - {""}
    for file, _, name in (place.partition("::") for places in ELSEWHERE.values() for place in places):
        assert f"def {name}(" in (Path(__file__).parents[2] / file).read_text(), name
    assert not (followed | set(ELSEWHERE)) & set(NOT_FOLLOWED)
    assert codes == followed | set(ELSEWHERE) | set(NOT_FOLLOWED)


def test_a_call_that_may_depend_on_an_earlier_one_is_not_made():
    stored = Tool(name="load", description="", server="s", parameters={}, read_only=True, episodic=True)
    free = replace(stored, name="find", episodic=False)
    solved = make_task([ToolCall(name="save", arguments={}), ToolCall(name="load", arguments={"key": "a"})])
    found = make_task([ToolCall(name="save", arguments={}), ToolCall(name="find", arguments={"key": "a"})])
    first = make_task([ToolCall(name="load", arguments={"key": "b"})])
    made = server_checks._harmless_calls
    assert [call.name for call in made([replace(stored, parameters={"required": ["key"]})], [solved])] == []
    assert [call.arguments for call in made([stored, free], [solved, found, first])] == [{"key": "a"}, {"key": "b"}]


def make_task(calls: Sequence[ToolCall]) -> Task:
    solution = Solution(calls=tuple(calls), answer="x")
    return Task(id="t", prompt=({"role": "user", "content": "?"},), goal=Goal(answer=AnyText()), solution=solution)


@pytest.mark.process
async def test_a_correct_recipe_has_no_warnings_or_errors(patient):
    patient.write()
    findings = await patient.examined()
    assert [one for one in findings if one.severity not in (Severity.OK, None)] == []
    skipped = {one.check for one in findings if one.severity is None}
    assert skipped == {"template", "grammar", "sampler", "parity", "episodes", "leaks"}


@pytest.mark.process  # nvidia-smi
@pytest.mark.parametrize("train", ["recorded-train", "recorded-validation", "processed-train"])
async def test_the_users_own_files_raise_no_false_alarm(train, patient):
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    patient.set("tasks.train", str(DATA / f"{train}.json"))
    patient.set("tasks.validation", str(DATA / "recorded-validation.json") if train == "recorded-train" else None)
    patient.write()

    async def offer_shipped_tools(examination: Examination) -> AsyncIterator[Finding]:
        examination.catalog.put(Catalog(SHIPPED_TOOLS, {}))
        yield Finding(check="catalog", severity=Severity.OK, measured="")

    shipped = Check(name="catalog", run=offer_shipped_tools)
    only = ("recipe", shipped, "tasks", "tasks and tools", "preamble", "leaks")

    async def drifted() -> list[str]:
        findings = await patient.examined(only=only)
        alarms = [one for one in findings if one.severity not in (Severity.OK, None)]
        assert {one.check for one in alarms} <= {"recorded calls"}, alarms  # they did drift
        return [one.fix for one in alarms]

    for fix in await drifted():
        for server_name, setting, aliases in re.findall(r"servers\.settings\.(\w+)\.(\w+): (\{.*?\})", fix):
            patient.set(f"servers.settings.{server_name}.{setting}", yaml.safe_load(aliases))
    patient.write()
    assert all("servers.settings" not in fix for fix in await drifted())


@pytest.mark.process
async def test_a_warm_start_says_how_many_tasks_have_a_solution(patient):
    warm(patient, {"calls": [LOOK], "answer": "Lima"}, None)
    patient.write()
    found = [one for one in await patient.examined(only=("recipe", "tasks")) if one.check == "warm start"]
    assert [(one.severity, one.measured) for one in found] == [(Severity.OK, "1 of 2 tasks have a solution to imitate")]


@pytest.mark.process
async def test_faults_of_different_stages_are_found_in_one_examination(patient):
    patient.servers["people"] = server(mood="dies")
    patient.servers["others"] = server(tool("other"))
    patient.tasks[1]["id"] = "ana"
    patient.set("training.outputs", "/proc/outputs")
    patient.set("model.path", "./no-such-model")
    patient.write()
    findings = await patient.examined()
    assert {one.check for one in findings if one.severity is BAD} == {"server people", "tasks", "model", "disk"}
    assert [one.severity for one in findings if one.check == "call others"] == [None]
    needs = {one.check: one.measured for one in findings if one.severity is None}
    assert needs["tasks and tools"] == "skipped: needs tasks that can be read"


@pytest.mark.process  # nvidia-smi
async def test_checks_that_depend_on_a_fault_are_skipped(patient):
    patient.servers["people"]["env"] = {"KEY": "${PEOPLE_KEY_OF_NOBODY}"}
    patient.set("workers.count", 2)
    patient.write()
    with pytest.MonkeyPatch.context() as monkeypatch:
        hide_modules(monkeypatch, "ray")
        findings = await patient.examined(fast=False)
    assert [one.check for one in findings if one.severity is BAD] == ["installed", "keys"]
    needs = {one.check: one.measured for one in findings if one.severity is None}
    assert needs["servers"] == "skipped: needs an mcpServers file that can be read, and its keys"
    assert needs["template"] == "skipped: needs 'installed' to be fixed first"


def test_there_are_at_least_25_faults():
    assert len(FAULTS) >= 25


# ---- how some faults are planted -------------------------------------------------------------------------------------


def hide_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in names else find(name, *rest))


def copied_model(patient: Patient):
    folder = shutil.copytree(patient.settings["model"]["path"], patient.folder / "model")
    patient.set("model.path", "./model")
    return folder
