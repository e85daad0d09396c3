"""Simulated users: a function in Python, or a model behind an endpoint. Their faults are never the policy's."""
# R19

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, call, make_task

from mcprl.config import RewardsConfig, TasksConfig, UserConfig
from mcprl.episodes import user_model
from mcprl.episodes.environment import Action, Environment, require_users
from mcprl.episodes.reward_functions import RewardFunctions, code_of
from mcprl.episodes.user_model import UserModel
from mcprl.errors import BadValueError, BudgetExceededError, InfrastructureError, UserCodeError, UserModelError
from mcprl.records import FinishReason, SimulatedUser, StopReason
from scripted_endpoint import always, endpoint, response

pytestmark = pytest.mark.process

IMPATIENT = """
def f(episode):
    asked = sum(bool(turn.follow_up) for turn in episode.turns)
    return None if "Lima" in episode.answer else f"{asked + 1}: not {episode.answer}"
"""


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(user_model, "_WAITS_S", (0.0, 0.0))


def task_of(user: SimulatedUser):
    return replace(make_task(answer="Lima"), user=user)


@asynccontextmanager
async def environment_of(task, tmp_path, model: UserModel | None = None, **settings):
    code = code_of(RewardsConfig(), [task])
    opening = RewardFunctions({}, environment=os.environ, log=tmp_path / "log", code=code, user=model)
    async with opening as functions:
        tools = FunctionTools(find=lambda: "Ana: Lima")
        yield Environment(
            task, tools, preamble=(), max_turns=3, rewards=RewardsConfig(), functions=functions, **settings
        )


def says(text: str, *calls) -> Action:
    return Action(text=text, prose=text, calls=calls, sampled_ids=(1,), finish=FinishReason.STOP, weights_version=0)


def written(tmp_path, text: str) -> SimulatedUser:
    (tmp_path / "users.py").write_text(text)
    return SimulatedUser(function=f"{tmp_path}/users.py:f", max_messages=2)


async def test_a_function_replies_until_it_has_what_it_wants(tmp_path):
    async with environment_of(task_of(written(tmp_path, IMPATIENT)), tmp_path) as environment:
        first = await environment.step(says("Oslo"))
        assert (first.stop, first.follow_up) == (None, ({"role": "user", "content": "1: not Oslo"},))
        assert (await environment.step(says("", call("find")))).follow_up == ()
        last = await environment.step(says("Lima"))
        assert (last.stop, last.follow_up, environment.reward) == (StopReason.ANSWERED, (), 1.0)
    assert environment.turns[0].follow_up == first.follow_up


async def test_the_conversation_ends_after_the_most_messages(tmp_path):
    async with environment_of(task_of(written(tmp_path, IMPATIENT)), tmp_path) as environment:
        stops = [(await environment.step(says("Oslo"))).stop for _ in range(3)]
    assert stops == [None, None, StopReason.ANSWERED]
    assert environment.reward == 0.0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise KeyError('x')", r"users\.py:2: KeyError"),
        ("return 3", r"users\.py:1: .* returned 3, of type int; .* return a string, or None to end the conversation"),
        ("return ' '", r"users\.py:1: .* returned ' ', of type str; it must return a string"),
        ("episode.task.metadata['x'] = 1", r"users\.py:1: .* modified its episode"),
    ],
)
async def test_a_function_that_fails_stops_the_run_with_its_line(tmp_path, body, problem):
    async with environment_of(task_of(written(tmp_path, f"def f(episode):\n    {body}\n")), tmp_path) as environment:
        with pytest.raises(UserCodeError, match=problem):
            await environment.step(says("Oslo"))
    assert environment.turns == []


def completion(content: str | None) -> str:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})


PLAYED = task_of(SimulatedUser(instructions="You want Ana's city."))


async def test_a_model_sees_its_instructions_and_the_conversation_but_no_calls(tmp_path):
    texts = ["Her city, not Oslo.", "DONE."]
    async with (
        endpoint(lambda number: response("200 OK", completion(texts[number]))) as served,
        UserModel(UserConfig(url=served.url, model="m")) as model,
        environment_of(PLAYED, tmp_path, model) as environment,
    ):
        assert (await environment.step(says("Oslo"))).follow_up == ({"role": "user", "content": texts[0]},)
        await environment.step(says("Let me see", call("find")))
        assert (await environment.step(says("Lima"))).stop is StopReason.ANSWERED
    assert environment.reward == 1.0
    body = served.requests[1][1]
    assert (body["model"], body["temperature"]) == ("m", 0)
    system, _, asked, *rest = body["messages"]
    assert "You want Ana's city." in system["content"]
    assert asked == {"role": "assistant", "content": PLAYED.prompt[0]["content"]}
    assert [(message["role"], message["content"]) for message in rest] == [
        ("user", "Oslo"),
        ("assistant", texts[0]),
        ("user", "Lima"),
    ]


@pytest.mark.parametrize(
    "script",
    [
        always("busy", "429 Too Many Requests"),
        always("broken", "500 Internal Server Error"),
        always("not JSON"),
        always(completion(None)),
        always(completion(" ")),
        lambda _: None,
    ],
)
async def test_a_fault_of_the_model_loses_the_episode_and_is_no_turn(tmp_path, script):
    async with (
        endpoint(script) as served,
        UserModel(UserConfig(url=served.url, model="m")) as model,
        environment_of(PLAYED, tmp_path, model) as environment,
    ):
        with pytest.raises(UserModelError, match="E-EPIS-014") as caught:
            await environment.step(says("Oslo"))
    assert isinstance(caught.value, InfrastructureError)
    assert environment.turns == []


async def test_the_models_budget_is_never_exceeded(tmp_path):
    config = {"model": "m", "price": (10.0, 100.0), "max_usd": 0.06}
    async with (
        endpoint(always(completion("And now?"))) as served,
        UserModel(UserConfig(url=served.url, **config)) as model,
        environment_of(PLAYED, tmp_path, model) as environment,
    ):
        assert (await environment.step(says("Oslo"))).stop is None
        assert model.use.usd == pytest.approx(90 * 10e-6 + 10 * 100e-6)
        with pytest.raises(BudgetExceededError, match=r"raise tasks\.user\.max_usd"):
            await environment.step(says("Oslo " * 1000))
    assert model.use.usd <= 0.06
    with pytest.raises(ValueError, match="max_usd needs price"):
        UserConfig(url="http://x", model="m", max_usd=1.0)


def test_instructions_without_a_model_are_refused_before_anything_starts():
    config = TasksConfig(train="tasks.jsonl")
    with pytest.raises(BadValueError, match=r"no model to play users.*Fix: set tasks\.user"):
        require_users([PLAYED], config)
    require_users([PLAYED], config.model_copy(update={"user": UserConfig(url="http://x", model="m")}))
    with pytest.raises(BadValueError, match="simulated user"):
        Environment(PLAYED, FunctionTools(), preamble=(), max_turns=3, rewards=RewardsConfig())
