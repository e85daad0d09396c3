"""Episodes that a program plays: the same tokens as our own loop, and faults with an owner."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from staged_episodes import FunctionTools, RecordingSampler, make_config, make_task

from mcprl.config import AgentConfig
from mcprl.episodes import EpisodeRunner
from mcprl.episodes.stage import open_stage
from mcprl.grammar.calls import make_grammar
from mcprl.grammar.masks import Grammars, TurnGrammars
from mcprl.progress import Silent
from mcprl.recipe import load_recipe
from mcprl.records import StopReason, Trajectory
from mcprl.tasks import load_tasks
from mcprl_agents.runner import open_agents

ROOT = Path(__file__).resolve().parents[3]
HELLO_AGENT = Path(__file__).with_name("hello_agent.py")

END = "<|im_end|>"
TEXT = {"type": "string"}


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


@pytest.mark.process
async def test_a_turn_is_sampled_under_the_grammar_of_its_tools_and_its_tool_choice(chat, encode, tmp_path):
    echo = {"name": "echo", "description": "", "parameters": {"type": "object", "properties": {"text": TEXT}}}
    asked = {"tools": [{"type": "function", "function": echo}], "tool_choice": "required"}
    command = (sys.executable, "-S", str(HELLO_AGENT.with_name("plain_agent.py")), "print", json.dumps(asked))
    config = make_config(agent=AgentConfig(command=command))
    config = config.model_copy(update={"sampling": config.sampling.model_copy(update={"constrain": "calls"})})
    grammars = TurnGrammars(chat, Grammars(chat.tokenizer, len(chat.tokenizer)), config.sampling)
    sampler, tools = RecordingSampler(encode, [calling("echo", text="a") + END]), FunctionTools(echo=lambda text: text)
    async with open_agents((), tmp_path) as make_runner:
        runner = make_runner(config, chat=chat, sampler=sampler, leases=tools, preamble=(), grammars=grammars)
        trajectory = await runner.run(make_task(), step=0, member=0, attempt=0)
    [request] = sampler.requests
    assert request.grammar == trajectory.grammar_of(0) == make_grammar(chat, [echo], "calls", must_call=True)
    assert sum(trajectory.forced) > 0


@pytest.mark.process
@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--stream",)])
async def test_hello_has_the_ids_and_logprobs_of_our_own_loop_bit_for_bit(options, taught_qwen3, tmp_path):
    """With the transformers sampler and both servers, and a model that writes calls. Only the durations differ."""
    command = [sys.executable, str(HELLO_AGENT), *options]
    made: dict[bool, list[Trajectory]] = {}
    for with_agent in (False, True):
        overrides = [f"model.path={taught_qwen3}", "engine=transformers"]
        overrides += [f"episodes.agent.command={json.dumps(command)}"] if with_agent else []
        config = load_recipe(ROOT / "recipes" / "hello-skyrl.yaml", overrides)
        tasks = load_tasks(config.tasks.train)[:2]
        async with open_stage(config, tasks, Silent(), logs=tmp_path / f"logs-{with_agent}") as stage:
            made[with_agent] = [
                await stage.runner.run(task, step=0, member=member, attempt=0) for task in tasks for member in range(2)
            ]
    for true, found in zip(made[False], made[True], strict=True):
        assert len(found.turns) == 2
        assert (found.token_ids, found.logprobs) == (true.token_ids, true.logprobs)
        assert (found.turn_index, found.weights_version) == (true.turn_index, true.weights_version)
        assert found.forks == ()
