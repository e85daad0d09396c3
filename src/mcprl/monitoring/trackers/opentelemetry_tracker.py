"""OpenTelemetry: an episode as a trace, its turns and calls as spans inside, sent by OTLP over HTTP.

Names and attributes are those of the semantic conventions for generative AI, where they have one: `invoke_agent` for an
episode, `chat` for a turn, `execute_tool` for a call. What they have no name for begins with `mcprl.`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcprl.monitoring.trackers.reports import CallReport, EpisodeReport, RunEnded, RunStarted, StepReport, TurnReport
from mcprl.monitoring.trackers.timing import Period, TurnTimes, times_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mcprl.monitoring.trackers.process import Teller

__all__ = ["OpenTelemetryTracker"]

_REQUEST_S = 5.0


class OpenTelemetryTracker:
    """Sends spans in batches, from a thread of the library. What a collector refuses is told, and lost."""

    def __init__(self, run: RunStarted, teller: Teller) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        settings = run.tracking.opentelemetry
        assert settings is not None
        teller.listen_to("opentelemetry", settings.endpoint)
        self._model = run.model
        resource = Resource.create({"service.name": "mcprl", "service.instance.id": run.name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_REQUEST_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("mcprl")

    def episode_finished(self, episode: EpisodeReport) -> None:
        whole, turns = times_of(episode)
        span = self._begin(f"invoke_agent {episode.task_id}", whole, _of_episode(episode), kind="internal")
        for turn, times in zip(episode.turns, turns, strict=True):
            self._send_turn(turn, times, episode.temperature, span)
        span.end(_nanoseconds(whole.end))

    def step_finished(self, step: StepReport) -> None: ...

    def run_ended(self, end: RunEnded) -> None: ...

    def close(self) -> None:
        self._provider.shutdown()

    def _send_turn(self, turn: TurnReport, times: TurnTimes, temperature: float, parent: Span) -> None:
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._model,
            "gen_ai.request.temperature": temperature,
            "gen_ai.usage.output_tokens": turn.tokens,
            "gen_ai.response.finish_reasons": [turn.finish],
            "gen_ai.output.messages": _json(
                [{"role": "assistant", "parts": [{"type": "text", "content": turn.text}], "finish_reason": turn.finish}]
            ),
            "mcprl.weights_version": turn.weights_version,
        }
        span = self._begin(f"chat {self._model}", times.whole, attributes, kind="client", parent=parent)
        for call, period in zip(turn.calls, times.calls, strict=True):
            self._send_call(call, period, span)
        span.end(_nanoseconds(times.whole.end))

    def _send_call(self, call: CallReport, period: Period, parent: Span) -> None:
        from opentelemetry.trace import Status, StatusCode

        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": _json(call.arguments),
            "mcprl.source": call.source,
            "mcprl.attempts": call.attempts,
            "mcprl.latency_s": call.latency_s,
        }
        if call.result is not None:
            attributes["gen_ai.tool.call.result"] = call.result
        if call.server is not None:
            attributes["mcprl.server"] = call.server
        if call.problem is not None:
            attributes["error.type"] = call.problem
        span = self._begin(f"execute_tool {call.tool}", period, attributes, kind="internal", parent=parent)
        if call.problem is not None:
            span.set_status(Status(StatusCode.ERROR, call.problem))
        span.end(_nanoseconds(period.end))

    def _begin(
        self, name: str, period: Period, attributes: Mapping[str, Any], *, kind: str, parent: Span | None = None
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        # An empty context is a root; none would be whatever the process is in.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(
            name,
            context=context,
            kind=SpanKind[kind.upper()],
            attributes=attributes,
            start_time=_nanoseconds(period.start),
        )


def _of_episode(episode: EpisodeReport) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "mcprl",
        "gen_ai.conversation.id": f"{episode.step}/{episode.task_id}/{episode.member}/{episode.attempt}",
        "gen_ai.usage.output_tokens": sum(turn.tokens for turn in episode.turns),
        "mcprl.task": episode.task_id,
        "mcprl.step": episode.step,
        "mcprl.member": episode.member,
        "mcprl.reward": episode.reward,
        "mcprl.stop": episode.stop,
        **{f"mcprl.reward.{name}": value for name, value in episode.reward_parts.items()},
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
