"""Weave: one trace per episode, with its turns and their calls, each with its inputs and outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from mcprl.errors import BadValueError
from mcprl.tasks import load_tasks
from mcprl.tracking.reports import (
    CallReport,
    EpisodeReport,
    Part,
    Period,
    RunEnded,
    RunStarted,
    StepReport,
    TurnReport,
    times_of,
)

if TYPE_CHECKING:
    from mcprl.tracking.process import StatusWriter


class WeaveTracker:
    """Sends each episode as nested Weave calls, in the background. The library batches them."""

    def __init__(self, run: RunStarted, status: StatusWriter) -> None:
        import weave
        from weave.trace.settings import should_disable_weave

        if should_disable_weave():
            raise BadValueError(
                "WEAVE_DISABLED contradicts tracking.weave", fix="unset the variable, or remove tracking.weave"
            )
        settings = run.tracking.weave
        assert settings is not None
        status.listen_to("weave", settings.project)
        self._prompts = {task.id: list(task.prompt) for task in load_tasks(run.tasks)}
        self._run, self._model = run.name, run.model
        # Trace only our reports; the code of this process is not the run's.
        quiet = {"implicitly_patch_integrations": False, "capture_code": False}
        self._client = cast("Any", weave).init(settings.project, settings=quiet)

    def episode_finished(self, episode: EpisodeReport) -> None:
        whole, times = times_of(episode)
        outer = self._begin(episode, whole, None)
        for turn, (period, calls) in zip(episode.turns, times, strict=True):
            inner = self._begin(turn, period, outer)
            for call, time in zip(turn.calls, calls, strict=True):
                self._end(self._begin(call, time, inner), call, time)
            self._end(inner, turn, period)
        self._end(outer, episode, whole)

    def step_finished(self, step: StepReport) -> None: ...

    def run_ended(self, end: RunEnded) -> None: ...

    def close(self) -> None:
        self._client.finish(use_progress_bar=False)

    def _begin(self, part: Part, period: Period, parent: Any) -> Any:
        match part:
            case EpisodeReport():
                name, shown = "episode", f"{part.task_id}/{part.member}"
                inputs = {"task": part.task_id, "prompt": self._prompts.get(part.task_id)}
                inputs |= {"step": part.step, "member": part.member, "attempt": part.attempt}
            case TurnReport():
                name, shown = "turn", f"turn {part.number + 1}"
                inputs = {"turn": part.number, "model": self._model, "weights_version": part.weights_version}
                inputs |= {"temperature": part.temperature}
            case CallReport():
                name, shown = "call", part.tool
                inputs = {"tool": part.tool, "server": part.server, "arguments": dict(part.arguments)}
        return self._client.create_call(
            f"mcprl.{name}",
            inputs,
            parent=parent,
            attributes={"run": self._run},
            display_name=shown,
            use_stack=False,
            started_at=_time(period.start),
        )

    def _end(self, span: Any, part: Part, period: Period) -> None:
        names = {
            EpisodeReport: ("reward", "reward_parts", "stop", "tokens"),
            TurnReport: ("text", "tokens", "finish"),
            CallReport: ("result", "latency_s", "source", "attempts", "problem"),
        }
        output = {name: getattr(part, name) for name in names[type(part)]}
        self._client.finish_call(span, output, ended_at=_time(period.end))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
