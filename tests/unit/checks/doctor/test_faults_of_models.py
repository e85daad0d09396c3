"""Faults that only a model shows: its template, the grammar, sampler against learner, and its episodes."""
# R25

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import replace

import pytest
from patients import Patient, server, tool, well_patient

from mcprl.chat.writing import CALL_SYNTAXES
from mcprl.checks.doctor import Finding
from mcprl.checks.doctor.play_checks import _own_functions, foretell_learnable, judge_groups
from mcprl.config import RewardFunctionConfig
from mcprl.episodes.reward_functions import RewardFunctions
from mcprl.goals import Contains, Goal
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Group, LostEpisode, Observation, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.samplers.transformers import TransformersSampler
from mcprl.verdicts import Severity

# What a model is needed for, and what that needs.
BEFORE_TEMPLATE = {"recipe", "model", "template"}
BEFORE_GRAMMAR = BEFORE_TEMPLATE | {"keys", "tasks", "servers", "grammar", "prompt length"}


def only(findings: tuple[Finding, ...], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


@pytest.fixture
def tiny(tmp_path, taught_qwen3) -> Patient:
    return well_patient(tmp_path, taught_qwen3)


async def test_a_template_that_rewrites_history_is_found(tiny, taught_qwen3, tmp_path):
    folder = shutil.copytree(taught_qwen3, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if loop.last or m.role != 'assistant' %}[{{ m.role }}]{{ m.content }}{% else %}"
        "[was]{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tiny.set("model.path", str(folder))
    tiny.set("model.renderer", "template")
    tiny.write()
    found = only(await tiny.examined(fast=False, only=BEFORE_TEMPLATE), "template")
    assert (found.severity, found.code) == (Severity.BAD, "E-CHAT-001")
    assert "rewrites earlier parts of a conversation" in found.measured
    assert "set model.renderer" in found.fix
    tiny.set("model.renderer", "chatml")
    tiny.write()
    assert only(await tiny.examined(fast=False, only=BEFORE_TEMPLATE), "template").severity is Severity.OK


@pytest.mark.process
async def test_a_schema_that_no_grammar_can_hold_is_found_by_its_tool(tiny):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "not": {"required": ["name"]}}
    tiny.servers = {"people": server(tool("find_person", **schema))}
    tiny.set("sampling.constrain", "act")
    tiny.write()
    found = only(await tiny.examined(fast=False, only=BEFORE_GRAMMAR), "grammar")
    assert (found.severity, found.code) == (Severity.BAD, "E-CHAT-002")
    assert "'find_person'" in found.measured
    assert "sampling.loose_tools" in found.fix
    tiny.set("sampling.loose_tools", ["find_person"])
    tiny.write()
    assert only(await tiny.examined(fast=False, only=BEFORE_GRAMMAR), "grammar").severity is Severity.OK


@pytest.fixture
def templated(tiny, taught_qwen3, tmp_path, monkeypatch) -> Patient:
    """As `tiny`, rendered by the template of its model, and as if nobody knew how it writes calls."""
    monkeypatch.delitem(CALL_SYNTAXES, "template")
    folder = shutil.copytree(taught_qwen3, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tiny.set("model.path", str(folder))
    tiny.set("model.renderer", "template")
    return tiny


@pytest.mark.process
@pytest.mark.parametrize("follow", [{"sampling.constrain": "off"}, {"model.renderer": "chatml"}])
async def test_a_renderer_without_a_grammar_is_found(templated, follow):
    templated.set("sampling.constrain", "act")
    templated.write()
    found = only(await templated.examined(fast=False, only=BEFORE_GRAMMAR), "grammar")
    assert (found.severity, found.code) == (Severity.BAD, "E-CHAT-003")
    assert "set sampling.constrain to off" in found.fix
    assert "chatml" in found.fix
    for name, value in follow.items():
        templated.set(name, value)
    templated.write()
    assert only(await templated.examined(fast=False, only=BEFORE_GRAMMAR), "grammar").severity is Severity.OK


@pytest.mark.process
@pytest.mark.parametrize("follow", [{"algorithm.warm_start.weight": 0.0}, {"model.renderer": "chatml"}])
async def test_a_renderer_that_writes_no_demonstrations_is_found(templated, follow):
    templated.set("algorithm.warm_start.weight", 1.0)
    templated.set("sampling.max_tokens", 128)
    templated.tasks[0]["solution"] = {
        "calls": [{"name": "find_person", "arguments": {"name": "Ana"}}],
        "answer": "Lima",
    }
    templated.write()
    upto_sampler = BEFORE_GRAMMAR | {"sampler"}
    (found,) = [one for one in await templated.examined(fast=False, only=upto_sampler) if one.code == "E-CHAT-003"]
    assert "set algorithm.warm_start.weight to 0" in found.fix
    assert "chatml" in found.fix
    for name, value in follow.items():
        templated.set(name, value)
    templated.write()
    findings = await templated.examined(fast=False, only=upto_sampler)
    assert [one for one in findings if one.severity is Severity.BAD] == []


@pytest.mark.process
async def test_schemas_that_compile_are_said_to_and_prompts_are_rendered(tiny):
    tiny.set("sampling.constrain", "act")
    tiny.write()
    findings = await tiny.examined(fast=False, only=BEFORE_GRAMMAR)
    assert only(findings, "grammar").severity is Severity.OK
    assert "rendered as in the run" in only(findings, "prompt length").measured
    assert "give the same tokens" in only(findings, "template").measured


@pytest.fixture(scope="module")
def played(tmp_path_factory, taught_qwen3) -> tuple[Finding, ...]:
    """The whole examination of a correct recipe, with a policy whose turns are cut before a call is complete."""
    patient = well_patient(tmp_path_factory.mktemp("played"), taught_qwen3)
    patient.set("rewards.penalty", 0.0)  # so that episodes which all fail earn the same
    patient.write()
    return asyncio.run(patient.examined(fast=False))


@pytest.mark.process
def test_the_sampler_comes_up_and_the_learner_agrees_with_it(played):
    assert only(played, "sampler").severity is Severity.OK
    assert only(played, "parity").severity is Severity.OK
    assert "exact" in only(played, "parity").measured
    assert not [finding for finding in played if finding.severity is Severity.BAD]
    assert [finding.check for finding in played if finding.severity is None] == ["leaks", "tool latency"]


@pytest.mark.process
def test_without_a_valid_call_the_fix_is_a_warm_start_or_a_grammar(played):
    found = only(played, "valid calls")
    assert found.severity is Severity.WARN
    assert "algorithm.warm_start.weight" in found.fix
    assert "sampling.constrain to act" in found.fix


@pytest.mark.process
def test_groups_whose_rewards_are_all_equal_are_found(played):
    found = only(played, "rewards")
    assert found.severity is Severity.WARN
    assert "2 of 2 groups have zero variance" in found.measured
    assert "group_size" in found.fix


@pytest.mark.process
def test_episodes_that_never_answer_are_found(played):
    found = only(played, "answers")
    assert found.severity is Severity.WARN
    assert "0 of 4 episodes ended with an answer (cut by length)" in found.measured
    assert "raise sampling.max_tokens (now 4)" in found.fix


@pytest.mark.process
async def test_with_the_advised_grammar_and_room_calls_are_valid(tiny):
    tiny.set("sampling.constrain", "act")
    tiny.set("sampling.max_tokens", 64)
    tiny.write()
    findings = await tiny.examined(fast=False, only=BEFORE_GRAMMAR | {"sampler", "episodes"})
    assert only(findings, "valid calls").severity is Severity.OK
    assert "cut by length" not in only(findings, "answers").measured


@pytest.mark.process
def test_forecast_memory_and_disk_are_those_that_were_measured(played):
    assert "based on the sample episodes" in only(played, "forecast").measured
    assert "measured: sampler" in only(played, "memory").measured
    assert not only(played, "disk").measured.startswith("about")


@pytest.mark.process
async def test_a_sampler_that_disagrees_with_the_learner_is_found(tiny, monkeypatch):
    class Other(TransformersSampler):
        """Reports logprobs of other weights than the learner's."""

        async def sample(self, request):
            drawn = await super().sample(request)
            return replace(drawn, logprobs=tuple(logprob - 1.0 for logprob in drawn.logprobs))

    monkeypatch.setattr("mcprl.samplers.transformers.TransformersSampler", Other)
    tiny.write()
    found = only(await tiny.examined(fast=False), "parity")
    assert (found.severity, found.code) == (Severity.BAD, "E-LEARN-002")
    assert "more than rounding error" in found.measured
    assert "load the current weights of model.path" in found.fix


@pytest.mark.process
async def test_a_solution_with_a_turn_that_is_too_long_is_found_and_others_are_played(tiny):
    tiny.set("algorithm.warm_start.weight", 1.0)
    call = {"name": "find_person", "arguments": {"name": "Ana"}}
    tiny.tasks[0]["solution"] = {"calls": [call], "answer": "Lima"}
    upto_sampler = BEFORE_GRAMMAR | {"sampler"}
    tiny.write()
    told, found = [one for one in await tiny.examined(fast=False, only=upto_sampler) if one.check == "warm start"]
    assert told.severity is Severity.OK
    assert (found.severity, found.code) == (Severity.BAD, "E-CONF-003")
    assert "have a turn that exceeds sampling.max_tokens (4)" in found.measured
    assert "raise sampling.max_tokens" in found.fix

    tiny.set("sampling.max_tokens", 128)
    tiny.write()
    findings = await tiny.examined(fast=False, only=upto_sampler)
    assert [one.measured for one in findings if one.check == "warm start"] == [
        "1 of 2 tasks have a solution to imitate",
        "ran 1 of 1 solutions: each solves its task",
    ]


# ---- findings about a sample of episodes, from groups made by hand ---------------------------------------------------


def trajectory(member: int, reward: float, *observations: Observation, stop=StopReason.ANSWERED) -> Trajectory:
    calls = tuple(ToolCall(name=seen.tool, arguments={}) for seen in observations)
    turn = Turn(
        text="x",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=calls,
        observations=observations,
    )
    return Trajectory(
        task_id="ana",
        step=0,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=(0, 1),
        sampled=(False, True),
        forced=(False, False),
        fixed=(False, False),
        logprobs=(0.0, -0.5),
        turn_index=(-1, 0),
        weights_version=(-1, 0),
        turns=(turn,),
        stop=stop,
        reward=reward,
        reward_parts={"answer": reward},
    )


def seen(latency_s: float) -> Observation:
    return Observation(tool="find_person", server="people", text="Lima", latency_s=latency_s)


TASK = Task(id="ana", prompt=({"role": "user", "content": "?"},), goal=Goal(answer=Contains(text="Lima")))


def judged(
    patient: Patient, *trajectories: Trajectory, lost: tuple[LostEpisode, ...] = (), solutions: int = 0
) -> dict[str, Finding]:
    patient.write()
    group = Group(task=TASK, trajectories=trajectories, lost=lost)
    findings = judge_groups(load_recipe(patient.recipe), [group], 1.0, solutions=solutions)
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(("solutions", "severity"), [(0, Severity.WARN), (1, Severity.OK)])
def test_a_warm_start_makes_up_for_missing_calls_only_if_a_task_has_a_solution(patient, solutions, severity):
    patient.set("algorithm.warm_start.weight", 1.0)
    found = judged(patient, trajectory(0, 0.0), trajectory(1, 0.0), solutions=solutions)["valid calls"]
    assert found.severity is severity


def test_episodes_that_crashed_their_server_are_found_with_their_task(patient):
    caused = [trajectory(n, -0.1, seen(0.01), stop=StopReason.CAUSED_FAULT) for n in range(2)]
    found = judged(patient, *caused)["server crashes"]
    assert found.severity is Severity.WARN
    assert "2 episodes crashed their tool server, and crashed it again when rerun (first: task ana)" in found.measured


@pytest.mark.process
async def test_a_reward_function_is_found_until_it_does_not_depend_on_its_process(tmp_path):
    file, groups = tmp_path / "rewards.py", [Group(task=TASK, trajectories=(trajectory(0, 1.0), trajectory(1, 1.0)))]
    settings = {"own": RewardFunctionConfig(function=f"{file}:own", weight=1.0)}

    async def found(value: str) -> Finding | None:
        file.write_text(f"import random\n\ndef own(episode):\n    return {value}\n")
        async with RewardFunctions(settings, environment=os.environ, log=tmp_path / "rewards.log") as functions:
            return await _own_functions(functions, groups)

    finding = await found("random.random()")
    assert finding is not None
    assert finding.severity is Severity.WARN
    assert "do not use the clock, process ids or unseeded random numbers" in finding.fix
    assert await found("random.Random(episode.task.id).random()") is None


@pytest.mark.parametrize(("least", "severity"), [(7, None), (11, Severity.WARN), (13, Severity.BAD)])
def test_steps_with_too_few_learnable_tokens_are_foretold_from_the_sample(patient, least, severity):
    patient.set("algorithm.min_learnable_tokens", least)
    patient.write()
    long = trajectory(0, 0.0)
    longer = replace(
        long,
        **{
            name: getattr(long, name) * 3
            for name in ("token_ids", "sampled", "forced", "fixed", "logprobs", "turn_index", "weights_version")
        },
    )
    assert (sum(long.sampled), sum(longer.sampled)) == (1, 3)
    found = foretell_learnable(load_recipe(patient.recipe), [long, longer])  # 4 episodes a step: about 8, at most 12
    assert (None if found is None else found.severity) is severity


def test_a_healthy_sample_has_no_warnings(patient):
    findings = judged(patient, trajectory(0, 1.0, seen(0.01)), trajectory(1, 0.0, seen(0.03)))
    assert {finding.severity for finding in findings.values()} == {Severity.OK}
    assert "p50 10 ms, p95 30 ms over 2 calls" in findings["tool latency"].measured
    assert findings["valid calls"].measured == "100% of 2 calls"


def test_a_tool_that_is_nearly_too_slow_is_found_with_its_setting(patient):
    patient.set("servers.settings.people.call_deadline_s", 1.0)
    found = judged(patient, trajectory(0, 1.0, seen(0.9)), trajectory(1, 0.0, seen(0.1)))["tool latency"]
    assert found.severity is Severity.WARN
    assert "raise call_deadline_s or replicas in servers.settings.people" in found.fix
    patient.set("servers.settings.people.call_deadline_s", 2.0)
    followed = judged(patient, trajectory(0, 1.0, seen(0.9)), trajectory(1, 0.0, seen(0.1)))["tool latency"]
    assert followed.severity is Severity.OK


def test_attempts_lost_to_infrastructure_are_found_with_their_cause(patient):
    lost = LostEpisode(task_id="ana", member=0, attempt=0, code="E-TOOL-011", reason="server 'people' went away")
    found = judged(patient, trajectory(0, 1.0), trajectory(1, 0.0), lost=(lost,))["lost episodes"]
    assert found.severity is Severity.WARN
    assert "E-TOOL-011 server 'people' went away" in found.measured


@pytest.mark.parametrize("text", ["", "[image omitted]", '{"error": "quota"}', "Error: no such person"])
def test_results_that_the_policy_cannot_use_are_found_in_the_sample(patient, text):
    sick = Observation(tool="find_person", server="people", text=text, latency_s=0.01)
    found = judged(patient, trajectory(0, 1.0, sick), trajectory(1, 0.0, sick))["tool results"]
    assert found.severity is Severity.WARN
    assert "find_person returned" in found.measured


def test_a_result_that_reports_no_error_is_not_taken_for_one(patient):
    for text in ('{"error": null, "price": 3}', '{"price": 3, "error": ""}', "No errors found"):
        well = Observation(tool="find_person", server="people", text=text, latency_s=0.01)
        assert "tool results" not in judged(patient, trajectory(0, 1.0, well), trajectory(1, 0.0, well))


def test_imitation_is_advised_only_with_what_it_needs(patient):
    dead = [trajectory(0, 0.0), trajectory(1, 0.0)]
    without, has = judged(patient, *dead), judged(patient, *dead, solutions=2)
    for check in ("valid calls", "rewards"):
        assert "give tasks a solution and start with imitation" in without[check].fix
        assert "give tasks a solution" not in has[check].fix


def test_the_findings_of_a_sample_can_be_written_as_json(patient):
    findings = judged(patient, trajectory(0, 1.0), trajectory(1, 0.0))
    assert json.loads(json.dumps(findings["rewards"].to_json()))["severity"] == "ok"
