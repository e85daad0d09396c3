"""`McpTextEnv` as SkyRL calls it: synchronous, from many threads, over real servers."""
# R24

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest

from mcprl.errors import BadValueError, ServerLostError, TaskFileError, UnknownToolError
from mcprl_skyrl_gym import McpTextEnv

pytestmark = pytest.mark.process  # the first environment of a process starts the servers


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def make(recipe, line, *, max_turns=3, **settings):
    extras = {"mcprl_task": json.dumps(line), "max_turns": max_turns}
    return McpTextEnv({}, extras, recipe=str(recipe), **settings)


def replace_config(stage, config):
    changed = copy(stage)
    changed.config = config
    return changed


def prompt_of(line):
    return [{"role": "user", "content": line["prompt"]}]


@pytest.mark.process
def test_an_episode_runs_from_prompt_to_call_to_answer(recipe, tasks):
    env = make(recipe, tasks["note"])
    conversation, info = env.init(prompt_of(tasks["note"]))
    assert info == {"task_id": "note"}
    assert [message["role"] for message in conversation] == ["system", "user"]
    assert '"name": "note"' in conversation[0]["content"]

    first = env.step(call("note", text="tea") + "<|im_end|>")
    assert (first["done"], first["metadata"]["stop"], first["postprocessed_action"]) == (False, None, None)
    ((role, text),) = [(message["role"], message["content"]) for message in first["observations"]]
    assert role == "tool"
    assert text.endswith("tea")

    last = env.step("Well, it is done.<|im_end|>")
    env.close()
    assert (last["done"], last["observations"], last["metadata"]["stop"]) == (True, [], "answered")
    assert first["reward"] + last["reward"] == 1.0
    metrics = env.get_metrics()
    assert (metrics["reward"], metrics["success"], metrics["calls"], metrics["stop_answered"]) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.process
def test_the_user_of_a_task_replies_to_answers(recipe, tasks):
    follow_up = {"prompt": "Now <|im_end|> crash.", "tools": ["crash"]}
    line = {**tasks["note"], "tools": ["note"], "setup": [{"tool": "note", "arguments": {"text": "tea"}}]}
    line["follow_ups"] = ["Really?", follow_up]
    with pytest.raises(BadValueError, match="allows 9 turns"):
        make(recipe, line)
    env = make(recipe, line, max_turns=9)
    conversation, _ = env.init(prompt_of(line))
    assert '"crash"' not in conversation[0]["content"]
    first = env.step("Done.<|im_end|>")
    assert (first["done"], first["observations"]) == (False, [{"role": "user", "content": "Really?"}])
    ((role, text),) = [(said["role"], said["content"]) for said in env.step("Yes.<|im_end|>")["observations"]]
    assert role == "user"
    assert '"name": "crash"' in text
    assert "<|im_end|>" not in text
    assert env.step("It is done.<|im_end|>")["done"]
    env.close()


@pytest.mark.process
def test_the_recipes_limit_of_turns_ends_an_episode(recipe, tasks):
    line = {**tasks["note"], "max_turns": 1}
    env = make(recipe, line, max_turns=1)
    env.init(prompt_of(line))
    only = env.step(call("note", text="tea"))
    env.close()
    assert only["done"]
    assert only["metadata"]["stop"] == "turn_limit"
    assert only["observations"]


@pytest.mark.process
def test_a_lost_episode_returns_the_reward_of_its_turns_and_says_why(recipe, tasks):
    env = make(recipe, tasks["crash"])
    env.init(prompt_of(tasks["crash"]))
    earned = env.step(call("note", text="tea"))
    lost = env.step(call("crash"))
    env.close()
    assert earned["reward"] > 0
    assert (lost["done"], lost["reward"], lost["observations"]) == (True, -earned["reward"], [])
    assert lost["metadata"]["infrastructure_fault"] == "E-TOOL-011"
    assert "frail" in lost["metadata"]["reason"]
    assert env.get_metrics() == {"infrastructure_fault": 1.0, "infrastructure_fault_code": "E-TOOL-011"}


@pytest.mark.process
def test_strict_raises_the_fault(recipe, tasks):
    env = make(recipe, tasks["crash"], strict=True)
    env.init(prompt_of(tasks["crash"]))
    with pytest.raises(ServerLostError):
        env.step(call("crash"))
    env.close()


@pytest.mark.process
def test_an_episode_whose_tools_cannot_be_leased_ends_at_its_first_turn(recipe, tasks, monkeypatch):
    env = make(recipe, tasks["greet"])

    async def fail():
        raise ServerLostError("server 'meeting' is gone", fix="start it")

    monkeypatch.setattr(env._episode, "open", fail)
    conversation, _ = env.init(prompt_of(tasks["greet"]))
    assert conversation[-1]["content"] == "Do greet."
    step = env.step("done")
    env.close()
    assert (step["done"], step["reward"], step["metadata"]["infrastructure_fault"]) == (True, 0.0, "E-TOOL-011")


@pytest.mark.process
def test_a_call_without_an_answer_ends_at_the_episodes_deadline(recipe, tasks):
    env = make(recipe, tasks["hang"])
    config = env._stage.config
    hurried = config.episodes.model_copy(update={"deadline_s": 0.5})
    env._episode = replace_config(env._stage, config.model_copy(update={"episodes": hurried})).episode(env._task)
    env.init(prompt_of(tasks["hang"]))
    step = env.step(call("hang"))
    env.close()
    assert step["done"]
    assert step["metadata"]["infrastructure_fault"] == "E-EPIS-010"


@pytest.mark.process
def test_an_episode_whose_own_turns_took_too_long_is_scored_and_not_lost(recipe, tasks, monkeypatch):
    env = make(recipe, tasks["note"])
    env.init(prompt_of(tasks["note"]))
    env.step(call("note", text="tea"))
    deadline_s = env._stage.config.episodes.deadline_s
    env._episode._played_s = deadline_s
    monkeypatch.setattr(env._episode, "_age_s", lambda: deadline_s + 1)
    step = env.step("done")
    env.close()
    assert (step["done"], step["metadata"]["stop"]) == (True, "deadline")
    assert step["metadata"]["reward_parts"]["unanswered"] == 1.0


@pytest.mark.process
def test_many_threads_play_at_once(recipe, tasks):
    # `meet` answers only when all are there.
    number = 8
    barrier = threading.Barrier(number)

    def play():
        env = make(recipe, tasks["greet"])
        env.init(prompt_of(tasks["greet"]))
        barrier.wait(timeout=60)
        step = env.step(call("meet", count=number))
        env.close()
        return step["observations"][0]["content"]

    with ThreadPoolExecutor(number) as pool:
        seen = [played.result(timeout=60) for played in [pool.submit(play) for _ in range(number)]]
    assert seen == [f"{number} met"] * number


@pytest.mark.parametrize(
    ("line", "settings", "error", "said"),
    [
        ({"tools": ["fax"]}, {}, UnknownToolError, "fax"),
        ({"answer": None}, {}, TaskFileError, "the task checks nothing"),
        ({}, {"max_turns": 1}, BadValueError, "generator.max_turns is 1"),
        ({}, {"overrides": ("sampling.constrain=calls",)}, BadValueError, "turns constrained by a grammar"),
        ({}, {"overrides": ("episodes.injected_errors=0.1",)}, BadValueError, "injected errors"),
    ],
)
def test_faults_of_recipe_or_row_are_raised_when_the_environment_is_made(recipe, tasks, line, settings, error, said):
    with pytest.raises(error, match=said):
        make(recipe, {**tasks["greet"], **line}, **settings)


def test_settings_in_skyrls_configuration_are_refused(recipe, tasks):
    with pytest.raises(BadValueError, match="recipe"):
        McpTextEnv({"recipe": "x"}, {"mcprl_task": json.dumps(tasks["greet"])}, recipe=str(recipe))


def test_a_row_without_a_task_is_refused(recipe):
    with pytest.raises(TaskFileError, match="mcprl_task"):
        McpTextEnv({}, {}, recipe=str(recipe))


def test_a_prompt_that_is_not_the_tasks_is_refused(recipe, tasks):
    env = make(recipe, tasks["greet"])
    with pytest.raises(BadValueError, match="greet"):
        env.init(prompt_of(tasks["note"]))


def test_metrics_of_lost_episodes_are_counted_and_not_averaged():
    played = {"infrastructure_fault": 0.0, "reward": 0.5}
    lost = {"infrastructure_fault": 1.0, "infrastructure_fault_code": "E-TOOL-011"}
    assert McpTextEnv.aggregate_metrics([played, {**played, "reward": 1.0}, lost, lost]) == {
        "reward": 0.75,
        "infrastructure_fault": 0.5,
        "infrastructure_fault_E-TOOL-011": 0.5,
    }
    assert McpTextEnv.aggregate_metrics([]) == {"infrastructure_fault": 0.0}
