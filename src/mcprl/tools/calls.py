"""The pipeline of a tool call, from the parsed call to its result. Its stages, in order:

    parse errors, aliases, arguments against the live schema                the policy reads the rejection
    cassette, cache, single flight                                          reuse an existing answer
    budget, circuit breaker, rate limit, the call under its deadline        retried only if that is safe
    errors disguised as successes                                           attributed to policy or infrastructure
    redaction, control characters, size limit                               the text that the policy sees

An error caused by the policy becomes an observation that the policy reads. An infrastructure error is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from mcprl.config import CassetteMode, ServerSettings
from mcprl.errors import (
    BreakerOpenError,
    CallDeadlineError,
    Fault,
    McprlError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
    ToolServerError,
)
from mcprl.files import canonical_json
from mcprl.records import Observation, Source, ToolCall
from mcprl.secrets import SECRETS
from mcprl.tools.cache import Flights, ResultCache
from mcprl.tools.cassette import Cassette
from mcprl.tools.catalog import Catalog, Tool, matches, recognise, resolve_arguments, resolve_tool
from mcprl.tools.connection import Answer, CallableServer
from mcprl.tools.limits import Limits, LimitsService, make_limits
from mcprl.tools.stats import ToolStats

T = TypeVar("T")

# A separate generator, so that a network failure does not change the run's random numbers.
_JITTER = random.Random()
_MAX_DOUBLINGS = 60  # a larger power would overflow
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 30.0


def may_repeat(error: ToolServerError, *, read_only: bool, idempotent: bool) -> bool:
    """Return True if a retry is safe: repeating the call does no harm, or the call never reached the tool.

    A BreakerOpenError is not retried: the call has already waited for the breaker as long as allowed.
    """
    if isinstance(error, BreakerOpenError):
        return False
    return read_only or idempotent or not error.delivered


async def call_with_retries(
    attempt: Callable[[int], Awaitable[T]], attempts: int, *, repeatable: Callable[[ToolServerError], bool]
) -> T:
    """Return the result of the first attempt that succeeds. `attempt` receives its number, starting at 1.

    Only a ToolServerError that is `repeatable` leads to another attempt; every other error is raised at once. The wait
    doubles each time, and half of it is random, so that calls that failed together do not retry together. If the server
    asks for a wait, that wait is used. If the wait exceeds MAX_WAIT_S or no attempts are left, the error is raised.
    """
    number = 1
    while True:
        try:
            return await attempt(number)
        except ToolServerError as error:
            if number >= attempts or not repeatable(error):
                raise
            wait_s = _wait_s(error, number)
            if wait_s > MAX_WAIT_S:
                raise
        # Sleep outside the handler, so that a cancellation during the wait is not chained to the error.
        await asyncio.sleep(wait_s)
        number += 1


def _wait_s(error: ToolServerError, number: int) -> float:
    if error.retry_after_s is not None:
        return error.retry_after_s
    longest_s = min(FIRST_WAIT_S * 2.0 ** min(number - 1, _MAX_DOUBLINGS), MAX_WAIT_S)
    return longest_s * _JITTER.uniform(0.5, 1.0)


_ASCII_CONTROLS = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
_UNWANTED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f"
_ANY_UNWANTED = re.compile(f"[{_UNWANTED}]")

# Each alternative begins with a control character and stops at the next one, so matching takes linear time.
# The last alternative removes every remaining control character, so one pass is enough.
_REMOVED = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colors and cursor movements
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links, strings
    "|\x1b[ -/]*[0-~]"  # character sets, resets, and the start of an unterminated string
    f"|[{_UNWANTED}]"
)


def sanitise(text: str, *, max_bytes: int, redact: Callable[[str], str] | None = None) -> tuple[str, bool]:
    """Return the text to show, limited to `max_bytes` of UTF-8 (at least 64), and whether it was cut.

    `redact` removes secrets. It runs after control characters are removed, because they can hide a secret, and before
    the cut, because half a secret is not recognized. If the text was cut, its last line is
    `[cut: 65,497 of 1,234,567 bytes shown]`.
    """
    text = _clean(text)
    if redact is not None:
        text = redact(text)
    return _cut(text, max_bytes)


def _clean(text: str) -> str:
    if text.isascii():
        # Several times faster than the regular expression, and nearly all results are ASCII.
        data = text.encode("ascii")
        if len(data.translate(None, _ASCII_CONTROLS)) == len(data):
            return text
    elif _ANY_UNWANTED.search(text) is None:
        return text
    return _REMOVED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _cut(text: str, max_bytes: int) -> tuple[str, bool]:
    if len(text) * 4 <= max_bytes:
        return text, False
    data = text.encode()
    if len(data) <= max_bytes:
        return text, False
    # Reserve space for the note with the largest possible number; the real note is never longer.
    room = max_bytes - len(_note(max_bytes, len(data)))
    # Drops only an incomplete character at the cut.
    shown = data[:room].decode(errors="ignore")
    return shown + _note(len(shown.encode()), len(data)), True


def _note(shown: int, total: int) -> str:
    return f"\n[cut: {shown:,} of {total:,} bytes shown]"


CallKey = tuple[str, str]
"""The tool's name and the canonical JSON of its arguments."""


@dataclass(frozen=True, slots=True)
class Route:
    """The per-server state of the pipeline. All episodes share it, even if each has its own server process."""

    name: str
    settings: ServerSettings
    version: str
    limits: Limits
    breaker: Breaker
    cache: ResultCache[CallKey, Answer] | None
    flights: Flights[CallKey, tuple[Answer, int]]


def open_route(
    name: str, settings: ServerSettings, version: str, service: LimitsService | None = None, earlier_calls: int = 0
) -> Route:
    """Create a route with an empty cache and a closed breaker. `earlier_calls` are not added to a `service`."""
    return Route(
        name=name,
        settings=settings,
        version=version,
        limits=make_limits(name, settings, service, earlier_calls),
        breaker=Breaker(name),
        cache=ResultCache(settings.cache_s) if settings.cache_s else None,
        flights=Flights(),
    )


Instead = Callable[[str], Observation | None]
"""Tool name → the observation to show instead of making the call, or None to make the call."""

_MAX_NAMES_SHOWN = 12
_BUSY_S = 1.0
_CUT = "[cut: the result is longer than the limit]"
_NOT_RECORDED = "There is no recorded answer to this call. Try another tool or other arguments."


@dataclass(frozen=True, slots=True)
class _Request:
    """A call to a known tool with valid arguments."""

    tool: Tool
    arguments: Mapping[str, Any]
    route: Route
    server: CallableServer | None

    @property
    def is_shared(self) -> bool:
        """Whether all episodes may share an answer: they share the server, and the tool keeps no state per episode."""
        return self.route.settings.isolation == "shared" and not self.tool.episodic


@dataclass(frozen=True, slots=True)
class _Outcome:
    answer: Answer
    source: Source = Source.LIVE
    attempts: int = 1
    shared: bool = False


class Pipeline:
    """Runs all tool calls made through a toolbox."""

    def __init__(
        self,
        catalog: Catalog,
        routes: Mapping[str, Route],
        *,
        cassette: Cassette | None = None,
        cassette_mode: CassetteMode = "live",
        started: Collection[str] = (),
    ) -> None:
        self.stats = ToolStats()
        self._catalog = catalog
        self._started = started
        self._routes = routes
        self._cassette = cassette
        self._mode = cassette_mode
        self._recorded_tools = frozenset[tuple[str, str]]() if cassette is None else cassette.recorded_tools()
        self._tool_aliases = {
            alias: tool for route in routes.values() for alias, tool in route.settings.tool_aliases.items()
        }

    async def run(
        self,
        call: ToolCall,
        *,
        offered: Mapping[str, Tool],
        servers: Mapping[str, CallableServer],
        instead: Instead | None = None,
    ) -> Observation:
        """Run one call. `servers` holds the servers of the episode's lease by name; it is empty in mode `replay`.

        If `instead` returns an observation for a valid call, the call is neither made nor counted.
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
            self.stats.record_failure(request.route.name, request.tool.name, error, latency_s)
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
        """Return the call with its tool, route and arguments, or an observation that tells the policy what is wrong."""
        if call.problem is not None:
            return Observation(tool=call.name, server=None, text=call.problem, fault=Fault.POLICY)
        tool = offered.get(resolve_tool(call.name, offered, self._tool_aliases))
        if tool is None:
            return Observation(tool=call.name, server=None, text=_unknown_tool(call.name, offered), fault=Fault.POLICY)
        route = self._routes[tool.server]
        properties = tool.parameters.get("properties", {})
        arguments = resolve_arguments(call.arguments, properties, route.settings.argument_aliases)
        problem = self._catalog.check(tool.name).problem(arguments)
        if problem is not None:
            return Observation(tool=tool.name, server=tool.server, text=problem, fault=Fault.POLICY)
        return _Request(tool, arguments, route, servers.get(tool.server))

    async def _answer(self, request: _Request) -> _Outcome:
        """Return a recorded, cached or shared answer if one may be used; otherwise call the server."""
        tool, route = request.tool, request.route
        if self._mode == "replay" or (self._mode == "mixed" and self.world_of(tool) == "recorded"):
            recorded = await asyncio.to_thread(self._recorded, request)
            return recorded or await asyncio.to_thread(self._not_recorded, request)
        if not (tool.read_only and request.is_shared):
            answer, attempts = await self._deliver(request)
            return _Outcome(answer, attempts=attempts)
        if self._mode == "replay_else_live":
            recorded = await asyncio.to_thread(self._recorded, request)
            if recorded is not None:
                return recorded
        key = (tool.name, canonical_json(request.arguments))
        if route.cache is not None and (cached := route.cache.get(key)) is not None:
            return _Outcome(cached, Source.CACHE)
        # Store the answer inside the shared task: the caller that started it may be cancelled while others wait.
        (answer, attempts), shared = await route.flights.join(key, lambda: self._deliver_and_store(request, key))
        return _Outcome(answer, attempts=attempts, shared=shared)

    def world_of(self, tool: Tool) -> Literal["recorded", "live"]:
        """Return where calls to a tool go in mode mixed: to the cassette (recorded) or to a server (live)."""
        route = self._routes[tool.server]
        has_recordings = (route.name, tool.name) in self._recorded_tools
        replays = has_recordings and matches(tool.name, route.settings.recorded)
        return "recorded" if replays or route.name not in self._started else "live"

    def _not_recorded(self, request: _Request) -> _Outcome:
        """Answer an unrecorded call with the tool's "no data" answer, or with a note if the tool has no recordings."""
        assert self._cassette is not None
        tool, route = request.tool, request.route
        if (route.name, tool.name) not in self._recorded_tools:
            return _Outcome(Answer(_NOT_RECORDED, is_error=True), Source.MISSING)
        text = self._cassette.no_data(route.name, tool.name, request.arguments)
        return _Outcome(Answer(sanitise(text, max_bytes=route.settings.max_result_bytes)[0]), Source.MISSING)

    def _recorded(self, request: _Request) -> _Outcome | None:
        """Return the recorded answer or None. Run this off the event loop: the file may be large, damaged or locked."""
        assert self._cassette is not None
        tool, route = request.tool, request.route
        recording = self._cassette.find(route.name, route.version, tool.name, request.arguments)
        if recording is None:
            return None
        # Sanitise again: the answer may have been imported, or recorded with other settings.
        text, cut = sanitise(recording.text, max_bytes=route.settings.max_result_bytes, redact=SECRETS.redact)
        return _Outcome(Answer(text, truncated=recording.truncated or cut), Source.CASSETTE)

    async def _deliver_and_store(self, request: _Request, key: CallKey) -> tuple[Answer, int]:
        """Call the server. Cache and record the answer unless it is an error."""
        answer, attempts = await self._deliver(request)
        if answer.is_error:
            return answer, attempts
        tool, route = request.tool, request.route
        if route.cache is not None:
            route.cache.put(key, answer, len(answer.text.encode()) + len(key[1]))
        if self._cassette is not None and self._mode in {"record", "replay_else_live"}:
            call = (route.name, route.version, tool.name, request.arguments, answer.text)
            await asyncio.to_thread(self._cassette.record, *call, truncated=answer.truncated)
        return answer, attempts

    async def _deliver(self, request: _Request) -> tuple[Answer, int]:
        """Call the server, with retries if they are safe. Return the answer and the number of attempts."""
        tool, route = request.tool, request.route

        async def attempt(number: int) -> tuple[Answer, int]:
            return await self._attempt(request), number

        def repeatable(error: ToolServerError) -> bool:
            if isinstance(error, CallDeadlineError):
                return False  # the deadline limits the whole call, not one attempt
            if not request.is_shared and isinstance(error, ServerLostError):
                return False  # the server died and lost the episode's state
            return may_repeat(error, read_only=tool.read_only, idempotent=tool.idempotent)

        return await call_with_retries(attempt, route.settings.attempts, repeatable=repeatable)

    async def _attempt(self, request: _Request) -> Answer:
        tool, route = request.tool, request.route
        assert request.server is not None
        await route.limits.spend()
        is_sent = False
        try:
            # The rate limit comes last; otherwise calls that waited for the breaker would go out in a burst.
            async with route.breaker.guard(route.settings.call_deadline_s), route.limits.passage():
                is_sent = True
                answer = await request.server.call(tool.name, request.arguments, route.settings.call_deadline_s)
                fault = recognise(answer.text, answer.is_error, route.settings.errors)
                if fault is Fault.INFRASTRUCTURE:
                    raise _disguised(tool, answer)
        except ToolServerError as error:
            is_sent = error.delivered
            if isinstance(error, ServerBusyError):
                asked_s = _BUSY_S if error.retry_after_s is None else error.retry_after_s
                await route.limits.pause(min(asked_s, MAX_WAIT_S))
            raise
        finally:
            if not is_sent:
                await route.limits.refund()
        return _presentable(Answer(answer.text, fault is Fault.POLICY, answer.truncated), route)


def _presentable(answer: Answer, route: Route) -> Answer:
    """Remove secrets and control characters from the answer, and cut it to the size limit."""
    note = f"\n{_CUT}" if answer.truncated else ""
    room = route.settings.max_result_bytes - len(note)
    text, cut = sanitise(answer.text, max_bytes=room, redact=SECRETS.redact)
    return Answer(text if cut else text + note, answer.is_error, answer.truncated or cut)


def _disguised(tool: Tool, answer: Answer) -> ServerFaultError:
    text = " ".join(SECRETS.redact(answer.text).split())[:200]
    return ServerFaultError(
        f"server {tool.server!r} answered a call to {tool.name!r} with an error: {text}",
        fix=f"remove the cause of this error, or change the rule in servers.settings.{tool.server}.errors that "
        "matched it",
    )


def _unknown_tool(name: str, offered: Mapping[str, Tool]) -> str:
    close = difflib.get_close_matches(name, offered, n=1)
    if close:
        return f"There is no tool '{name}'. Did you mean '{close[0]}'?"
    names = ", ".join(list(offered)[:_MAX_NAMES_SHOWN])
    return f"There is no tool '{name}'. The tools are: {names}."


FAILURES = 5  # failures in a row that open the breaker
REST_S = 5.0  # seconds before one call may try the server again


class Breaker:
    """The circuit breaker of a server. After FAILURES failures in a row, calls wait; then one call probes the server.

    closed ── FAILURES in a row ──▶ open ── REST_S later, one call ──▶ half_open ── it succeeds ──▶ closed
                                        ◀──────────────────────────────────── it fails ──┘

    Calls wait instead of failing, because waiting a few seconds is cheaper than losing the episode.

    async with breaker.guard(patience_s=30.0):
        result = await server.call(...)

    A ToolServerError raised inside the block counts as a failure; a block that ends without an error counts as a
    success. A busy server, a call past its deadline, a cancellation and any other exception count as neither.
    Concurrent calls that fail together count as one failure, because a server that dies fails all of them.
    """

    def __init__(self, server: str) -> None:
        self.state: Literal["closed", "open", "half_open"] = "closed"
        """It is `half_open` while one call probes the server."""
        self.openings = 0
        """The number of times the breaker opened, including after failed probes."""
        self._server = server
        self._failures = 0
        self._failures_in_a_row = 0
        self._rests_until = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def guard(self, patience_s: float) -> AsyncGenerator[None]:
        """Wait up to `patience_s` for the breaker to let this call through, then count the outcome of the block.

        Raises BreakerOpenError if the breaker stays open for that long.
        """
        await self._admit(patience_s)
        openings, failures = self.openings, self._failures
        succeeded: bool | None = None
        try:
            yield
            succeeded = True
        except ToolServerError as error:
            if not isinstance(error, ServerBusyError | CallDeadlineError):
                succeeded = False
            raise
        finally:
            # Ignore a call that started before the last opening: only the probe shows the server's current state.
            if openings == self.openings:
                self._judge(succeeded, is_first_failure=failures == self._failures)

    async def _admit(self, patience_s: float) -> None:
        if self._may_pass():
            return
        deadline = asyncio.get_running_loop().time() + patience_s
        while not self._may_pass():
            await self._wait_for_change(deadline)

    def _judge(self, succeeded: bool | None, *, is_first_failure: bool) -> None:
        if succeeded:
            self._failures_in_a_row = 0
            self._become("closed")
        elif succeeded is None:
            if self.state == "half_open":
                # REST_S is over, so the next call becomes the probe.
                self._become("open")
        elif is_first_failure:
            self._failures += 1
            self._failures_in_a_row += 1
            # A probe follows at least FAILURES failures, so a failed probe always opens the breaker again.
            if self._failures_in_a_row >= FAILURES:
                self.openings += 1
                self._rests_until = asyncio.get_running_loop().time() + REST_S
                self._become("open")

    def _may_pass(self) -> bool:
        if self.state == "open" and asyncio.get_running_loop().time() >= self._rests_until:
            self._become("half_open")
            return True
        return self.state == "closed"

    async def _wait_for_change(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            raise self._still_open(now)
        until = deadline if self.state == "half_open" else min(deadline, self._rests_until)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    def _become(self, state: Literal["closed", "open", "half_open"]) -> None:
        if state == self.state:
            return
        self.state = state
        # Current waiters hold the old event; later callers wait on the new one.
        self._changed.set()
        self._changed = asyncio.Event()

    def _still_open(self, now: float) -> BreakerOpenError:
        return BreakerOpenError(
            f"server {self._server!r} failed {self._failures_in_a_row} calls in a row, and its circuit breaker stayed "
            "open until the call's deadline",
            fix=f"read the server's log; mcprl tries the server again {REST_S:g} s after each failure",
            delivered=False,
            retry_after_s=max(0.0, self._rests_until - now),
        )
