"""The environment: one task, the tools leased for it, and one contract for a step.

`step(action)` gives back the observations, the reward of the turn, whether the episode stopped and why, and the parts
of the reward so far. Calls of one turn run in parallel. A fault of the policy is an observation; a fault of the
infrastructure is raised and never scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from mcprl.concurrency import run_all
from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import score, weigh
from mcprl.records import FinishReason, Message, Observation, StopReason, Task, ToolCall, Turn

__all__ = ["Action", "Environment", "StepResult", "ToolAccess", "ToolFace"]


class ToolFace(Protocol):
    """What the policy is told about a tool."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


class ToolAccess(Protocol):
    """The tools that an episode may call, as a lease of the toolbox gives them."""

    @property
    def tools(self) -> Sequence[ToolFace]: ...

    async def call(self, call: ToolCall) -> Observation: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One turn of the policy: what it sampled and what that means."""

    text: str
    prose: str
    calls: tuple[ToolCall, ...]
    sampled_ids: tuple[int, ...]
    finish: FinishReason
    weights_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What followed an action: (observation, reward, done, info), `stop` being None while the episode goes on."""

    observations: tuple[Observation, ...]
    reward: float
    stop: StopReason | None
    parts: Mapping[str, float]


class Environment:
    """The world of one episode. Made for it, used once."""

    def __init__(
        self,
        task: Task,
        access: ToolAccess,
        *,
        preamble: Sequence[Message],
        max_turns: int,
        rewards: RewardsConfig,
    ) -> None:
        self._task = task
        self._access = access
        self._preamble = tuple(preamble)
        self._max_turns = max_turns
        self._rewards = rewards
        self._parts: Mapping[str, float] = score(task.goal, (), None, None)
        self.turns: list[Turn] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation before the policy's first turn."""
        return self._preamble + self._task.prompt

    @property
    def tool_specs(self) -> list[dict[str, Any]]:
        """The tools as the prompt shows them."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": _without_titles(tool.parameters)}
            for tool in self._access.tools
        ]

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts of the reward so far, before weights."""
        return self._parts

    @property
    def reward(self) -> float:
        """The reward so far: what the turns' rewards add up to."""
        # A goal without calls has those parts from the start; the first turn gets them.
        return weigh(self._parts, self._rewards) if self.turns else 0.0

    async def step(self, action: Action) -> StepResult:
        """Carry out one turn."""
        observations = await run_all(self._access.call(call) for call in action.calls)
        turn = Turn(
            text=action.text,
            sampled_ids=action.sampled_ids,
            finish=action.finish,
            weights_version=action.weights_version,
            calls=action.calls,
            observations=observations,
        )
        return self._record(turn, self._stop_after(action), action.prose)

    def end(self, stop: StopReason) -> None:
        """End the episode from outside, before another turn: the last turn bears what that costs."""
        last = self.turns.pop()
        self._parts = score(self._task.goal, self.turns, None, None)
        self._record(last, stop, "")

    def _stop_after(self, action: Action) -> StopReason | None:
        if not action.calls:
            return StopReason.CUT_BY_LENGTH if action.finish is FinishReason.LENGTH else StopReason.ANSWERED
        return StopReason.TURN_LIMIT if len(self.turns) + 1 >= self._max_turns else None

    def _record(self, turn: Turn, stop: StopReason | None, prose: str) -> StepResult:
        before = self.reward
        answer = prose if stop is StopReason.ANSWERED else None
        self._parts = score(self._task.goal, [*self.turns, turn], answer, stop)
        gained = weigh(self._parts, self._rewards) - before
        self.turns.append(replace(turn, reward=gained))
        return StepResult(observations=turn.observations, reward=gained, stop=stop, parts=self._parts)


def _without_titles(schema: Any) -> Any:
    """A JSON schema without its `title` annotations, which say nothing and cost tokens in every prompt."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Any]", schema)
        # A property may itself be called "title": only a title that is text is an annotation.
        kept = {key: value for key, value in fields.items() if not (key == "title" and isinstance(value, str))}
        return {key: _without_titles(value) for key, value in kept.items()}
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[Any]", schema)]
    return schema
