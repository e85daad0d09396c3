"""Weave: one trace an episode, with its turns and, inside these, its calls; each with what went in and came out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from mcprl.errors import BadValueError
from mcprl.monitoring.trackers.reports import EpisodeReport, RunEnded, RunStarted, StepReport, TurnReport
from mcprl.monitoring.trackers.timing import Period, TurnTimes, times_of
from mcprl.tasks import load_tasks

if TYPE_CHECKING:
    from mcprl.monitoring.trackers.process import Teller

__all__ = ["WeaveTracker"]


class WeaveTracker:
    """Sends traces in the background, in batches that the library makes."""

    def __init__(self, run: RunStarted, teller: Teller) -> None:
        import weave
        from weave.trace.settings import should_disable_weave

        if should_disable_weave():
            raise BadValueError(
                "WEAVE_DISABLED turns off what tracking.weave turns on", fix="unset the variable, or leave the key out"
            )
        settings = run.tracking.weave
        assert settings is not None
        teller.listen_to("weave", settings.project)
        self._prompts = {task.id: list(task.prompt) for task in load_tasks(run.tasks)}
        self._run, self._model = run.name, run.model
        # Nothing of this process is worth watching but what we send; its code is none of the run's.
        quiet = {"implicitly_patch_integrations": False, "capture_code": False}
        self._client = cast("Any", weave).init(settings.project, settings=quiet)

    def episode_finished(self, episode: EpisodeReport) -> None:
        whole, turns = times_of(episode)
        inputs = {
            "task": episode.task_id,
            "prompt": self._prompts.get(episode.task_id),
            "step": episode.step,
            "member": episode.member,
            "attempt": episode.attempt,
        }
        call = self._begin("mcprl.episode", whole, inputs, shown=f"{episode.task_id}/{episode.member}")
        for number, (turn, times) in enumerate(zip(episode.turns, turns, strict=True)):
            self._send_turn(number, turn, times, episode.temperature, call)
        output = {
            "reward": episode.reward,
            "reward_parts": dict(episode.reward_parts),
            "stop": episode.stop,
            "tokens": episode.tokens,
        }
        self._end(call, whole, output)

    def step_finished(self, step: StepReport) -> None: ...

    def run_ended(self, end: RunEnded) -> None: ...

    def close(self) -> None:
        self._client.finish(use_progress_bar=False)

    def _send_turn(self, number: int, turn: TurnReport, times: TurnTimes, temperature: float, parent: object) -> None:
        inputs = {
            "turn": number,
            "model": self._model,
            "weights_version": turn.weights_version,
            "temperature": temperature,
        }
        span = self._begin("mcprl.turn", times.whole, inputs, parent=parent, shown=f"turn {number + 1}")
        for call, period in zip(turn.calls, times.calls, strict=True):
            inputs = {"tool": call.tool, "server": call.server, "arguments": dict(call.arguments)}
            inner = self._begin("mcprl.call", period, inputs, parent=span, shown=call.tool)
            output = {
                "result": call.result,
                "latency_s": call.latency_s,
                "source": call.source,
                "attempts": call.attempts,
                "problem": call.problem,
            }
            self._end(inner, period, output)
        self._end(span, times.whole, {"text": turn.text, "tokens": turn.tokens, "finish": turn.finish})

    def _begin(
        self, name: str, period: Period, inputs: dict[str, Any], *, shown: str, parent: object | None = None
    ) -> object:
        return self._client.create_call(
            name,
            inputs,
            parent=parent,
            attributes={"run": self._run},
            display_name=shown,
            use_stack=False,
            started_at=_time(period.start),
        )

    def _end(self, call: object, period: Period, output: dict[str, Any]) -> None:
        self._client.finish_call(call, output, ended_at=_time(period.end))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
