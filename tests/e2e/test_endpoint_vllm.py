"""The same model, played by mcprl itself and behind an endpoint: at temperature 0, prompts, tokens and scores agree."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter

import pytest
from shared_vllm import ANSWER_S, MAX_SEQUENCES, SharedVllm, forwarded

from mcprl.config import EpisodesConfig, LearnerConfig, ModelConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.episodes import endpoint_runner
from mcprl.episodes.endpoint import EndpointSettings
from mcprl.evaluation.harness import Request, evaluate
from mcprl.evaluation.outcomes import TaskSuite
from mcprl.goals import ExpectedCall, Goal
from mcprl.progress import Silent
from mcprl.records import Task, Trajectory
from mcprl.samplers.vllm import VllmSampler
from mcprl.servers.directory import PEOPLE

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(1800)]

NAMES = ("Ana", "Bola", "Chen", "Divya", "Fatima", "Grace", "Hiro", "Kayla")  # whom the taught model knows
# The tool of the time server, with a clock that stands still: the second player would read another time.
CLOCK = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("time", log_level="ERROR")


@server.tool()
async def get_current_time(timezone: str) -> str:
    return f"2026-11-19T10:58:16 {timezone}"


server.run("stdio")
"""
QUESTIONS = (
    "What time is it at {name}'s office?",
    "What time is it at {name}'s office",
    "It is late. What time is it at {name}'s office?",
    "What time is it now, at {name}'s office?",
    "At {name}'s office, what time is it?",
    "{name}'s office: what time is it?",
    "{name}: time?",
)


def task(number: int, question: str, name: str) -> Task:
    # Every other goal wants somebody else's time zone, so that scores differ.
    whose = NAMES[NAMES.index(name) - number % 2]
    zone = next(person["timezone"] for person in PEOPLE if person["name"] == whose)
    calls = {"find_person": {"name": name}, "get_current_time": {"timezone": zone}}
    return Task(
        id=f"{number}-{name}",
        prompt=({"role": "user", "content": question.format(name=name)},),
        goal=Goal(calls=tuple(ExpectedCall(tool=tool, arguments=arguments) for tool, arguments in calls.items())),
        tools=tuple(calls),
        max_turns=2,
    )


TASKS = tuple(task(number, question, name) for number, question in enumerate(QUESTIONS) for name in NAMES)


class TaughtVllm(SharedVllm):
    """A vLLM with a model that calls tools."""

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(path=str(self.model_path), renderer="chatml", dtype="float32", context_tokens=1024)


@pytest.fixture
def taught_vllm(root, taught_qwen3, tmp_path):
    """The model has the chat template that `renderer: chatml` is: endpoints render prompts by the template.

    They tokenize whole conversations, so no token may span the beginning of a turn. Unlike those of real models, this
    vocabulary has such tokens.
    """
    folder = shutil.copytree(taught_qwen3, tmp_path / "model")
    shutil.copy(root / "scripts" / "chatml-tools.jinja", folder / "chat_template.jinja")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"String": "assistant\n"}, "behavior": "MergedWithPrevious", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, tokenizer["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    served = TaughtVllm(folder, tmp_path / "vllm.log")
    yield served
    served.close()


def turns_of(trajectory: Trajectory) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The prompt and the sampled tokens of each turn up to the first whose call cannot be read.

    The API's messages have no place for such a call, so an endpoint reads something else in later turns.
    """
    starts = [trajectory.turn_index.index(turn) for turn in range(len(trajectory.turns))]
    found = [
        (trajectory.token_ids[:start], turn.sampled_ids) for start, turn in zip(starts, trajectory.turns, strict=True)
    ]
    unread = [number for number, turn in enumerate(trajectory.turns) if any(call.problem for call in turn.calls)]
    return found[: unread[0] + 1] if unread else found


async def test_an_endpoint_scores_what_the_built_in_player_scores(taught_vllm, monkeypatch, tmp_path):
    (tmp_path / "clock.py").write_text(CLOCK)
    servers = {
        "directory": {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]},
        "time": {"command": sys.executable, "args": [str(tmp_path / "clock.py")]},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    # A recipe may not ask for 0. At a low temperature, close calls are drawn by seeds, which differ between the two.
    sampling = taught_vllm.sampling.model_copy(update={"temperature": 0.0, "max_tokens": 24})
    config = RunConfig(
        name="people",
        model=taught_vllm.model,
        tasks=TasksConfig(train=tmp_path / "unused.jsonl"),
        servers=ServersConfig(file=tmp_path / "servers.json"),
        sampling=sampling,
        episodes=EpisodesConfig(max_concurrent=16, deadline_s=ANSWER_S),
    )
    suite = TaskSuite("people", TASKS)
    assert len(TASKS) >= 50
    seen, read_reply = Counter[tuple[tuple[int, ...], tuple[int, ...]]](), endpoint_runner.read_reply

    def noted(response):
        answer = response.json()
        seen[tuple(answer["prompt_token_ids"]), tuple(answer["choices"][0]["token_ids"])] += 1
        return read_reply(response)

    monkeypatch.setattr(endpoint_runner, "read_reply", noted)
    with taught_vllm.lent():
        own = await evaluate(Request(config=config, suite=suite), Silent(), logs=tmp_path / "own")
        sampler = VllmSampler(
            taught_vllm.model,
            sampling,
            LearnerConfig(),
            max_sequences=MAX_SEQUENCES,
            turn_deadline_s=ANSWER_S,
            log=tmp_path / "vllm.log",
        )
        async with sampler, forwarded(sampler.replicas[0].socket) as url:
            # The server has no parser of calls; they are read from the text.
            body = {"tool_choice": "none", "return_token_ids": True}
            endpoint = EndpointSettings(url=url, model="base", price=(1.0, 2.0), body=body)
            request = Request(config=config, suite=suite, endpoint=endpoint)
            there = await evaluate(request, Silent(), logs=tmp_path / "there")
    same, turns = (
        Counter(turn for t in own.trajectories for turn in turns_of(t)),
        sum(len(t.turns) for t in own.trajectories),
    )
    assert not same - seen
    assert turns == seen.total() <= 1.25 * same.total()
    assert [(task.id, task.solved, task.reward) for task in there.evaluation.tasks] == [
        (task.id, task.solved, task.reward) for task in own.evaluation.tasks
    ]
    assert 0.0 < own.evaluation.figures.success.value < 1.0, "equal scores say little if all are equal"
    assert max(len(trajectory.turns) for trajectory in own.trajectories) == 2
    for one, other in zip(own.trajectories, there.trajectories, strict=True):
        if len(turns_of(one)) == len(one.turns):
            assert one.token_counts == other.token_counts
    used = there.evaluation.endpoint
    assert used is not None
    assert there.evaluation.usd == pytest.approx((used.prompt_tokens + 2 * used.completion_tokens) / 1e6)
