"""The reports for trackers: small records of a run, without tokens and without secrets. Steps count from 1."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mcprl.config import RunConfig, TrackingConfig
from mcprl.records import Observation, ToolCall, Trajectory
from mcprl.secrets import SECRETS
from mcprl.verdicts import Severity, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first report of a run.

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
    """A call and its result. `result` is None if the episode ended before the call returned.

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
    """The policy's text in one turn, and the calls that followed.

    TurnReport(text="<tool_call>…", tokens=21, finish="stop", weights_version=3, calls=(CallReport(…),))
    """

    text: str
    tokens: int
    finish: str
    weights_version: int
    calls: tuple[CallReport, ...] = ()
    number: int = 0
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReport:
    """An episode. `ended_at` is the Unix time at which the run was notified of its end.

    EpisodeReport(task_id="meet-ana", step=3, member=0, attempt=0, reward=0.8, reward_parts={"answer": 0.8},
                  stop="answered", tokens=412, duration_s=1.9, ended_at=1763280004.5, turns=(…,))
    """

    task_id: str
    step: int
    member: int
    attempt: int
    reward: float
    reward_parts: Mapping[str, float]
    stop: str
    tokens: int
    duration_s: float
    ended_at: float
    turns: tuple[TurnReport, ...]

    @property
    def conversation(self) -> str:
        """All turns as one string: the policy's text, followed by a line `→ tool: result` per call."""
        parts: list[str] = []
        for turn in self.turns:
            parts.append(turn.text)
            parts += [f"→ {call.tool}: {call.result}" for call in turn.calls if call.result is not None]
        return "\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The metrics of a step, and its verdicts, worst first.

    StepReport(step=3, metrics={"reward": 0.41, …}, verdicts=(Verdict(severity=Severity.OK, …),))
    """

    step: int
    metrics: Mapping[str, float]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is complete: RunEnded(summary={"updates": 5, …}). The weights are in the run's folder."""

    summary: Mapping[str, Any]


# The policy can write half a surrogate pair, which no library can send.
_HALF_PAIRS = re.compile("[\ud800-\udfff]")

Part = EpisodeReport | TurnReport | CallReport
Report = RunStarted | EpisodeReport | StepReport | RunEnded


class EpisodesOfSteps:
    """Keeps episodes until their step is done. If steps are collected ahead, episodes of several steps arrive mixed."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[EpisodeReport]] = {}

    def add(self, episode: EpisodeReport) -> None:
        self._of_step.setdefault(episode.step, []).append(episode)

    def take(self, step: int) -> list[EpisodeReport]:
        """Return the episodes of the step, sorted by task and member. Drops those of earlier steps."""
        taken = self._of_step.pop(step, [])
        for earlier in [known for known in self._of_step if known < step]:
            del self._of_step[earlier]
        return sorted(taken, key=lambda episode: (episode.task_id, episode.member))


def run_started(config: RunConfig, folder: Path) -> RunStarted:
    return RunStarted(
        name=folder.name,
        folder=folder.absolute(),
        model=config.model.path,
        tasks=config.tasks.train.absolute(),
        tracking=config.tracking,
        config=SECRETS.redact_json(config.model_dump(mode="json")),
    )


def episode_report(trajectory: Trajectory, ended_at: float) -> EpisodeReport:
    """Convert a trajectory to a report without secrets. Tool results are already redacted; this redacts the rest."""
    turns = [
        TurnReport(
            text=_text(turn.text),
            tokens=len(turn.sampled_ids),
            finish=turn.finish.value,
            weights_version=turn.weights_version,
            calls=_calls(turn.calls, turn.observations),
            number=number,
            temperature=trajectory.temperature,
        )
        for number, turn in enumerate(trajectory.turns)
    ]
    return EpisodeReport(
        task_id=trajectory.task_id,
        step=trajectory.step + 1,
        member=trajectory.member,
        attempt=trajectory.attempt,
        reward=trajectory.reward,
        reward_parts=dict(trajectory.reward_parts),
        stop=trajectory.stop.value,
        tokens=len(trajectory.token_ids),
        duration_s=trajectory.duration_s,
        ended_at=ended_at,
        turns=tuple(turns),
    )


def step_report(step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> StepReport:
    """Return the report of a step. Verdicts that are ok are left out."""
    told = tuple(
        Verdict(severity=verdict.severity, what=_text(verdict.what), fix=_text(verdict.fix), name=verdict.name)
        for verdict in verdicts
        if verdict.severity is not Severity.OK
    )
    return StepReport(step=step + 1, metrics=dict(metrics), verdicts=told)


def run_ended(summary: Mapping[str, Any]) -> RunEnded:
    return RunEnded(summary=_json(summary))


def _calls(calls: Sequence[ToolCall], observations: Sequence[Observation]) -> tuple[CallReport, ...]:
    unanswered = [_report_of_call(call, None) for call in calls[len(observations) :]]
    return (*(_report_of_call(*pair) for pair in zip(calls, observations, strict=False)), *unanswered)


def _report_of_call(call: ToolCall, seen: Observation | None) -> CallReport:
    name = _text(call.name)
    if seen is None:
        return CallReport(
            tool=name, arguments=_json(call.arguments), problem="the episode ended before the call returned"
        )
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


class Period(NamedTuple):
    """Start and end as Unix times: Period(1763280002.6, 1763280004.5)."""

    start: float
    end: float


class TurnTimes(NamedTuple):
    """The period of a turn, from its first token to the result of its last call, and the periods of its calls."""

    whole: Period
    calls: tuple[Period, ...]


def times_of(episode: EpisodeReport) -> tuple[Period, tuple[TurnTimes, ...]]:
    """Return the period of an episode and of each of its turns. The calls of one turn run at the same time."""
    duration_s = max(0.0, episode.duration_s)
    waits_s = [max((call.latency_s for call in turn.calls), default=0.0) for turn in episode.turns]
    scale = min(1.0, duration_s / sum(waits_s)) if sum(waits_s) > 0 else 1.0
    tokens = sum(turn.tokens for turn in episode.turns)
    seconds_per_token = (duration_s - sum(waits_s) * scale) / tokens if tokens else 0.0
    start = now = episode.ended_at - duration_s
    turns: list[TurnTimes] = []
    for turn, wait_s in zip(episode.turns, waits_s, strict=True):
        called = now + turn.tokens * seconds_per_token
        calls = tuple(Period(called, called + call.latency_s * scale) for call in turn.calls)
        turns.append(TurnTimes(Period(now, called + wait_s * scale), calls))
        now = called + wait_s * scale
    return Period(start, episode.ended_at), tuple(turns)


_LEFT_OUT = re.compile(r"\b(drop|skip)(s|ped|ping)?\b", re.IGNORECASE)
_MOST_CHARACTERS = 300
# These components of W&B report only retries. If data is lost, another component reports it.
_NO_LOSSES = ("api:", "featurechecker:", "monitor:")


class LossHandler(logging.Handler):
    """Passes on the errors that a library logs, and its warnings about dropped data."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or _LEFT_OUT.search(text):
            self._tell(_first_line(text))


class WandbLog:
    """The log of a W&B run, one JSON object per line. Only errors that mean lost data count, not retries.

    {"time": "…", "level": "ERROR", "msg": "filestream: failed to upload: 403 Forbidden url=…"}
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_losses(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _torn = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return [f"its log {self._path.name} is missing, so it is unknown whether data was lost"]
        self._offset += len(whole) + len(newline)
        return [text for line in whole.split(b"\n") if (text := _loss(line))]


def _loss(line: bytes) -> str:
    try:
        entry: Any = json.loads(line)
        level, text = str(entry["level"]), str(entry["msg"])
    except (ValueError, KeyError, TypeError):
        return ""  # a crash of the Go runtime; then `finish` raises
    given_up = level.startswith("ERROR") or (level.startswith("WARN") and _LEFT_OUT.search(text))
    return _first_line(text) if given_up and not text.startswith(_NO_LOSSES) else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MOST_CHARACTERS].rstrip(".")
