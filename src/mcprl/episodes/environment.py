"""The environment: one task, the tools leased for it, and one contract for a step.

`step(action)` gives back the observations, the reward of the turn, whether the episode stopped and why, and the parts
of the reward so far. Calls of one turn run in parallel, unless the task wants them in order. A turn without a call is
the answer, and the end, or the user has a follow-up. A fault of the policy is an observation; a fault of the
infrastructure is raised and never scored. When the episode stops, whatever the reason, the environment asks tools of
its own choice what became of the world, and a judge what the answer is worth, where the goal says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, cast

from mcprl.concurrency import run_all
from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import PENALTIES, meets, score, weigh
from mcprl.errors import Fault
from mcprl.goals import ExpectedState
from mcprl.records import FinishReason, Message, Observation, Source, StopReason, Task, ToolCall, Turn
from mcprl.seeds import derive_seed

__all__ = ["Action", "Environment", "ErrorInjection", "Grader", "StepResult", "ToolAccess", "ToolFace", "tool_specs"]


_SEEDS: Final = 2**63
_FAILURES: Final = (
    "Error: rate limit reached, {tool} was called too often. Please try again.",
    "Error: 429 Too Many Requests. Wait a moment and repeat the request.",
    "Error: {tool} timed out before it returned a result.",
    "Error: the request to the upstream service timed out (504 Gateway Timeout).",
    "Error: {tool} is temporarily unavailable (503 Service Unavailable). Try again later.",
    "Error: 502 Bad Gateway.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInjection:
    """Which calls of one episode fail on purpose.

    ErrorInjection(rate=0.05, seed=7, step=3, task_id="meet-ana", member=0)     # one call in twenty
    """

    rate: float
    seed: int
    step: int
    task_id: str
    member: int

    def failure_of(self, tool: str, *, turn: int, index: int) -> Observation | None:
        """What the policy sees instead of the result of its call number `index` in a turn; None: make the call."""
        place = (self.step, self.task_id, self.member, turn, index)
        if derive_seed(self.seed, "injected error", *place) >= self.rate * _SEEDS:
            return None
        kind = _FAILURES[derive_seed(self.seed, "kind of injected error", *place) % len(_FAILURES)]
        return Observation(tool=tool, server=None, text=kind.format(tool=tool), source=Source.INJECTED)


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

    async def call(
        self,
        call: ToolCall,
        *,
        without: Collection[str] = (),
        instead: Callable[[str], Observation | None] | None = None,
    ) -> Observation:
        """A call of the policy, to which there are no tools `without`.

        Of a call that could be made, `instead` is asked by the tool's name what to show in its place.
        """
        ...

    async def probe(self, call: ToolCall) -> Observation:
        """A call of the environment's own, of a tool that the policy need not know."""
        ...


class Grader(Protocol):
    """Grades the answer to a task by its rubric, between 0 and 1."""

    async def grade(self, task: Task, answer: str) -> float: ...


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
    """What followed an action: (observation, reward, done, info), `stop` being None while the episode goes on.

    `follow_up` is what the user says next, where the action was an answer and not the end.
    """

    observations: tuple[Observation, ...]
    reward: float
    stop: StopReason | None
    parts: Mapping[str, float]
    follow_up: tuple[Message, ...] = ()


class Environment:
    """The world of one episode. Made for it, used once. Without a judge, what a rubric asks for is not scored.

    `max_turns` is for each time that the user speaks.
    """

    def __init__(
        self,
        task: Task,
        access: ToolAccess,
        *,
        preamble: Sequence[Message],
        max_turns: int,
        rewards: RewardsConfig,
        judge: Grader | None = None,
        injection: ErrorInjection | None = None,
    ) -> None:
        self._task = task
        self._access = access
        self._preamble = tuple(preamble)
        self._max_turns = max_turns
        self._rewards = rewards
        self._judge = judge if task.goal.rubric is not None else None
        self._injection = injection
        self._follow_ups = list(task.follow_ups)
        self._answered_turns = 0  # those before the user last spoke
        self._parts: Mapping[str, float] = self._score((), None, None)
        self.turns: list[Turn] = []
        weigh(self._parts, rewards)  # a goal that nothing can be gained from is reported now, not after the first turn

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation before the policy's first turn."""
        return self._preamble + self._task.prompt

    @property
    def tool_specs(self) -> list[dict[str, Any]]:
        """The tools on offer now, as a prompt shows them."""
        later = self._later_tools()
        return tool_specs(tool for tool in self._access.tools if tool.name not in later)

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts of the reward so far, before weights."""
        return self._parts

    @property
    def reward(self) -> float:
        """The reward so far: what the turns' rewards add up to."""
        return weigh(self._parts, self._rewards) if self.turns else 0.0

    async def step(self, action: Action) -> StepResult:
        """Carry out one turn."""
        turn = _turn_of(action, await self._carry_out(action.calls))
        result = await self._record(turn, self._stop_after(action), action.prose)
        if action.calls or result.stop is not None:
            return result
        self._answered_turns = len(self.turns)
        return replace(result, follow_up=self._follow_ups.pop(0).messages)

    async def end(self, stop: StopReason) -> None:
        """End the episode from outside, before another turn: the last turn bears what that costs."""
        state, grade = await self._look(stop, None)
        # Only now, without a pause: whoever breaks off while the world is asked finds the turns as they were.
        last = self.turns.pop()
        self._parts = self._score(self.turns, None, None)
        self._append(last, stop, None, state=state, grade=grade)

    def end_by_fault(self, action: Action, what: str) -> None:
        """End the episode with a turn that made a server fail. Nothing that it achieved counts; penalties do."""
        failed = (Observation(tool=call.name, server=None, text=what, fault=Fault.POLICY) for call in action.calls)
        turn = _turn_of(action, tuple(failed))
        before = self.reward
        parts = self._score([*self.turns, turn], None, StopReason.CAUSED_FAULT)
        self._parts = {name: value if name in PENALTIES else 0.0 for name, value in parts.items()}
        self.turns.append(replace(turn, reward=weigh(self._parts, self._rewards) - before))

    async def _carry_out(self, calls: Sequence[ToolCall]) -> tuple[Observation, ...]:
        made = (self._call(call, index) for index, call in enumerate(calls))
        return tuple([await call for call in made]) if self._task.calls_in_order else await run_all(made)

    async def _call(self, call: ToolCall, index: int) -> Observation:
        injection = self._injection
        instead = None if injection is None else partial(injection.failure_of, turn=len(self.turns), index=index)
        return await self._access.call(call, without=self._later_tools(), instead=instead)

    def _stop_after(self, action: Action) -> StopReason | None:
        if not action.calls and self._follow_ups:
            return None  # a turn that was cut ends what was asked as well: the user goes on all the same
        if not action.calls:
            return StopReason.CUT_BY_LENGTH if action.finish is FinishReason.LENGTH else StopReason.ANSWERED
        return StopReason.TURN_LIMIT if len(self.turns) + 1 - self._answered_turns >= self._max_turns else None

    def _later_tools(self) -> set[str]:
        """Tools that only a follow-up will offer. To the policy there are none such until then."""
        return {name for follow_up in self._follow_ups for name in follow_up.tools}

    async def _record(self, turn: Turn, stop: StopReason | None, prose: str) -> StepResult:
        answer = prose if stop is StopReason.ANSWERED else None
        state, grade = await self._look(stop, answer)
        return self._append(turn, stop, answer, state=state, grade=grade)

    async def _look(self, stop: StopReason | None, answer: str | None) -> tuple[float | None, float]:
        """Where the episode stops: the share of the state that was reached, and the judge's grade."""
        if stop is None:
            return None, 0.0
        return await self._share_of_state(), await self._grade(answer)

    def _append(
        self, turn: Turn, stop: StopReason | None, answer: str | None, *, state: float | None, grade: float
    ) -> StepResult:
        before = self.reward
        self._parts = self._score([*self.turns, turn], answer, stop, state=state, grade=grade)
        gained = weigh(self._parts, self._rewards) - before
        self.turns.append(replace(turn, reward=gained))
        return StepResult(observations=turn.observations, reward=gained, stop=stop, parts=self._parts)

    def _score(
        self,
        turns: Sequence[Turn],
        answer: str | None,
        stop: StopReason | None,
        *,
        state: float | None = None,
        grade: float = 0.0,
    ) -> Mapping[str, float]:
        known_grade = None if self._judge is None else grade
        return score(self._task.goal, turns, answer, stop, weights=self._rewards, state=state, grade=known_grade)

    async def _share_of_state(self) -> float | None:
        wanted = self._task.goal.state
        if not wanted:
            return None
        reached = await run_all(self._is_reached(state) for state in wanted)
        return sum(reached) / len(reached)

    async def _is_reached(self, wanted: ExpectedState) -> bool:
        seen = await self._access.probe(ToolCall(name=wanted.tool, arguments=wanted.arguments))
        # A refusal says that what was asked about does not exist.
        return seen.worked and all(meets(text, seen.text) for text in wanted.texts)

    async def _grade(self, answer: str | None) -> float:
        if self._judge is None or answer is None or not answer.strip():
            return 0.0
        return await self._judge.grade(self._task, answer)


def _turn_of(action: Action, observations: tuple[Observation, ...]) -> Turn:
    return Turn(
        text=action.text,
        sampled_ids=action.sampled_ids,
        finish=action.finish,
        weights_version=action.weights_version,
        calls=action.calls,
        observations=observations,
    )


def tool_specs(tools: Iterable[ToolFace]) -> list[dict[str, Any]]:
    """Tools as a prompt shows them and as a grammar holds their calls."""
    return [
        {"name": tool.name, "description": tool.description, "parameters": _without_titles(tool.parameters)}
        for tool in tools
    ]


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
