"""Demonstrations in an agent's own prompts: its requests are answered from the solution of the task."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from staged_episodes import Face, FunctionTools, call, make_config, make_task

from mcprl.config import AgentConfig
from mcprl.episodes.demonstrations import Demonstrator
from mcprl.errors import TaskFileError
from mcprl.records import Solution, Source, StopReason
from mcprl_agents.runner import open_agents

pytestmark = pytest.mark.process
HELLO_AGENT = (sys.executable, str(Path(__file__).with_name("hello_agent.py")))
PYDANTIC_AI = Path(__file__).resolve().parents[3] / ".venv-pydantic-agent" / "bin" / "python"
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SOLUTION = Solution(calls=(call("echo", text="blue"), call("echo", text="café")), answer="It is blue.")


def echoing() -> FunctionTools:
    tools = FunctionTools(echo=lambda text: text)
    tools.tools = [Face("echo", parameters=PARAMETERS)]
    return tools


async def demonstrated(task, chat, logs, *, command=HELLO_AGENT):
    config = make_config(agent=AgentConfig(command=command))
    async with open_agents((task,), logs) as runner_class:
        demonstrator = Demonstrator(
            config, chat=chat, leases=echoing(), preamble=(), grammars=None, runner_class=runner_class
        )
        (trajectory,) = await demonstrator.play([task], 0)
        return trajectory


async def test_an_agent_with_our_prompts_demonstrates_what_our_own_loop_does(chat, tmp_path):
    task = make_task(answer="blue", solution=SOLUTION)
    own = Demonstrator(make_config(), chat=chat, leases=echoing(), preamble=(), grammars=None)
    (true,) = await own.play([task], 0)
    made = await demonstrated(task, chat, tmp_path)
    assert true.stop is StopReason.ANSWERED
    assert replace(made, duration_s=0.0) == replace(true, duration_s=0.0)


async def test_a_solution_that_does_not_solve_its_task_is_refused(chat, tmp_path):
    with pytest.raises(TaskFileError, match=r"the solution of task task does not solve the task \(answer 0"):
        await demonstrated(make_task(answer="green", solution=SOLUTION), chat, tmp_path)


async def test_a_demonstration_of_pydantic_ai_has_its_own_instructions(chat, tmp_path):
    if not PYDANTIC_AI.exists():
        pytest.skip(".venv-pydantic-agent is missing: run scripts/setup pydantic-agent")
    program = Path(__file__).with_name("real_agents") / "pydantic_agent.py"
    task = make_task(answer="blue", solution=SOLUTION)
    made = await demonstrated(task, chat, tmp_path, command=(str(PYDANTIC_AI), str(program)))
    assert "Use the tools to answer." in chat.decode(made.token_ids)
    assert [seen.source for turn in made.turns for seen in turn.observations] == [Source.LIVE, Source.LIVE]
    assert (made.stop, made.forks) == (StopReason.ANSWERED, ())
