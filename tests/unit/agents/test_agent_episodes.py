"""Episodes that a program plays: the same tokens as our own loop, and faults with an owner."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, RecordingSampler, make_config, make_task

from conftest import HELLO_AGENT
from mcprl.episodes import EpisodeRunner
from mcprl.records import StopReason

END = "<|im_end|>"
ECHO = {"type": "object", "properties": {"text": {"type": "string"}}}


def calling(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--stream",)])
async def test_an_agent_of_forty_lines_leaves_the_record_of_our_own_loop(options, agent_stage, chat, encode):
    said = (calling("echo", text="blue"), calling("echo", text="café"), f"It is blue.{END}")
    own_sampler = RecordingSampler(encode, said)
    tools = FunctionTools(echo=lambda text: text)
    own = EpisodeRunner(make_config(), chat=chat, sampler=own_sampler, leases=tools, preamble=())
    true = await own.run(make_task(answer="blue"), step=2, member=3, attempt=0)
    async with agent_stage((sys.executable, str(HELLO_AGENT), *options), *said) as (runner, sampler):
        made = await runner.run(make_task(answer="blue"), step=2, member=3, attempt=0)
    assert true.stop is StopReason.ANSWERED
    assert [request.seed for request in sampler.requests] == [request.seed for request in own_sampler.requests]
    assert replace(made, duration_s=0.0) == replace(true, duration_s=0.0)
