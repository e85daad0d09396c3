"""Fixtures for episodes: tools made of functions, scripted turns, small configurations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcprl.config import (
    EpisodesConfig,
    ModelConfig,
    RewardsConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    TasksConfig,
)
from mcprl.errors import Fault
from mcprl.goals import AnyText, Contains, ExpectedText, Goal
from mcprl.records import (
    FinishReason,
    Group,
    LostEpisode,
    Observation,
    Solution,
    Source,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from mcprl.samplers import Completion, SampleRequest

MODELS = Path(__file__).resolve().parents[3] / ".cache" / "models"
ANY_TEXT = AnyText()
Tool = Callable[..., "str | Awaitable[str]"]


@dataclass
class Face:
    """What the policy is told about a tool."""

    name: str
    description: str = "A tool."
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


class Refusal(Exception):
    """A tool raises this to say no to the policy."""


class FunctionTools:
    """Tools that are functions, behind the face that an episode calls; it leases itself.

    Those whose names begin with an underscore are not on offer: only the environment calls them.
    """

    def __init__(self, **functions: Tool) -> None:
        self._functions = functions
        self.tools = [Face(name) for name in functions if not name.startswith("_")]
        self.leased: list[Sequence[str] | None] = []
        self.probes: list[Sequence[str]] = []
        self.lives_s: list[float] = []
        self.called: list[str] = []
        self.probed: list[str] = []
        self.open_leases = 0

    async def call(self, call: ToolCall, *, without: Collection[str] = (), instead: Any = None) -> Observation:
        is_possible = call.problem is None and call.name in self._functions and call.name not in without
        if is_possible and instead is not None and (shown := instead(call.name)) is not None:
            return shown
        if call.name not in without:
            self.called.append(call.name)
        return await self._run(call, without)

    async def probe(self, call: ToolCall) -> Observation:
        self.probed.append(call.name)
        return await self._run(call)

    async def _run(self, call: ToolCall, without: Collection[str] = ()) -> Observation:
        if call.problem is not None or call.name not in self._functions or call.name in without:
            text = call.problem or f"There is no tool '{call.name}'."
            return Observation(tool=call.name, server=None, text=text, fault=Fault.POLICY)
        try:
            result = self._functions[call.name](**call.arguments)
            text = await result if inspect.isawaitable(result) else result
        except Refusal as refusal:
            return Observation(tool=call.name, server="functions", text=str(refusal), fault=Fault.POLICY)
        return Observation(tool=call.name, server="functions", text=str(text), latency_s=0.25)

    @asynccontextmanager
    async def lease(self, tool_names: Sequence[str] | None, *, probes: Sequence[str], lives_s: float):
        self.leased.append(tool_names)
        self.probes.append(probes)
        self.lives_s.append(lives_s)
        self.open_leases += 1
        try:
            yield self
        finally:
            self.open_leases -= 1


class RecordingSampler:
    """Says the texts it is given, turn by turn, and keeps the requests. A text may be a coroutine function to await."""

    def __init__(self, encode: Callable[[str], list[int]], texts: Sequence[Any], *, version: int = 0) -> None:
        self._encode = encode
        self._texts = list(texts)
        self._version = version
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Completion:
        self.requests.append(request)
        text = self._texts[(len(self.requests) - 1) % len(self._texts)]
        if not isinstance(text, str):
            text = await text()
        ids = tuple(self._encode(text))
        cut = len(ids) > request.max_tokens
        ids = ids[: request.max_tokens]
        return Completion(
            token_ids=ids,
            logprobs=tuple(-0.125 * (1 + i % 7) for i in range(len(ids))),
            finish=FinishReason.LENGTH if cut else FinishReason.STOP,
            weights_versions=(self._version,) * len(ids),
        )


def make_config(
    *,
    model: Path = MODELS / "tiny-qwen3",
    seed: int = 7,
    context_tokens: int = 2048,
    max_tokens: int = 200,
    rewards: RewardsConfig | None = None,
    **episodes: Any,
) -> RunConfig:
    return RunConfig(
        name="test",
        seed=seed,
        model=ModelConfig(path=str(model), renderer="chatml", dtype="float32", context_tokens=context_tokens),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        engine="transformers",
        sampling=SamplingConfig(temperature=0.7, max_tokens=max_tokens, stop=("</tool_call>",)),
        episodes=EpisodesConfig(**episodes),
        rewards=rewards or RewardsConfig(),
    )


def make_task(
    task_id: str = "task",
    *,
    answer: ExpectedText | str | None = ANY_TEXT,
    tools: tuple[str, ...] | None = None,
    max_turns: int | None = None,
    solution: Solution | None = None,
    **goal: Any,
) -> Task:
    """A task whose answer must contain a text, or meet any other expectation; further arguments are the goal's."""
    expected = Contains(text=answer) if isinstance(answer, str) else answer
    prompt = ({"role": "user", "content": "What is it?"},)
    goal = {name: tuple(value) if isinstance(value, list) else value for name, value in goal.items()}
    return Task(
        id=task_id,
        prompt=prompt,
        goal=Goal(answer=expected, **goal),
        tools=tools,
        max_turns=max_turns,
        solution=solution,
    )


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def made_turn(*outcomes: tuple[ToolCall, bool | None], reward: float = 0.0, latency_s: float = 0.0) -> Turn:
    """A turn of calls, each with whether it worked; None for one that failed on purpose."""
    return Turn(
        text="",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=tuple(made for made, _ in outcomes),
        observations=tuple(
            Observation(
                tool=made.name,
                server="s",
                text="",
                fault=Fault.POLICY if worked is False else None,
                source=Source.INJECTED if worked is None else Source.LIVE,
                latency_s=latency_s,
            )
            for made, worked in outcomes
        ),
        reward=reward,
    )


def made_trajectory(
    task_id: str = "task",
    member: int = 0,
    *,
    attempt: int = 0,
    step: int = 0,
    turns: Sequence[Turn] = (),
    reward: float = 0.0,
    parts: Mapping[str, float] | None = None,
    stop: StopReason = StopReason.ANSWERED,
    context: int = 3,
) -> Trajectory:
    """A trajectory of `context` tokens of prompt and one sampled token a turn."""
    count = len(turns)
    return Trajectory(
        task_id=task_id,
        step=step,
        member=member,
        attempt=attempt,
        temperature=1.0,
        token_ids=tuple(range(context + count)),
        sampled=(False,) * context + (True,) * count,
        forced=(False,) * (context + count),
        fixed=(False,) * (context + count),
        logprobs=(0.0,) * context + (-0.5,) * count,
        turn_index=(-1,) * context + tuple(range(count)),
        weights_version=(-1,) * context + (0,) * count,
        turns=tuple(turns),
        stop=stop,
        reward=reward,
        reward_parts=parts or {"answer": reward},
    )


def made_group(task_id: str, *trajectories: Trajectory, lost: Sequence[LostEpisode] = ()) -> Group:
    return Group(task=make_task(task_id), trajectories=tuple(trajectories), lost=tuple(lost))
