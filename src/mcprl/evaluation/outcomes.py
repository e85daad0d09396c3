"""The outcome of an episode: whether it solved its task, one reason if it did not, its calls and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Final, Protocol, cast

from mcprl.config import RunConfig
from mcprl.episodes.rewards import succeeded
from mcprl.errors import BadValueError, did_you_mean
from mcprl.goals import Goal
from mcprl.records import Observation, Source, StopReason, Task, ToolCall, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whether an episode solved its task, and the reason if it did not.

    `failure` is the suite's reason, such as "wrong state". If it is None, `failure_of` derives a reason from the
    trajectory.

    Judged(success=False, failure="wrong state")
    """

    success: bool
    failure: str | None = None


class Suite(Protocol):
    """A set of tasks, and a judge of their episodes. Implemented by benchmarks, and by `TaskSuite` for a task file."""

    @property
    def name(self) -> str:
        """Return the name for `--suite` and for output folders."""
        ...

    def adapt(self, config: RunConfig) -> RunConfig:
        """Add the servers and limits that the suite needs to the configuration. Model and sampling are not changed.

        Without a recipe, `config` has placeholders for servers and tasks, which the suite must replace.
        """
        ...

    def tasks(self) -> Sequence[Task]:
        """Return all tasks, in a fixed order. An evaluation may use only a sample of them."""
        ...

    def category(self, task: Task) -> str:
        """Return the category of a task in reports: its difficulty, or a category of the benchmark."""
        ...

    async def judge(self, task: Task, trajectory: Trajectory) -> Judged:
        """Judge whether a finished episode solved its task. Called once per episode, concurrently."""
        ...


class TaskSuite:
    """The tasks of a file. A task is solved if every check of its goal passes."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        self.name = name
        self._tasks = tuple(tasks)

    def adapt(self, config: RunConfig) -> RunConfig:
        return config

    def tasks(self) -> Sequence[Task]:
        return self._tasks

    def category(self, task: Task) -> str:
        return task.difficulty.value

    async def judge(self, task: Task, trajectory: Trajectory) -> Judged:
        return Judged(success=succeeded(trajectory.reward_parts))


def named_suite(name: str) -> Suite:
    """Return the suite of this name. Packages add suites through the entry point group `mcprl.suites`."""
    suites = {entry.name: entry for entry in entry_points(group="mcprl.suites")}
    if name not in suites:
        raise BadValueError(
            f"unknown suite {name!r}{did_you_mean(name, suites)}",
            fix=f"choose one of: {', '.join(sorted(suites))}"
            if suites
            else "pip install 'mcprl[suites]' for the public suites",
        )
    make = cast("Callable[[], Suite]", suites[name].load())
    return make()


UNKNOWN_TOOL: Final = "(no tool)"
"""The name under which calls are counted if they cannot be parsed or name an unknown tool."""


class CallFate(StrEnum):
    """The fate of a call: whether it reached a tool and worked."""

    WORKED = "worked"
    INVALID = "invalid"  # rejected before it reached a tool: malformed, unknown tool, or bad arguments
    ERROR = "error"  # the tool returned an error, or the failure was injected


class FailureKind(StrEnum):
    """Why an episode failed. Every failed episode has exactly one reason. A suite may add its own reasons."""

    CUT_BY_LENGTH = "cut by length"
    CONTEXT_LIMIT = "context limit"
    DEADLINE = "deadline"
    CAUSED_FAULT = "made its tool server fail"
    INVALID_CALLS = "invalid calls only"
    UNRECOVERED = "tool error never recovered"
    TURN_LIMIT = "turn limit"
    NO_CALL = "no call made"
    EMPTY_ANSWER = "empty answer"
    WRONG_TOOL = "wrong tool"
    CALL_MISSING = "needed call missing"
    WRONG_ARGUMENTS = "wrong arguments"
    WRONG_STATE = "wrong state"
    WRONG_ANSWER = "wrong answer"
    LOW_GRADE = "low grade"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """The outcome of one call. `server` is None if the call named an unknown tool.

    CallOutcome(tool="find_person", server="directory", fate=CallFate.WORKED, latency_s=0.003, source=Source.LIVE)
    """

    tool: str
    server: str | None
    fate: CallFate
    latency_s: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOutcome:
    """The data of one episode for statistics. `failure` is None if and only if the episode solved its task.

    `prompt_tokens` counts the tokens that the policy read: prompt, tools and tool results, each counted once.

    EpisodeOutcome(task_id="meet-ana", member=0, success=False, failure="wrong answer", reward=0.4,
                   stop=StopReason.ANSWERED, turns=3, prompt_tokens=812, sampled_tokens=96, duration_s=2.1, calls=(…))
    """

    task_id: str
    member: int
    success: bool
    failure: str | None
    reward: float
    stop: StopReason
    turns: int
    prompt_tokens: int
    sampled_tokens: int
    duration_s: float
    calls: tuple[CallOutcome, ...] = ()

    def __post_init__(self) -> None:
        if self.success != (self.failure is None):
            raise ValueError(
                f"episode {self.task_id}/{self.member}: a failure must have a reason, and a success must not"
            )


_ENDED_BY: Final = {
    StopReason.CUT_BY_LENGTH: FailureKind.CUT_BY_LENGTH,
    StopReason.CONTEXT_LIMIT: FailureKind.CONTEXT_LIMIT,
    StopReason.DEADLINE: FailureKind.DEADLINE,
    StopReason.CAUSED_FAULT: FailureKind.CAUSED_FAULT,
}


def outcome_of(task: Task, trajectory: Trajectory, judged: Judged) -> EpisodeOutcome:
    """Return the outcome of a finished episode that its suite has judged."""
    read, sampled = trajectory.token_counts
    return EpisodeOutcome(
        task_id=task.id,
        member=trajectory.member,
        success=judged.success,
        failure=None if judged.success else judged.failure or failure_of(task.goal, trajectory).value,
        reward=trajectory.reward,
        stop=trajectory.stop,
        turns=len(trajectory.turns),
        prompt_tokens=read,
        sampled_tokens=sampled,
        duration_s=trajectory.duration_s,
        calls=_calls(trajectory),
    )


def failure_of(goal: Goal, trajectory: Trajectory) -> FailureKind:
    """Return why an episode failed: the limit that ended it, or else the first thing that went wrong.

    Reasons are checked in this order, because earlier ones cause later ones: no call was valid, the policy never
    recovered from an error, a required tool was not used, its arguments were wrong, the answer was wrong.
    """
    if trajectory.stop in _ENDED_BY:
        return _ENDED_BY[trajectory.stop]
    calls = _calls(trajectory)
    if calls and all(call.fate is CallFate.INVALID for call in calls):
        return FailureKind.INVALID_CALLS
    if _ends_in_errors(trajectory):
        return FailureKind.UNRECOVERED
    if trajectory.stop is StopReason.TURN_LIMIT:
        return FailureKind.TURN_LIMIT
    if not trajectory.turns or not trajectory.turns[-1].text.strip():
        return FailureKind.EMPTY_ANSWER
    return _why_not_solved(goal, trajectory, calls)


def _why_not_solved(goal: Goal, trajectory: Trajectory, calls: Sequence[CallOutcome]) -> FailureKind:
    """Return why an episode failed although it ended with an answer and its last calls worked."""
    parts = trajectory.reward_parts
    if not calls and (goal.calls or goal.min_calls or goal.state or goal.writes):
        return FailureKind.NO_CALL
    used = {call.tool for call in calls if call.fate is CallFate.WORKED}
    needed = {call.tool for call in goal.calls}
    if needed - used:
        return FailureKind.WRONG_TOOL if used - needed else FailureKind.CALL_MISSING
    if parts.get("calls", 1.0) < 1.0:
        return FailureKind.CALL_MISSING
    if parts.get("arguments", 1.0) < 1.0:
        return FailureKind.WRONG_ARGUMENTS
    if min(parts.get("state", 1.0), parts.get("check", 1.0)) < 1.0:
        return FailureKind.WRONG_STATE
    # If all parts passed, the suite requires more of the answer than the task's goal does.
    if parts.get("answer", 1.0) < 1.0 or succeeded(parts):
        return FailureKind.WRONG_ANSWER
    return FailureKind.LOW_GRADE


def _ends_in_errors(trajectory: Trajectory) -> bool:
    """Return whether all calls failed in the last turn that has calls."""
    last = next((turn.observations for turn in reversed(trajectory.turns) if turn.observations), ())
    return bool(last) and not any(seen.worked for seen in last)


def _calls(trajectory: Trajectory) -> tuple[CallOutcome, ...]:
    made = [pair for turn in trajectory.turns for pair in zip(turn.calls, turn.observations, strict=True)]
    return tuple(
        CallOutcome(
            tool=UNKNOWN_TOOL if seen.server is None and seen.source is not Source.INJECTED else seen.tool,
            server=seen.server,
            fate=_fate(call, seen),
            latency_s=seen.latency_s,
            source=seen.source,
        )
        for call, seen in made
    )


def _fate(call: ToolCall, seen: Observation) -> CallFate:
    if seen.worked:
        return CallFate.WORKED
    # A call that was refused before it reached a server has no latency.
    refused = call.problem is not None or seen.server is None or not seen.latency_s
    return CallFate.INVALID if refused and seen.source is not Source.INJECTED else CallFate.ERROR
