"""The same model, played by mcprl itself and behind an endpoint: at temperature 0, the scores of every task agree."""

from __future__ import annotations

import json
import sys

import pytest
from shared_vllm import ANSWER_S, MAX_SEQUENCES, forwarded

from mcprl.config import EpisodesConfig, LearnerConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.episodes.endpoint import EndpointSettings
from mcprl.evaluation.harness import Request, evaluate
from mcprl.evaluation.outcomes import TaskSuite
from mcprl.goals import Contains, ExpectedCall, Goal
from mcprl.progress import Silent
from mcprl.records import Task
from mcprl.samplers.vllm import VllmSampler
from mcprl.servers.directory import PEOPLE

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(1800)]

QUESTIONS = (
    ("Which time zone is {name}'s office in?", "timezone"),
    ("In which city does {name} work?", "city"),
    ("Find {name} and say the city.", "city"),
    ("Is {name} in {city}? Answer with the city.", "city"),
)
TASKS = tuple(
    Task(
        id=f"{number}-{person['name']}",
        prompt=({"role": "user", "content": question.format(**person)},),
        goal=Goal(
            answer=Contains(text=person[field]),
            calls=(ExpectedCall(tool="find_person", arguments={"name": person["name"]}),),
        ),
        tools=("find_person",),
        max_turns=2,
    )
    for number, (question, field) in enumerate(QUESTIONS)
    for person in PEOPLE[:13]
)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="prompts differ: renderer template shows a tool's function alone, vLLM also the object around it",
)
async def test_an_endpoint_scores_what_the_built_in_player_scores(shared_vllm, tmp_path):
    servers = {"mcpServers": {"directory": {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]}}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    # A recipe may not ask for 0. At a low temperature, close calls are drawn by seeds, which differ between the two.
    sampling = shared_vllm.sampling.model_copy(update={"temperature": 0.0, "max_tokens": 40})
    config = RunConfig(
        name="people",
        model=shared_vllm.model.model_copy(update={"renderer": "template"}),  # as the endpoint renders prompts
        tasks=TasksConfig(train=tmp_path / "unused.jsonl"),
        servers=ServersConfig(file=tmp_path / "servers.json"),
        sampling=sampling,
        episodes=EpisodesConfig(max_concurrent=16, deadline_s=ANSWER_S),
    )
    suite = TaskSuite("people", TASKS)
    assert len(TASKS) >= 50
    with shared_vllm.lent():
        own = (await evaluate(Request(config=config, suite=suite), Silent(), logs=tmp_path / "own")).evaluation
        sampler = VllmSampler(
            shared_vllm.model,
            sampling,
            LearnerConfig(),
            max_sequences=MAX_SEQUENCES,
            turn_deadline_s=ANSWER_S,
            log=tmp_path / "vllm.log",
        )
        async with sampler, forwarded(sampler.replicas[0].socket) as url:
            # The server has no parser of calls; they are read from the text.
            endpoint = EndpointSettings(url=url, model="base", price=(1.0, 2.0), body={"tool_choice": "none"})
            request = Request(config=config, suite=suite, endpoint=endpoint)
            there = (await evaluate(request, Silent(), logs=tmp_path / "there")).evaluation
    assert [(task.id, task.solved, task.reward) for task in there.tasks] == [
        (task.id, task.solved, task.reward) for task in own.tasks
    ]
    assert [e.sampled_tokens for e in there.episodes] == [e.sampled_tokens for e in own.episodes]
    assert there.endpoint is not None
    assert there.usd == pytest.approx((there.endpoint.prompt_tokens + 2 * there.endpoint.completion_tokens) / 1e6)
