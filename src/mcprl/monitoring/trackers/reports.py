"""What trackers are told: small records of a run, without tokens and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig, TrackingConfig
from mcprl.records import Observation, ToolCall, Trajectory
from mcprl.redact import SECRETS
from mcprl.verdicts import Severity, Verdict

__all__ = [
    "CallReport",
    "EpisodeReport",
    "EpisodesOfSteps",
    "Report",
    "RunEnded",
    "RunStarted",
    "StepReport",
    "TurnReport",
    "episode_report",
    "run_ended",
    "run_started",
    "step_report",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """What a tracker knows from the beginning.

    RunStarted(name="hello-cpu", folder=Path("outputs/hello-cpu"), model="HuggingFaceTB/SmolLM2-135M",
               tasks=Path("recipes/hello/tasks.jsonl"), tracking=TrackingConfig(…), config={"seed": 7, …})
    """

    name: str
    folder: Path
    model: str
    tasks: Path
    tracking: TrackingConfig
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """A call and its answer. `result` is None where the episode ended before there was one.

    CallReport(tool="find_person", arguments={"name": "Ana"}, server="directory", result="Ana: Lima", latency_s=0.003)
    """

    tool: str
    arguments: Mapping[str, Any]
    server: str | None = None
    result: str | None = None
    latency_s: float = 0.0
    source: str = "live"
    attempts: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """What the policy wrote in one turn, and the calls that followed.

    TurnReport(text="<tool_call>…", tokens=21, finish="stop", weights_version=3, calls=(CallReport(…),))
    """

    text: str
    tokens: int
    finish: str
    weights_version: int
    calls: tuple[CallReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReport:
    """An episode. `ended_at` is in seconds since 1970, and measured when the run heard of its end.

    EpisodeReport(task_id="meet-ana", step=3, member=0, attempt=0, reward=0.8, reward_parts={"answer": 0.8},
                  stop="answered", temperature=0.7, tokens=412, duration_s=1.9, ended_at=1763280004.5, turns=(…,))
    """

    task_id: str
    step: int
    member: int
    attempt: int
    reward: float
    reward_parts: Mapping[str, float]
    stop: str
    temperature: float
    tokens: int
    duration_s: float
    ended_at: float
    turns: tuple[TurnReport, ...]

    @property
    def conversation(self) -> str:
        """All turns as one text for a person: what the policy wrote, and after → what the tools answered."""
        parts: list[str] = []
        for turn in self.turns:
            parts.append(turn.text)
            parts += [f"→ {call.tool}: {call.result}" for call in turn.calls if call.result is not None]
        return "\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The metrics of a step and the verdicts on it, the gravest first.

    StepReport(step=3, metrics={"reward": 0.41, …}, verdicts=(Verdict(severity=Severity.OK, …),))
    """

    step: int
    metrics: Mapping[str, float]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run has reached its end: RunEnded(summary={"updates": 5, …}). The weights are in its folder."""

    summary: Mapping[str, Any]


# Half a pair is no character; a policy can write one all the same, and no library sends it.
_HALF_PAIRS = re.compile("[\ud800-\udfff]")

Report = RunStarted | EpisodeReport | StepReport | RunEnded


class EpisodesOfSteps:
    """Keeps episodes until their step is done: where steps are collected ahead, those of several come mixed."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[EpisodeReport]] = {}

    def add(self, episode: EpisodeReport) -> None:
        self._of_step.setdefault(episode.step, []).append(episode)

    def take(self, step: int) -> list[EpisodeReport]:
        """Those of the step, by task and member; what is left of earlier ones is forgotten."""
        taken = self._of_step.pop(step, [])
        for earlier in [known for known in self._of_step if known < step]:
            del self._of_step[earlier]
        return sorted(taken, key=lambda episode: (episode.task_id, episode.member))


def run_started(config: RunConfig, folder: Path) -> RunStarted:
    """The beginning of a run, as trackers are told of it."""
    return RunStarted(
        name=folder.name,
        folder=folder.absolute(),
        model=config.model.path,
        tasks=config.tasks.train.absolute(),
        tracking=config.tracking,
        config=SECRETS.redact_json(config.model_dump(mode="json")),
    )


def episode_report(trajectory: Trajectory, ended_at: float) -> EpisodeReport:
    """A trajectory as trackers are told of it. Tools' answers were searched for secrets already; here all texts are."""
    turns = [
        TurnReport(
            text=_text(turn.text),
            tokens=len(turn.sampled_ids),
            finish=turn.finish.value,
            weights_version=turn.weights_version,
            calls=_calls(turn.calls, turn.observations),
        )
        for turn in trajectory.turns
    ]
    return EpisodeReport(
        task_id=trajectory.task_id,
        step=trajectory.step,
        member=trajectory.member,
        attempt=trajectory.attempt,
        reward=trajectory.reward,
        reward_parts=dict(trajectory.reward_parts),
        stop=trajectory.stop.value,
        temperature=trajectory.temperature,
        tokens=len(trajectory.token_ids),
        duration_s=trajectory.duration_s,
        ended_at=ended_at,
        turns=tuple(turns),
    )


def step_report(step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> StepReport:
    """A step as trackers are told of it. That all is well needs no words."""
    told = tuple(
        Verdict(severity=verdict.severity, what=_text(verdict.what), fix=_text(verdict.fix), name=verdict.name)
        for verdict in verdicts
        if verdict.severity is not Severity.OK
    )
    return StepReport(step=step, metrics=dict(metrics), verdicts=told)


def run_ended(summary: Mapping[str, Any]) -> RunEnded:
    """The end of a run, as trackers are told of it."""
    return RunEnded(summary=_json(summary))


def _calls(calls: Sequence[ToolCall], observations: Sequence[Observation]) -> tuple[CallReport, ...]:
    unanswered = [_report_of_call(call, None) for call in calls[len(observations) :]]
    return (*(_report_of_call(*pair) for pair in zip(calls, observations, strict=False)), *unanswered)


def _report_of_call(call: ToolCall, seen: Observation | None) -> CallReport:
    name = _text(call.name)
    if seen is None:
        return CallReport(tool=name, arguments=_json(call.arguments), problem="the episode ended before its answer")
    cause = seen.source if seen.fault is None else seen.fault
    return CallReport(
        tool=name,
        arguments=_json(call.arguments if seen.arguments is None else seen.arguments),
        server=seen.server,
        result=_text(seen.text),
        latency_s=seen.latency_s,
        source=seen.source.value,
        attempts=seen.attempts,
        problem=None if seen.worked else cause.value,
    )


def _text(text: str) -> str:
    return _HALF_PAIRS.sub("\ufffd", SECRETS.redact(text))


def _json(value: Mapping[str, Any]) -> dict[str, Any]:
    written = json.dumps(SECRETS.redact_json(value), ensure_ascii=False)
    return json.loads(_HALF_PAIRS.sub("\ufffd", written))
