"""What an agent does wrong has a name and an owner, and none of its processes survives."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest
from staged_episodes import make_task

from mcprl.errors import AgentFailedError, AgentHungError, AgentRequestError, AgentSilentError
from mcprl.records import StopReason

pytestmark = pytest.mark.process
END = "<|im_end|>"
PLAIN = (sys.executable, "-S", str(Path(__file__).with_name("plain_agent.py")))
ANSWER, UNKNOWN = f"It is blue.{END}", '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'


def processes_with(mark: str) -> list[str]:
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(pid) != os.getpid():
            found.append(command)
    return found


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        (
            "echo 'No module named agents' >&2; exit 3",
            AgentFailedError,
            "exit code 3 before it called the model: No mod",
        ),
        ("kill -9 $$", AgentFailedError, "signal 9"),
        ("exit 0", AgentSilentError, "without calling the model"),
        ("sleep 1000", AgentHungError, "did nothing for 1 s"),
        ("yes", AgentRequestError, "more than 1 MiB"),
    ],
)
async def test_an_agent_that_fails_by_itself_loses_the_episode_and_leaves_no_process(script, error, says, agent_stage):
    mark = uuid.uuid4().hex
    children = f"setsid sh -c 'sleep 1000; : {mark}' & (sh -c 'sleep 1000; : {mark}' &) ; : {mark}; {script}"
    async with agent_stage(("sh", "-c", children), ANSWER, deadline_s=1.0 if "sleep" in script else 60.0) as (
        runner,
        _,
    ):
        with pytest.raises(error, match=says) as raised:
            await runner.run(make_task(), step=0, member=0, attempt=0)
    assert raised.value.turns == ((),)
    assert processes_with(mark) == []


async def test_an_error_after_a_mistake_of_the_policy_is_the_policys(agent_stage):
    async with agent_stage((*PLAIN, "fail"), UNKNOWN) as (runner, _):
        trajectory = await runner.run(make_task(), step=0, member=0, attempt=0)
    assert (trajectory.stop, trajectory.answer) == (StopReason.AGENT_ENDED, None)
    assert trajectory.reward_parts["invalid_call"] == 1.0
    assert sum(trajectory.sampled) == len(trajectory.turns[0].sampled_ids)


async def test_an_error_without_a_mistake_is_the_agents_unless_only_this_episode_fails_again(agent_stage):
    async with agent_stage((*PLAIN, "fail"), ANSWER) as (runner, _):
        for attempt in range(4):
            with pytest.raises(AgentFailedError, match="exit code 1 after 1 turns: ModelBehaviorError"):
                await runner.run(make_task(), step=0, member=0, attempt=attempt)
        runner._finished = 1
        trajectory = await runner.run(make_task(), step=0, member=0, attempt=2)
    assert trajectory.stop is StopReason.AGENT_ENDED


async def test_turns_beyond_the_limit_end_the_episode(agent_stage):
    async with agent_stage((*PLAIN, "loop"), ANSWER) as (runner, sampler):
        trajectory = await runner.run(make_task(max_turns=2), step=0, member=0, attempt=0)
    assert (trajectory.stop, len(trajectory.turns), len(sampler.requests)) == (StopReason.TURN_LIMIT, 2, 2)


async def test_a_prompt_beyond_the_context_ends_the_episode(agent_stage):
    async with agent_stage((*PLAIN, "loop"), ANSWER, context_tokens=64) as (runner, _):
        trajectory = await runner.run(make_task(max_turns=50), step=0, member=0, attempt=0)
    assert trajectory.stop is StopReason.CONTEXT_LIMIT
    assert 1 <= len(trajectory.turns) < 10


async def test_an_agent_that_hangs_after_its_turn_is_to_blame(agent_stage):
    async with agent_stage((*PLAIN, "hang"), ANSWER, deadline_s=20.0) as (runner, _):
        with pytest.raises(AgentHungError):
            await runner.run(make_task(), step=0, member=0, attempt=0)


async def test_stdout_is_the_answer(agent_stage):
    async with agent_stage((*PLAIN, "print"), ANSWER) as (runner, _):
        trajectory = await runner.run(make_task(answer="blue"), step=0, member=0, attempt=0)
    assert (trajectory.stop, trajectory.answer, trajectory.reward) == (StopReason.ANSWERED, "It is blue.", 1.0)
