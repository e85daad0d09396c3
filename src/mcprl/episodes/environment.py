"""The environment of one episode: its task, the tools leased for it, and `step`.

`step(action)` returns the observations, the reward of the turn, the reward parts so far, and the stop reason if the
episode is over. The calls of one turn run in parallel, unless the task sets `calls_in_order`. A turn without a call is
the answer: it ends the episode, unless the task has a follow-up or a simulated user replies. A policy fault becomes an
observation; an infrastructure fault is raised and never scored. When the episode stops, the environment checks the
state of the servers with tool calls, and a judge grades the answer, if the goal asks for this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from mcprl.concurrency import run_all
from mcprl.config import RewardsConfig, TasksConfig
from mcprl.episodes.rewards import PENALTIES, meets, score, weigh
from mcprl.errors import BadValueError, Fault, OtherWorldError
from mcprl.functions import EpisodeView
from mcprl.goals import ExpectedState
from mcprl.records import FinishReason, FollowUp, Message, Observation, Source, StopReason, Task, ToolCall, Turn
from mcprl.seeds import derive_seed

if TYPE_CHECKING:
    from mcprl.grammar.masks import TurnGrammars
    from mcprl.tools import Catalog, Toolbox

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
    """Decides which calls of one episode fail on purpose.

    ErrorInjection(rate=0.05, seed=7, step=3, task_id="meet-ana", member=0)     # 5% of calls
    """

    rate: float
    seed: int
    step: int
    task_id: str
    member: int

    def failure_of(self, tool: str, *, turn: int, index: int) -> Observation | None:
        """Return the observation that replaces call `index` of a turn, or None to make the call."""
        place = (self.step, self.task_id, self.member, turn, index)
        if derive_seed(self.seed, "injected error", *place) >= self.rate * _SEEDS:
            return None
        kind = _FAILURES[derive_seed(self.seed, "kind of injected error", *place) % len(_FAILURES)]
        return Observation(tool=tool, server=None, text=kind.format(tool=tool), source=Source.INJECTED)


class ToolFace(Protocol):
    """A tool as the policy sees it: its name, description and schema."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


class ToolAccess(Protocol):
    """The tools leased for an episode."""

    @property
    def tools(self) -> Sequence[ToolFace]: ...

    async def call(
        self,
        call: ToolCall,
        *,
        without: Collection[str] = (),
        instead: Callable[[str], Observation | None] | None = None,
    ) -> Observation:
        """Make a call for the policy. For this call, the tools in `without` do not exist.

        If the call is valid, `instead(tool name)` may return an observation, which is used instead of making the call.
        """
        ...

    async def probe(self, call: ToolCall) -> Observation:
        """Make a call for the environment itself. It may use tools that are hidden from the policy."""
        ...


Graded = Mapping[str, float | Sequence[float]]
"""The values from the judge and the reward functions for an episode; a sequence has one value per turn."""


class Grader(Protocol):
    """Grades an answer by the rubric of its task. Grades are between 0 and 1."""

    async def grade(self, task: Task, answer: str) -> float: ...


class Functions(Protocol):
    """The reward functions of a recipe, each of which gives one part of the reward, and the simulated users."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def of_groups(self) -> Sequence[str]: ...
    @property
    def digest(self) -> str: ...

    async def grade(self, episode: EpisodeView) -> Graded: ...

    async def reply(self, episode: EpisodeView) -> str | None:
        """Return what the simulated user says to the policy's last answer, or None to end the conversation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One turn of the policy: the sampled tokens, and the text and calls parsed from them."""

    text: str
    prose: str
    calls: tuple[ToolCall, ...]
    sampled_ids: tuple[int, ...]
    finish: FinishReason
    weights_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of an action: (observation, reward, done, info). `stop` is None while the episode continues.

    `follow_up` is the user's next message, if the action was an answer and the user has a follow-up.
    """

    observations: tuple[Observation, ...]
    reward: float
    stop: StopReason | None
    parts: Mapping[str, float]
    follow_up: tuple[Message, ...] = ()


class Environment:
    """The environment of one episode. Use it once.

    A rubric is scored only if there is a `judge`. Reward functions, a task's check and a simulated user need
    `functions`. `max_turns` is the limit per user message.
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
        functions: Functions | None = None,
        injection: ErrorInjection | None = None,
    ) -> None:
        self._task = task
        self._access = access
        self._preamble = tuple(preamble)
        self._max_turns = max_turns
        self._rewards = rewards
        self._judge = judge if task.goal.rubric is not None else None
        self._functions = functions
        own = "its simulated user" if task.goal.check is None else task.goal.check.function
        if (task.goal.check is not None or task.user is not None) and functions is None:
            raise BadValueError(
                f"task {task.id} needs {own}, which cannot be run here",
                fix="pass functions that were opened with this task (mcprl.episodes.reward_functions.open_functions)",
            )
        self._injection = injection
        self._follow_ups = list(task.follow_ups)
        self._replies = 0  # of the simulated user
        self._answered_turns = 0  # number of turns before the user's latest message
        self._parts: Mapping[str, float] = self._score((), None, None)
        self._parts_after: list[Mapping[str, float]] = []  # each turn
        self.turns: list[Turn] = []
        self.answer: str | None = None
        weigh(self._parts, rewards)  # raise now, not after the first turn, if the goal has no weighted part

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the conversation before the policy's first turn."""
        return self._preamble + self._task.prompt

    @property
    def tool_specs(self) -> list[dict[str, Any]]:
        """Return the tools offered now, in the format used in prompts."""
        later = self._later_tools()
        return tool_specs(tool for tool in self._access.tools if tool.name not in later)

    @property
    def parts(self) -> Mapping[str, float]:
        """Return the reward parts so far, unweighted."""
        return self._parts

    @property
    def reward(self) -> float:
        """Return the reward so far: the sum of the turn rewards."""
        return weigh(self._parts, self._rewards) if self.turns else 0.0

    async def step(self, action: Action) -> StepResult:
        """Execute one turn."""
        turn = _turn_of(action, await self._carry_out(action.calls))
        turn = replace(turn, follow_up=() if action.calls else await self._follow_up(action, turn))
        stop = self._stop_after(turn)
        answer = action.prose if stop is StopReason.ANSWERED else None
        state, graded = None, None
        if stop is not None:
            state = await self._share_of_state()
            graded = await self._grade([*self.turns, turn], answer, stop, state)
        result = self._append(turn, stop, answer, state=state, graded=graded)
        if turn.follow_up:
            self._answered_turns = len(self.turns)
        return replace(result, follow_up=turn.follow_up)

    async def call(self, call: ToolCall, *, turn: int, index: int) -> Observation:
        """Make one call for the policy, which is call `index` of a turn."""
        injection = self._injection
        instead = None if injection is None else partial(injection.failure_of, turn=turn, index=index)
        return await self._access.call(call, without=self._later_tools(), instead=instead)

    def note(self, action: Action, observations: tuple[Observation, ...]) -> None:
        """Append a turn whose calls an agent has made."""
        self._append(_turn_of(action, observations), None, None, state=None, graded=None)

    async def end(self, stop: StopReason, answer: str | None = None) -> None:
        """End the episode between two turns, for example at its deadline. The last turn gets the penalty."""
        state = await self._share_of_state()
        graded = await self._grade(self.turns, answer, stop, state)
        # There must be no await from here on: if a line above is cancelled, the turns are unchanged.
        last = self.turns.pop()
        self._parts_after.pop()
        self._parts = self._score(self.turns, None, None)
        self._append(last, stop, answer, state=state, graded=graded)

    def end_by_fault(self, action: Action, what: str) -> None:
        """End the episode with a turn that made a server fail. All reward parts become 0; penalties remain."""
        failed = (Observation(tool=call.name, server=None, text=what, fault=Fault.POLICY) for call in action.calls)
        turn = _turn_of(action, tuple(failed))
        before = self.reward
        parts = self._score([*self.turns, turn], None, StopReason.CAUSED_FAULT)
        self._parts = {name: value if name in PENALTIES else 0.0 for name, value in parts.items()}
        self.turns.append(replace(turn, reward=weigh(self._parts, self._rewards) - before))

    async def _carry_out(self, calls: Sequence[ToolCall]) -> tuple[Observation, ...]:
        made = (self.call(call, turn=len(self.turns), index=index) for index, call in enumerate(calls))
        return tuple([await call for call in made]) if self._task.calls_in_order else await run_all(made)

    async def _follow_up(self, action: Action, turn: Turn) -> tuple[Message, ...]:
        """Return the user's messages after an answer; none if the conversation is over."""
        if self._follow_ups:
            return self._with_new_tools(self._follow_ups.pop(0))
        user = self._task.user
        if user is None or self._replies == user.max_messages:
            return ()
        assert self._functions is not None
        turns, parts = (*self.turns, turn), dict(self._parts)
        said = await self._functions.reply(
            EpisodeView(task=self._task, turns=turns, answer=action.prose, stop=StopReason.ANSWERED, parts=parts)
        )
        self._replies += 1
        return () if said is None else ({"role": "user", "content": said},)

    def _with_new_tools(self, follow_up: FollowUp) -> tuple[Message, ...]:
        """Return the messages of a follow-up. The prompt cannot change, so the last one describes the new tools."""
        if not follow_up.tools or follow_up.described:
            return follow_up.messages
        new = tool_specs(tool for tool in self._access.tools if tool.name in follow_up.tools)
        *before, last = follow_up.messages
        described = f"{last['content']}\n\nYou can now use these tools too:\n{json.dumps(new, ensure_ascii=False)}"
        return (*before, {**last, "content": described})

    def _stop_after(self, turn: Turn) -> StopReason | None:
        if turn.follow_up:
            return None  # the user continues even if this turn reached the length limit
        if not turn.calls:
            return StopReason.CUT_BY_LENGTH if turn.finish is FinishReason.LENGTH else StopReason.ANSWERED
        return StopReason.TURN_LIMIT if len(self.turns) + 1 - self._answered_turns >= self._max_turns else None

    def _later_tools(self) -> set[str]:
        """Return the tools that only a later follow-up offers. Until then the policy cannot use them."""
        return {name for follow_up in self._follow_ups for name in follow_up.tools}

    def _append(
        self, turn: Turn, stop: StopReason | None, answer: str | None, *, state: float | None, graded: Graded | None
    ) -> StepResult:
        before = self.reward
        self._parts = self._score([*self.turns, turn], answer, stop, state=state, graded=graded)
        gained = weigh(self._parts, self._rewards) - before
        self.turns.append(replace(turn, reward=gained))
        self._parts_after.append(self._parts)
        self.answer = answer
        if graded is not None:
            self._spread({name: values for name, values in graded.items() if isinstance(values, Sequence)})
        return StepResult(observations=turn.observations, reward=gained, stop=stop, parts=self._parts)

    def _spread(self, per_turn: Mapping[str, Sequence[float]]) -> None:
        """Credit each turn with what its per-turn values add to the reward. The sum over all turns stays the same."""
        if not per_turn:
            return
        before = 0.0
        for number, parts in enumerate(self._parts_after):
            own = {name: fsum(values[: number + 1]) / len(values) for name, values in per_turn.items()}
            reward = weigh({**parts, **own}, self._rewards)
            self.turns[number] = replace(self.turns[number], reward=reward - before)
            before = reward

    def _score(
        self,
        turns: Sequence[Turn],
        answer: str | None,
        stop: StopReason | None,
        *,
        state: float | None = None,
        graded: Graded | None = None,
    ) -> Mapping[str, float]:
        known = {} if graded is None else {name: _mean(value) for name, value in graded.items()}
        known = {**dict.fromkeys(self._graded_parts(), 0.0), **known}
        return score(self._task.goal, turns, answer, stop, weights=self._rewards, state=state, graded=known)

    def _graded_parts(self) -> list[str]:
        """Return the parts that are known only when the episode or its group is complete, and are 0 until then."""
        functions = () if self._functions is None else self._functions.names
        check = () if self._task.goal.check is None else ("check",)
        return [*(() if self._judge is None else ("rubric",)), *check, *functions]

    async def _share_of_state(self) -> float | None:
        wanted = self._task.goal.state
        if not wanted:
            return None
        reached = await run_all(self._is_reached(state) for state in wanted)
        return sum(reached) / len(reached)

    async def _is_reached(self, wanted: ExpectedState) -> bool:
        seen = await self._access.probe(ToolCall(name=wanted.tool, arguments=wanted.arguments))
        # A failed call means that the object that it asks for does not exist.
        return seen.worked and all(meets(text, seen.text) for text in wanted.texts)

    async def _grade(self, turns: Sequence[Turn], answer: str | None, stop: StopReason, state: float | None) -> Graded:
        """Return the values from the judge and the reward functions at the end of the episode."""
        graded: dict[str, float] = {}
        if self._judge is not None:
            is_given = answer is not None and bool(answer.strip())
            graded["rubric"] = await self._judge.grade(self._task, answer) if answer is not None and is_given else 0.0
        if self._functions is not None:
            parts = score(self._task.goal, turns, answer, stop, weights=self._rewards, state=state, graded=graded)
            view = EpisodeView(
                task=self._task, turns=tuple(turns), answer=answer, stop=stop, parts=parts, probing=self._access.probe
            )
            return {**graded, **await self._functions.grade(view)}
        return graded


def _mean(value: float | Sequence[float]) -> float:
    return fsum(value) / max(1, len(value)) if isinstance(value, Sequence) else value


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
    """Convert tools to the format used in prompts and in grammars for calls."""
    return [
        {"name": tool.name, "description": tool.description, "parameters": _without_titles(tool.parameters)}
        for tool in tools
    ]


def _without_titles(schema: Any) -> Any:
    """Remove `title` annotations from a JSON schema. They cost tokens in every prompt and add nothing."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Any]", schema)
        # A property may be named "title". It is an annotation only if its value is a string.
        kept = {key: value for key, value in fields.items() if not (key == "title" and isinstance(value, str))}
        return {key: _without_titles(value) for key, value in kept.items()}
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[Any]", schema)]
    return schema


def require_tools(tasks: Sequence[Task], catalog: Catalog) -> None:
    """Raise if a task offers or needs a tool that no server lists."""
    for task in tasks:
        needed = [expected.tool for expected in (*task.goal.calls, *task.goal.state, *task.goal.writes)]
        needed += [call.name for call in task.setup]
        needed += task.goal.check.probes if task.goal.check is not None else ()
        later = [name for follow_up in task.follow_ups for name in follow_up.tools]
        catalog.require([*(task.tools or ()), *later, *needed], wanted_by=f"task {task.id}")


def require_users(tasks: Sequence[Task], config: TasksConfig) -> None:
    """Raise if a task needs a model that plays its user, and none is configured."""
    for task in tasks:
        if task.user is not None and task.user.instructions is not None and config.user is None:
            raise BadValueError(
                f"task {task.id} has a user with instructions, but no model to play users is configured",
                fix="set tasks.user in the recipe, or give the task a user that is a function",
            )


def require_grammar(tasks: Sequence[Task], catalog: Catalog, grammars: TurnGrammars) -> None:
    """Raise if the grammar cannot express the calls of a tool that some task offers."""
    offered = {name for task in tasks for name in task.tools or catalog.names}
    offered |= {name for task in tasks for follow_up in task.follow_ups for name in follow_up.tools}
    grammars.grammar_of(tool_specs(catalog[name] for name in catalog.names if name in offered))


def require_worlds(tasks: Sequence[Task], toolbox: Toolbox) -> None:
    """Raise if a task was generated for another offline world than the one that its servers provide."""
    versions = {server: version for server, (version, _) in toolbox.definitions.items()}
    for task in tasks:
        if task.world is None:
            continue
        names = [*(task.tools or toolbox.catalog.names), *(expected.tool for expected in task.goal.state)]
        for server in dict.fromkeys(toolbox.catalog[name].server for name in names):
            served = versions[server].partition("+")[2]
            if served != task.world:
                raise OtherWorldError(
                    f"the answers to task {task.id} are correct for the world {task.world}, but server {server!r} "
                    "provides " + (f"the world {served}" if served else "no offline world"),
                    fix=f"start the server with --world {task.world.removeprefix('market-')}, or use tasks generated "
                    "for its world",
                )
