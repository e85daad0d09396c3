"""OpenTelemetry: each episode is a trace, with its turns and calls as spans, sent by OTLP over HTTP.

Names follow the semantic conventions for generative AI: `invoke_agent` for an episode, `chat` for a turn,
`execute_tool` for a call. Names outside these conventions begin with `mcprl.`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcprl.tracking.reports import CallReport, EpisodeReport, Part, Period, RunStarted, SpanTracker, TurnReport

if TYPE_CHECKING:
    from mcprl.tracking.process import StatusWriter

_REQUEST_S = 5.0


class OpenTelemetryTracker(SpanTracker):
    """Sends spans in batches, from a thread of the library. If a collector refuses spans, reports them as lost."""

    def __init__(self, run: RunStarted, status: StatusWriter) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        settings = run.tracking.opentelemetry
        assert settings is not None
        status.listen_to("opentelemetry", settings.endpoint)
        self._model = run.model
        resource = Resource.create({"service.name": "mcprl", "service.instance.id": run.name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=_REQUEST_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("mcprl")

    def close(self) -> None:
        self._provider.shutdown()

    def begin(self, part: Part, period: Period, parent: Any) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        match part:
            case EpisodeReport():
                operation, about, attributes = "invoke_agent", part.task_id, _of_episode(part)
            case TurnReport():
                operation, about, attributes = "chat", self._model, _of_turn(part, self._model)
            case CallReport():
                operation, about, attributes = "execute_tool", part.tool, _of_call(part)
        span = self._tracer.start_span(
            f"{operation} {about}",
            # An empty context makes a root span; None would use the current context.
            context=Context() if parent is None else set_span_in_context(parent, Context()),
            kind=SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL,
            attributes={"gen_ai.operation.name": operation, **attributes},
            start_time=_nanoseconds(period.start),
        )
        if isinstance(part, CallReport) and part.problem is not None:
            span.set_status(Status(StatusCode.ERROR, part.problem))
        return span

    def end(self, span: Any, part: Part, period: Period) -> None:
        span.end(_nanoseconds(period.end))


def _of_episode(episode: EpisodeReport) -> dict[str, Any]:
    return {
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


def _of_turn(turn: TurnReport, model: str) -> dict[str, Any]:
    parts = [{"type": "text", "content": turn.text}]
    return {
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": turn.temperature,
        "gen_ai.usage.output_tokens": turn.tokens,
        "gen_ai.response.finish_reasons": [turn.finish],
        "gen_ai.output.messages": _json([{"role": "assistant", "parts": parts, "finish_reason": turn.finish}]),
        "mcprl.weights_version": turn.weights_version,
    }


def _of_call(call: CallReport) -> dict[str, Any]:
    attributes = {
        "gen_ai.tool.name": call.tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": _json(call.arguments),
        "gen_ai.tool.call.result": call.result,
        "mcprl.source": call.source,
        "mcprl.attempts": call.attempts,
        "mcprl.latency_s": call.latency_s,
        "mcprl.server": call.server,
        "error.type": call.problem,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
