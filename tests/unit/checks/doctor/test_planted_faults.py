"""Faults that cost people weeks, planted in a correct recipe: each is found by name, with its fix."""
# R25

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest
from patients import Patient, server, task, tool

from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.pins import write_pins
from mcprl.verdicts import Severity

BAD, WARN = Severity.BAD, Severity.WARN
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


@fault("recipe", BAD, "recipe.yaml:1", "correct the YAML there", "E-CONF-001")
def bad_yaml(patient, monkeypatch):
    patient.files["recipe.yaml"] = "name: [small"


@fault("recipe", BAD, "cannot read", "give the path of a recipe", "E-CONF-001")
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


@fault("installed", BAD, "workers.count is above 0, which needs ray", "pip install 'mcprl[ray]'", "E-CONF-004")
def missing_extra(patient, monkeypatch):
    patient.set("workers.count", 2)
    hide_modules(monkeypatch, "ray")


@fault("installed", BAD, "engine is vllm", "set engine to transformers", "E-CONF-004")
def missing_vllm(patient, monkeypatch):
    patient.set("engine", "vllm")
    hide_modules(monkeypatch, "vllm")


@fault("installed", BAD, "which does not exist", "scripts/setup", "E-CONF-004")
def missing_environment_of_skyrl(patient, monkeypatch):
    patient.set("engine", "skyrl")
    patient.set("learner.max_grad_norm", None)
    patient.set("skyrl.python", "nowhere/bin/python")


@fault("installed", WARN, "this machine: learner.tuning is lora_4bit, which needs bitsandbytes", "mcprl[four-bit]")
def four_bits_without_their_library_on_a_machine_without_a_gpu(patient, monkeypatch):
    patient.set("learner.tuning", "lora_4bit")
    hide_modules(monkeypatch, "bitsandbytes")


@fault("GPUs", WARN, "this machine has no GPUs, but learner.processes 4 needs 4", "a machine with 4 GPUs")
def more_processes_than_gpus(patient, monkeypatch):
    patient.set("learner.processes", 4)


# ---- keys and servers ------------------------------------------------------------------------------------------------


@fault("keys", BAD, "PEOPLE_KEY_OF_NOBODY for server 'people'", "set each in the environment", "E-TOOL-007")
def missing_key(patient, monkeypatch):
    patient.servers["people"]["env"] = {"KEY": "${PEOPLE_KEY_OF_NOBODY}"}


@fault("keys", BAD, "the judge needs a key, but JUDGE_KEY_OF_NOBODY is not set", "rewards.judge.key_env", "E-TOOL-007")
def missing_key_of_the_judge(patient, monkeypatch):
    patient.set("rewards.judge", {"url": "http://127.0.0.1:9/v1", "model": "none", "key_env": "JUDGE_KEY_OF_NOBODY"})


@fault("keys", BAD, "cannot be read", "create it with NAME=value lines", "E-TOOL-007")
def missing_file_of_keys(patient, monkeypatch):
    patient.set("servers.env_file", "keys.env")


@fault("server file", BAD, "elsewhere.json cannot be read", "path of an mcpServers file", "E-TOOL-001")
def missing_server_file(patient, monkeypatch):
    patient.set("servers.file", "elsewhere.json")


@fault("server file", BAD, "is not JSON", "correct the file at that place", "E-TOOL-001")
def server_file_that_is_no_json(patient, monkeypatch):
    patient.files["servers.json"] = "{"


@fault("server file", BAD, "'poeple', which is not in", "correct the name", "E-TOOL-001")
def settings_of_a_server_that_does_not_exist(patient, monkeypatch):
    patient.set("servers.settings.poeple.call_deadline_s", 3)


@fault("server people", BAD, "no-such-program", "correct its entry in servers.json", "E-TOOL-010")
def server_command_not_found(patient, monkeypatch):
    patient.servers["people"] = {"command": "no-such-program"}


@fault("server people", BAD, "the licence has expired", "run its command by hand", "E-TOOL-010")
def server_that_dies_at_start(patient, monkeypatch):
    patient.servers["people"] = server(mood="dies")


@fault("server people", BAD, "0.5 s", "servers.settings.people.start_deadline_s", "E-TOOL-010")
def server_that_hangs_at_start(patient, monkeypatch):
    patient.servers["people"] = server(mood="hangs")
    patient.set("servers.settings.people.start_deadline_s", 0.5)


@fault("server idle", WARN, "offers no tool", "servers.settings.idle.allow")
def one_server_without_tools(patient, monkeypatch):
    patient.servers["idle"] = server()


@fault("server people", WARN, "stdout, which is for MCP messages only: ", "print and log to stderr")
def server_that_prints_to_stdout(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="chatty")


@fault("catalog", BAD, "the servers together offer no tool", "enable a server that lists tools", "E-TOOL-004")
def tools_that_were_never_initialised(patient, monkeypatch):
    patient.servers["people"] = server()


@fault("catalog", BAD, "'people' and 'others' both offer a tool 'find_person'", "deny one of the tools", "E-TOOL-002")
def two_servers_with_the_same_tool(patient, monkeypatch):
    patient.servers["others"] = server(tool("find_person"))


@fault("server people", BAD, "'find_person'", "", "E-TOOL-005")
def tool_with_a_broken_schema(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person", type="object", properties={"name": {"type": "strnig"}}))


@fault("server people", BAD, "'find_person' with a schema that puts more than 10000", ".deny", "E-LIMIT-001")
def tool_with_references_that_multiply(patient, monkeypatch):
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(22)}
    schema = {"type": "object", "$defs": {**twice, "d22": {}}, "$ref": "#/$defs/d0"}
    patient.servers["people"] = server(tool("find_person", **schema))


@fault("server people", WARN, "the pattern '^(?!x)' of find_person is not enforced", "exclude the tool with deny")
def tool_with_a_pattern_that_is_not_linear(patient, monkeypatch):
    name = {"type": "string", "pattern": "^(?!x)"}
    patient.servers["people"] = server(tool("find_person", type="object", properties={"name": name}))


@fault("call people", BAD, "find_person", "call_deadline_s", "E-TOOL-012")
def tool_slower_than_its_deadline(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="slow")
    patient.set("servers.settings.people", {"call_deadline_s": 0.2, "attempts": 1})


@fault("call people", WARN, "rejected a call that should work: No such person.", "mcprl tools call")
def tool_that_refuses_the_call_of_a_task(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), mood="refuses")


@fault("call people", BAD, "exited after 3 calls", "make the server stay up", "E-TOOL-011")
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
    "call people", WARN, """an error as a success: {"error": "quota""", "servers.settings.people.errors to [{match: "
)
def tool_that_returns_an_error_as_a_success(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), content=[{"type": "text", "text": '{"error": "quota"}'}])


@fault("pins", BAD, "changed 'find_person'", "mcprl tools pin", "E-TOOL-006")
def description_that_changed_since_it_was_pinned(patient, monkeypatch):
    pin(patient, "people", "Town of a colleague.")


@fault("pins", BAD, "pins no tools of server 'people'", "mcprl tools pin", "E-TOOL-006")
def server_that_was_never_pinned(patient, monkeypatch):
    pin(patient, "peoples", "City of a colleague.")


# ---- tasks -----------------------------------------------------------------------------------------------------------


@fault("tasks", BAD, "elsewhere.jsonl", "", "E-TASK-001")
def missing_task_file(patient, monkeypatch):
    patient.set("tasks.train", "elsewhere.jsonl")


@fault("tasks", BAD, "train.jsonl:2", "correct that field", "E-TASK-001")
def bad_row(patient, monkeypatch):
    patient.tasks[1] = {"id": "hiro", "prompt": "Where is Hiro?", "anwser": "Lima"}


@fault("tasks", BAD, "a second task has the id 'ana'", "give it another id", "E-TASK-001")
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


@fault("names in prompts", WARN, "'find_persons' (did you mean 'find_person'?)", "as the server lists it")
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


@fault("solvable", BAD, "a turn for its calls and one for its answer, but may take 1 turn", "raise episodes.max_turns")
def too_few_turns(patient, monkeypatch):
    patient.tasks[0]["max_turns"] = 1


@fault("recorded calls", WARN, "no longer fit the tools", "servers.settings.people.argument_aliases: {nane: name}")
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


@fault("duplicates", WARN, "twice asks the same as ana", "keep one of each")
def question_that_stands_twice(patient, monkeypatch):
    patient.tasks.append(task("twice", "Ana"))


@fault("leaks", BAD, "ana asks the same as judged (validation.jsonl", "mcprl tasks validate")
def validation_task_in_training(patient, monkeypatch):
    patient.files["validation.jsonl"] = json.dumps(task("judged", "Ana"))


@fault("answers in prompts", WARN, "1 of 2 tasks have their answer in the question", "only a tool can answer")
def answer_in_the_prompt(patient, monkeypatch):
    patient.tasks[0]["prompt"] = "Ana is in Lima. Where is Ana?"


@fault("scoring", BAD, "task ana", "", "E-CONF-003")
def goal_that_nothing_can_be_gained_from(patient, monkeypatch):
    for part in ("answer", "calls", "arguments", "efficiency"):
        patient.set(f"rewards.{part}", 0.0)


@fault("scoring", BAD, "checked by its rubric alone", "set rewards.judge", "E-CONF-003")
def rubric_without_a_judge(patient, monkeypatch):
    patient.tasks[0] = {"id": "ana", "prompt": "Where is Ana?", "rubric": "Is it friendly?"}


@fault("scoring", WARN, "1 of 2 tasks have a rubric, but there is no judge", "set rewards.judge")
def rubric_that_is_left_out(patient, monkeypatch):
    patient.tasks[0]["rubric"] = "Is it friendly?"


@fault("worlds", BAD, "world market-7, but server 'people' serves the world market-9", "--world 7", "E-TASK-002")
def tasks_of_another_world(patient, monkeypatch):
    patient.servers["people"] = server(tool("find_person"), version="1+market-9")
    patient.tasks[0]["world"] = "market-7"


@fault("prompt length", BAD, "fill model.context_tokens (512)", "raise model.context_tokens", "E-CONF-003")
def prompt_longer_than_the_context(patient, monkeypatch):
    patient.tasks[0]["prompt"] = "Where is Ana? " * 200


@fault("prompt length", WARN, "a prompt and a turn of sampling.max_tokens (500)", "lower sampling.max_tokens")
def prompt_that_leaves_no_room_for_a_turn(patient, monkeypatch):
    patient.set("sampling.max_tokens", 500)


# ---- the model and the machine ---------------------------------------------------------------------------------------


@fault("model", BAD, "there is no such folder", "correct model.path", "E-CONF-003")
def missing_model_folder(patient, monkeypatch):
    patient.set("model.path", "./no-such-model")


@fault(
    "renderer",
    BAD,
    "model.renderer is auto",
    "chatml or to template; for chatml and template, also remove",
    "E-CONF-003",
)
def renderer_auto_for_a_folder(patient, monkeypatch):
    patient.set("model.renderer", "auto")
    patient.set("model.thinking", False)


@fault(
    "renderer", BAD, "model.thinking is false, but chatml has no switch for it", "remove model.thinking", "E-CONF-003"
)
def thinking_without_a_switch(patient, monkeypatch):
    patient.set("model.thinking", False)


@fault("model", BAD, "model.safetensors is missing, truncated", "download or copy the whole model again", "E-CONF-003")
def model_that_was_cut_off(patient, monkeypatch):
    folder = copied_model(patient)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])


@fault("model", BAD, "has no tokenizer", "copy the tokenizer's files", "E-CONF-003")
def model_without_a_tokenizer(patient, monkeypatch):
    (copied_model(patient) / "tokenizer.json").unlink()


@fault("model", BAD, "tokenizer.json is not a tokenizer, or was cut off", "copy the whole model again", "E-CONF-003")
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


def warm(patient, *solutions: dict | None) -> None:
    patient.set("algorithm.warm_start.weight", 1.0)
    for line, solution in zip(patient.tasks, solutions, strict=True):
        if solution is not None:
            line["solution"] = solution


LOOK = {"name": "find_person", "arguments": {"name": "Ana"}}


@fault("warm start", BAD, "but 0 of the 2 tasks have a solution", "give tasks a solution", "E-CONF-003")
def warm_start_without_a_solution(patient, monkeypatch):
    warm(patient, None, None)


@fault("warm start", BAD, "task ana does not meet its goal: 'In Oslo'", "correct the solution")
def solution_with_a_wrong_answer(patient, monkeypatch):
    warm(patient, {"calls": [LOOK], "answer": "In Oslo"}, None)


@fault("warm start", BAD, "takes more than the 3 turns", "raise episodes.max_turns", "E-CONF-003")
def solution_with_too_many_turns(patient, monkeypatch):
    warm(patient, {"calls": [LOOK] * 3, "answer": "Lima"}, None)
    patient.tasks[0]["max_turns"] = 3


@fault(
    "warm start",
    BAD,
    "1 solutions with their prompts are longer than model.context_tokens (512)",
    "raise model.context_tokens",
)
def solution_longer_than_the_context(patient, monkeypatch):
    warm(patient, None, {"calls": [LOOK], "answer": "Lima " * 600})


@fault("warm start", BAD, "1 solutions have a turn longer than sampling.max_tokens (4)", "raise sampling.max_tokens")
def solution_with_a_turn_longer_than_a_turn_may_be(patient, monkeypatch):
    warm(patient, {"calls": [LOOK], "answer": "Lima"}, None)


@fault("learnable tokens", BAD, "have at most", "lower algorithm.min_learnable_tokens (default 16)", "E-CONF-003")
def more_learnable_tokens_than_a_step_has(patient, monkeypatch):
    patient.set("algorithm.min_learnable_tokens", 100_000)


@fault("disk", BAD, "a checkpoint takes", "training.outputs", "E-RUN-005")
def too_little_disk(patient, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(GB, GB, 100))


@fault("disk", BAD, "is not writable", "a folder that you may write to", "E-RUN-010")
def outputs_that_cannot_be_written(patient, monkeypatch):
    patient.set("training.outputs", "/proc/outputs")


@fault("forecast", WARN, "servers.settings.people.budget.calls is 3", "raise that budget")
def budget_that_ends_before_the_run(patient, monkeypatch):
    patient.set("servers.settings.people.budget.calls", 3)


@fault("trackers", WARN, "no answer at http://127.0.0.1:9/v1/traces", "start it, correct its address")
def tracker_that_is_down(patient, monkeypatch):
    patient.set("tracking.opentelemetry.endpoint", "http://127.0.0.1:9/v1/traces")


@pytest.mark.process
@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_found_by_name_with_its_fix(name, patient, monkeypatch):
    planted = FAULTS[name]
    planted.plant(patient, monkeypatch)
    patient.write()
    findings = await patient.examined()
    found = [one for one in findings if one.check == planted.check and one.severity is planted.severity]
    assert found, "\n".join(f"{one.severity} {one.check}: {one.measured}" for one in findings)
    said = next((one for one in found if planted.says in one.measured), found[0])
    assert planted.says in said.measured
    assert planted.fix in said.fix
    assert said.fix
    if planted.code:
        assert said.code == planted.code


@pytest.mark.process
async def test_a_correct_recipe_has_no_warnings_or_errors(patient):
    patient.write()
    findings = await patient.examined()
    assert [one for one in findings if one.severity not in (Severity.OK, None)] == []
    skipped = {one.check for one in findings if one.severity is None}
    assert skipped == {"template", "grammar", "sampler", "parity", "episodes"}


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
    assert [one.severity for one in findings if one.check == "call others"] == [Severity.OK]
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
    assert needs["template"] == "skipped: needs 'installed' fixed first"


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


def pin(patient: Patient, name: str, description: str) -> None:
    listed = tool("find_person", description)
    definition = ToolDefinition(
        name="find_person", description=description, parameters=listed["inputSchema"], read_only=True
    )
    write_pins(patient.folder / "pins.json", {name: ("1", [definition])})
    patient.set("servers.pins", "pins.json")
