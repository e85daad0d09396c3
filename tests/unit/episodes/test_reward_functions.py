"""Reward functions in Python: their values, and what happens if they do not return one."""

from __future__ import annotations

import os

import pytest

from mcprl.config import RewardFunctionConfig
from mcprl.episodes.reward_functions import EpisodeView, RewardFunctions
from mcprl.errors import RewardFunctionError, ServerLostError, UserCodeError
from mcprl.goals import Goal
from mcprl.records import FinishReason, Observation, StopReason, Task, ToolCall, Turn

pytestmark = pytest.mark.process

TURN = Turn(
    text="…",
    sampled_ids=(1, 2),
    finish=FinishReason.STOP,
    weights_version=0,
    calls=(ToolCall(name="price", arguments={"symbol": "VLKN"}),),
    observations=(Observation(tool="price", server="market", text="213.88"),),
)
TASK = Task(id="vlkn", prompt=({"role": "user", "content": "What is the price?"},), goal=Goal(min_calls=1))


async def no_probe(call: ToolCall) -> Observation:
    raise AssertionError("nothing is probed here")


def view(answer: str | None = "213.88", probing=no_probe) -> EpisodeView:
    return EpisodeView(
        task=TASK, turns=(TURN,), answer=answer, stop=StopReason.ANSWERED, parts={"calls": 1.0}, probing=probing
    )


def opened(tmp_path, text: str, name: str = "f", **settings) -> RewardFunctions:
    (tmp_path / "rewards.py").write_text(text)
    function = RewardFunctionConfig(function=f"{tmp_path}/rewards.py:{name}", weight=1.0, **settings)
    return RewardFunctions({"own": function}, environment=os.environ, log=tmp_path / "rewards.log")


async def test_a_function_sees_the_episode_and_its_value_becomes_a_part(tmp_path):
    text = """
def f(episode):
    assert episode.task.id == "vlkn" and episode.stop == "answered" and episode.parts["calls"] == 1.0
    assert [call.name for call in episode.calls] == ["price"]
    return float(episode.answer in episode.observations[0].text)
"""
    async with opened(tmp_path, text) as functions:
        assert await functions.grade(view()) == {"own": 1.0}
        assert await functions.grade(view("214")) == {"own": 0.0}


async def test_an_async_function_may_probe_the_tools_that_the_recipe_lists(tmp_path):
    asked = []

    async def probe(call: ToolCall) -> Observation:
        asked.append(call)
        return Observation(tool=call.name, server="desk", text="open: 2")

    text = (
        "async def f(episode):\n    seen = await episode.probe('tickets', status='open')\n    return '2' in seen.text\n"
    )
    async with opened(tmp_path, text, probes=("tickets",)) as functions:
        assert await functions.grade(view(probing=probe)) == {"own": 1.0}
    assert asked == [ToolCall(name="tickets", arguments={"status": "open"})]
    async with opened(tmp_path, text) as functions:
        with pytest.raises(UserCodeError, match=r"rewards\.py:2: PermissionError: 'tickets' is not in `probes`"):
            await functions.grade(view(probing=probe))


async def test_a_server_that_fails_a_probe_loses_the_episode_and_blames_no_function(tmp_path):
    async def probe(call: ToolCall) -> Observation:
        raise ServerLostError("server 'desk' went away", fix="see its log")

    text = "async def f(episode):\n    return len((await episode.probe('tickets')).text)\n"
    async with opened(tmp_path, text, probes=("tickets",)) as functions:
        with pytest.raises(ServerLostError):
            await functions.grade(view(probing=probe))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", r"rewards\.py:5: KeyError"),
        ("return None", "returned None, a NoneType; return a number from -1 to 1"),
        ("return 'good'", "returned 'good', a str"),
        ("return float('nan')", "returned nan"),
        ("return 1.5", r"returned 1\.5"),
        ("return json.loads('{')", r"rewards\.py:5: JSONDecodeError"),
        ("episode.answer = 'x'\n    return 1.0", r"rewards\.py:5: FrozenInstanceError"),
        ("sys.exit(3)", "SystemExit"),
        ("os._exit(3)", "the process of the reward functions ended with 3"),
    ],
)
async def test_a_function_that_returns_no_number_is_named_with_its_line(tmp_path, body, said):
    text = f"import json, os, sys\n\n\ndef f(episode):\n    {body}\n"
    async with opened(tmp_path, text) as functions:
        with pytest.raises(UserCodeError, match=said) as raised:
            await functions.grade(view())
    assert "(task vlkn, 1 turns)" in raised.value.what


BLOCKED = {
    "waits": "time.sleep(60)",
    "computes": "sum(1 for _ in iter(int, 1))",
    "holds the GIL": "re.match('(a+)+$', 'a' * 40 + 'b')",
}


@pytest.mark.parametrize("how", BLOCKED)
async def test_a_function_that_misses_its_deadline_is_stopped_where_it_is(tmp_path, how):
    text = (
        f"import re, time\n\n\ndef f(episode):\n    if episode.answer == 'x':\n        {BLOCKED[how]}\n    return 1.0\n"
    )
    async with opened(tmp_path, text, deadline_s=0.5, on_error="lose_episode") as functions:
        with pytest.raises(RewardFunctionError, match=r"rewards\.py:6: .* took longer than 0\.5 s"):
            await functions.grade(view("x"))
        assert await functions.grade(view("y")) == {"own": 1.0}  # by another process


async def test_a_slow_function_counts_once_its_deadline_is_raised(tmp_path):
    text = "import time\n\n\ndef f(episode):\n    time.sleep(0.3)\n    return 1.0\n"
    async with opened(tmp_path, text, deadline_s=0.1, on_error="lose_episode") as functions:
        with pytest.raises(RewardFunctionError, match="deadline_s"):
            await functions.grade(view())
    async with opened(tmp_path, text, deadline_s=60, on_error="lose_episode") as functions:
        assert await functions.grade(view()) == {"own": 1.0}


async def test_what_a_function_prints_goes_to_the_log_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("DESK_API_KEY", "desk-key-0123456789")
    text = "import os\n\n\ndef f(episode):\n    print('key', os.environ['DESK_API_KEY'])\n    return 1.0\n"
    async with opened(tmp_path, text) as functions:
        await functions.grade(view())
    log = (tmp_path / "rewards.log").read_text()
    assert "key" in log
    assert "desk-key-0123456789" not in log


@pytest.mark.parametrize(
    ("text", "said"),
    [("def f(:\n", r"rewards\.py:1: SyntaxError"), ("import nothing_here\n", r"rewards\.py:1: ModuleNotFoundError")],
)
async def test_code_that_cannot_be_imported_is_refused_at_the_start(tmp_path, text, said):
    with pytest.raises(UserCodeError, match=said):
        async with opened(tmp_path, text):
            pass
