"""One call, one pipeline. Each stage is a small file of its own; this one says their order.

    the call's own problem, aliases, arguments against the live schema      refusals are the policy's to read
    cassette, cache, single flight                                          an answer that is already there
    budget, circuit breaker, rate limit, the call under its deadline        repeated only where that is safe
    errors disguised as successes                                           whose fault they are
    redaction, control characters, size                                     what may be shown

What the policy did wrong becomes an observation that it reads. What the infrastructure did wrong is raised.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcprl.canonical import canonical_json
from mcprl.config import CassetteMode
from mcprl.errors import (
    CallDeadlineError,
    Fault,
    McprlError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
    ToolServerError,
)
from mcprl.records import Observation, Source, ToolCall
from mcprl.redact import SECRETS
from mcprl.tools.answers import Answer, CallableServer
from mcprl.tools.cassettes.cassette import Cassette
from mcprl.tools.catalog import Catalog, Tool
from mcprl.tools.lane import CallKey, Lane
from mcprl.tools.stages.aliases import resolve_arguments, resolve_tool
from mcprl.tools.stages.disguise import recognise
from mcprl.tools.stages.retry import call_with_retries, may_repeat
from mcprl.tools.stages.sanitise import sanitise
from mcprl.tools.stats import ToolStats

__all__ = ["Instead", "Pipeline"]

Instead = Callable[[str], Observation | None]
"""What to show in place of a call of the tool of that name; None: make the call."""

_MAX_NAMES_SHOWN = 12
_BUSY_S = 1.0
_CUT = "[cut: the result is longer than may be shown]"
_NOT_RECORDED = "There is no recorded answer to this call. Try another tool or other arguments."


@dataclass(frozen=True, slots=True)
class _Request:
    """A call of a known tool with arguments that fit its schema."""

    tool: Tool
    arguments: Mapping[str, Any]
    lane: Lane
    server: CallableServer | None

    @property
    def is_shared(self) -> bool:
        """Whether one episode's answer is also another's: not where each has a state of its own."""
        return self.lane.is_shared and not self.tool.episodic


@dataclass(frozen=True, slots=True)
class _Outcome:
    answer: Answer
    source: Source = Source.LIVE
    attempts: int = 1
    shared: bool = False


class Pipeline:
    """The way of every call of a toolbox."""

    def __init__(
        self,
        catalog: Catalog,
        lanes: Mapping[str, Lane],
        *,
        cassette: Cassette | None = None,
        cassette_mode: CassetteMode = "live",
    ) -> None:
        self.stats = ToolStats()
        self._catalog = catalog
        self._lanes = lanes
        self._cassette = cassette
        self._mode = cassette_mode
        self._tool_aliases = {
            alias: tool for lane in lanes.values() for alias, tool in lane.settings.tool_aliases.items()
        }

    async def run(
        self,
        call: ToolCall,
        *,
        offered: Mapping[str, Tool],
        servers: Mapping[str, CallableServer],
        instead: Instead | None = None,
    ) -> Observation:
        """Run one call of the policy. `servers` goes by server name; in strict replay it is empty.

        A call that could be made is not made where `instead` has something else to show; no server is counted as asked.
        """
        started = time.perf_counter()
        request = self._resolve(call, offered, servers)
        if isinstance(request, Observation):
            self.stats.record(request)
            return request
        if instead is not None and (shown := instead(request.tool.name)) is not None:
            return shown
        try:
            outcome = await self._answer(request)
        except McprlError as error:
            latency_s = time.perf_counter() - started
            self.stats.record_failure(request.lane.name, request.tool.name, error, latency_s)
            raise
        observation = Observation(
            tool=request.tool.name,
            server=request.tool.server,
            text=outcome.answer.text,
            fault=Fault.POLICY if outcome.answer.is_error else None,
            latency_s=time.perf_counter() - started,
            source=outcome.source,
            attempts=outcome.attempts,
            truncated=outcome.answer.truncated,
            arguments=None if request.arguments == call.arguments else request.arguments,
        )
        self.stats.record(observation, shared=outcome.shared)
        return observation

    def _resolve(
        self, call: ToolCall, offered: Mapping[str, Tool], servers: Mapping[str, CallableServer]
    ) -> _Request | Observation:
        """The call made definite, or why it cannot be, for the policy to read."""
        if call.problem is not None:
            return Observation(tool=call.name, server=None, text=call.problem, fault=Fault.POLICY)
        tool = offered.get(resolve_tool(call.name, offered, self._tool_aliases))
        if tool is None:
            return Observation(tool=call.name, server=None, text=_unknown_tool(call.name, offered), fault=Fault.POLICY)
        lane = self._lanes[tool.server]
        properties = tool.parameters.get("properties", {})
        arguments = resolve_arguments(call.arguments, properties, lane.settings.argument_aliases)
        problem = self._catalog.check(tool.name).problem(arguments)
        if problem is not None:
            return Observation(tool=tool.name, server=tool.server, text=problem, fault=Fault.POLICY)
        return _Request(tool, arguments, lane, servers.get(tool.server))

    async def _answer(self, request: _Request) -> _Outcome:
        """The recorded, cached or shared answer of a read-only tool, or else a live one."""
        tool, lane = request.tool, request.lane
        if self._mode == "replay":
            return self._recorded(request) or _Outcome(Answer(_NOT_RECORDED, is_error=True), Source.CASSETTE)
        if not (tool.read_only and request.is_shared):
            answer, attempts = await self._deliver(request)
            return _Outcome(answer, attempts=attempts)
        if self._mode == "replay_else_live" and (recorded := self._recorded(request)) is not None:
            return recorded
        key = (tool.name, canonical_json(request.arguments))
        if lane.cache is not None and (cached := lane.cache.get(key)) is not None:
            return _Outcome(cached, Source.CACHE)
        # Kept as part of the shared work: whoever started it may be cancelled while others wait.
        (answer, attempts), shared = await lane.flights.join(key, lambda: self._deliver_and_keep(request, key))
        return _Outcome(answer, attempts=attempts, shared=shared)

    def _recorded(self, request: _Request) -> _Outcome | None:
        assert self._cassette is not None
        tool, lane = request.tool, request.lane
        recording = self._cassette.find(lane.name, lane.version, tool.name, request.arguments)
        if recording is None:
            return None
        # Cleaned again: it may have been recorded under other settings, or by other means.
        text, cut = sanitise(recording.text, max_bytes=lane.settings.max_result_bytes, redact=SECRETS.redact)
        return _Outcome(Answer(text, truncated=recording.truncated or cut), Source.CASSETTE)

    async def _deliver_and_keep(self, request: _Request, key: CallKey) -> tuple[Answer, int]:
        """Ask the server, and remember a good answer. Errors are never kept."""
        answer, attempts = await self._deliver(request)
        if answer.is_error:
            return answer, attempts
        tool, lane = request.tool, request.lane
        if lane.cache is not None:
            lane.cache.put(key, answer, len(answer.text.encode()) + len(key[1]))
        if self._cassette is not None and self._mode in {"record", "replay_else_live"}:
            self._cassette.record(
                lane.name, lane.version, tool.name, request.arguments, answer.text, truncated=answer.truncated
            )
        return answer, attempts

    async def _deliver(self, request: _Request) -> tuple[Answer, int]:
        """Ask the server, again where a failure may safely be repeated. The answer, and the attempts it took."""
        tool, lane = request.tool, request.lane

        async def attempt(number: int) -> tuple[Answer, int]:
            return await self._attempt(request), number

        def repeatable(error: ToolServerError) -> bool:
            if isinstance(error, CallDeadlineError):
                return False  # the deadline is the caller's patience, not one attempt's
            if not request.is_shared and isinstance(error, ServerLostError):
                return False  # the server died, and with it what the episode had there
            return may_repeat(error, read_only=tool.read_only, idempotent=tool.idempotent)

        return await call_with_retries(attempt, lane.settings.retry, repeatable=repeatable)

    async def _attempt(self, request: _Request) -> Answer:
        tool, lane = request.tool, request.lane
        assert request.server is not None
        await lane.limits.spend()
        is_sent = False
        try:
            # The rate last, right before the call: those that a breaker held back would go out in a bunch.
            async with lane.breaker.guard(lane.settings.call_deadline_s), lane.limits.passage():
                is_sent = True
                answer = await request.server.call(tool.name, request.arguments, lane.settings.call_deadline_s)
                fault = recognise(tool.name, answer.text, answer.is_error, lane.rules)
                if fault is Fault.INFRASTRUCTURE:
                    raise _disguised(tool, answer)
        except ToolServerError as error:
            is_sent = error.delivered
            if isinstance(error, ServerBusyError):
                asked_s = _BUSY_S if error.retry_after_s is None else error.retry_after_s
                await lane.limits.pause(min(asked_s, lane.settings.retry.max_wait_s))
            raise
        finally:
            if not is_sent:
                await lane.limits.refund()
        return _presentable(Answer(answer.text, fault is Fault.POLICY, answer.truncated), lane)


def _presentable(answer: Answer, lane: Lane) -> Answer:
    """Without secrets and control characters, and no longer than allowed."""
    note = f"\n{_CUT}" if answer.truncated else ""
    room = lane.settings.max_result_bytes - len(note)
    text, cut = sanitise(answer.text, max_bytes=room, redact=SECRETS.redact)
    return Answer(text if cut else text + note, answer.is_error, answer.truncated or cut)


def _disguised(tool: Tool, answer: Answer) -> ServerFaultError:
    text = " ".join(SECRETS.redact(answer.text).split())[:200]
    return ServerFaultError(
        f"server {tool.server!r} answered a call of {tool.name!r} with an error of its own: {text}",
        fix="mend what it says; servers.settings.NAME.errors calls such a text an infrastructure fault",
    )


def _unknown_tool(name: str, offered: Mapping[str, Tool]) -> str:
    close = difflib.get_close_matches(name, offered, n=1)
    if close:
        return f"There is no tool '{name}'. Did you mean '{close[0]}'?"
    names = ", ".join(list(offered)[:_MAX_NAMES_SHOWN])
    return f"There is no tool '{name}'. The tools are: {names}."
