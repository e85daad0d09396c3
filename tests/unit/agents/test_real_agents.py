"""Agents that others wrote, unmodified, each in its own environment. `scripts/setup agents` builds them."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from staged_episodes import Face, FunctionTools, make_task

from mcprl.checks.parity import measure_parity
from mcprl.episodes.stage import open_stage
from mcprl.learning import open_learner
from mcprl.progress import Silent
from mcprl.recipe import load_recipe
from mcprl.records import Source, StopReason
from mcprl.tasks import load_tasks
from mcprl.verdicts import Severity

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("real_agents")
END, EPISODES = "<|im_end|>", 16
NAMES = ("pydantic", "openai", "langgraph", "vercel")
PLAYED = [("pydantic", 1), *(pytest.param(name, EPISODES, marks=pytest.mark.full) for name in NAMES)]
pytestmark = pytest.mark.process


@pytest.fixture
def command(request) -> list[str]:
    name = request.param
    if name == "vercel":
        folder = ROOT / ".cache" / "npm" / "vercel-agent"
        program, file = Path(shutil.which("node") or "node"), folder / "vercel_agent.mjs"
        if folder.exists():
            shutil.copy(PROGRAMS / file.name, file)  # node looks for packages beside the program
    else:
        folder = ROOT / f".venv-{name}-agent"
        program, file = folder / "bin" / "python", PROGRAMS / f"{name}_agent.py"
    if not folder.exists():
        pytest.skip(f"{folder.name} is missing: run scripts/setup agents")
    return [str(program), str(file)]


def looking(text: str) -> str:
    """A turn whose JSON no SDK would write like that."""
    return f'Let me look.\n<tool_call>\n{{"name":  "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


@pytest.mark.parametrize(("command", "episodes"), PLAYED, indirect=["command"])
async def test_every_turn_continues_its_branch_with_the_ids_that_were_sampled(command, episodes, agent_stage, encode):
    said = (looking("caf\\u00e9"), looking("blue"), f"It is blue.{END}")
    parameters = {"type": "object", "properties": {"text": {"type": "string", "title": "Text"}}, "required": ["text"]}
    tools = FunctionTools(echo=lambda text: text)
    tools.tools = [Face("echo", parameters=parameters)]
    async with agent_stage(command, *said, tools=tools) as (runner, sampler):
        for member in range(episodes):
            made = await runner.run(make_task(answer="blue"), step=0, member=member, attempt=0)
            assert (made.stop, made.reward_parts["answer"]) == (StopReason.ANSWERED, 1.0)
            assert made.forks == ()
            sampled = [token for token, own in zip(made.token_ids, made.sampled, strict=True) if own]
            assert sampled == [token for text in said for token in encode(text)]
            calls = [seen for turn in made.turns for seen in turn.observations]
            assert [(seen.text, seen.source, seen.fault) for seen in calls] == [
                ("café", Source.LIVE, None),
                ("blue", Source.LIVE, None),
            ]
    assert len(sampler.requests) == 3 * episodes
    assert tools.called == ["echo"] * 2 * episodes


@pytest.mark.full
@pytest.mark.parametrize("command", NAMES, indirect=True)
async def test_the_learner_gives_the_sampled_tokens_the_sampled_probabilities(command, taught_qwen3, tmp_path):
    """With real servers and a real model, whatever it says in prompts that it does not know."""
    overrides = [f"model.path={taught_qwen3}", "engine=transformers", "model.context_tokens=4096"]
    overrides += ["sampling.constrain=calls", "sampling.max_tokens=48"]
    overrides += [f"episodes.agent.command={json.dumps(command)}"]
    config = load_recipe(ROOT / "recipes" / "hello-skyrl.yaml", overrides)
    tasks = [replace(task, max_turns=4) for task in load_tasks(config.tasks.train)[:4]]
    async with open_stage(config, tasks, Silent(), logs=tmp_path / "logs") as stage:
        runs = (stage.runner.run(task, step=0, member=m, attempt=0) for task in tasks for m in range(EPISODES // 4))
        made = await asyncio.gather(*runs)
        async with open_learner(config, folder=tmp_path, grammars=stage.grammars, engine=stage.engine) as learner:
            report = await measure_parity(config, made, learner, Silent(), decode=stage.chat.decode)
    assert len(made) == EPISODES
    assert report.verdict.severity is Severity.OK
    assert report.figures.logprob_max_abs_error < 1e-3
    assert all(trajectory.forks == () for trajectory in made)
