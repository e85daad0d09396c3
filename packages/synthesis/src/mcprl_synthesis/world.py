"""Makes the calls of a synthesis, and records them in a cassette, so that a second run makes none.

A `Look` is the world on its own fresh servers: look 0 explores, looks 1 and 2 verify. The clock of look 2 is a day
ahead if libfaketime is installed. A look leases tools to episodes, like a toolbox, but refuses writes that the user has
not allowed. The result of a call may depend on the episode's earlier writes to the same server, so these writes are
part of the recorded call's key. Servers start at the first call that is not recorded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from mcprl.errors import BudgetExceededError, Fault, NoConsentError, ServerStartError, ToolServerError
from mcprl.files import canonical_json
from mcprl.records import Observation, ToolCall
from mcprl.tools import Cassette, Catalog, ServerSpec, Tool, Toolbox, ToolLease
from mcprl.tools.connection import START_S
from mcprl.tools.session import offered_values
from mcprl_synthesis.arguments import shaped

__all__ = ["Access", "CallRefusedError", "Look", "Seen", "World"]

_JOURNAL: Final = "mcprl-synthesis"
_SECONDS_PER_TOOL: Final = 240.0
_FAILURES_PER_TOOL: Final = 3
_RECORDED: Final = 40
_LAST_LOOK: Final = 2
_FAKETIME: Final = ("lib*/faketime/libfaketimeMT.so.1", "lib*/*/faketime/libfaketimeMT.so.1")
_A_DAY_AHEAD: Final = {"FAKETIME": "+1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a call. `worked` is False for errors, truncated results, and calls that were not made, which are
    `refused`."""

    worked: bool
    text: str
    refused: bool = False


class CallRefusedError(Exception):
    """A call of a verification was not made, because the tool is no longer called: it shows nothing."""


@dataclass(slots=True)
class Cost:
    """The cost of a run's calls. `stopped` has the reason for each tool that is no longer called, `refused` the first
    response to a failed call of each tool. `asked` counts the different calls of all looks, made or replayed."""

    calls: Counter[str] = field(default_factory=Counter[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    replayed: int = 0
    in_flight: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    failures: Counter[str] = field(default_factory=Counter[str])
    stopped: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])


class World:
    """The servers of a synthesis, and their recorded results. The servers of look 2 start at least `apart_s` later than
    those of look 1. `ahead` names the servers of look 2 whose clock is a day ahead."""

    catalog: Catalog
    recorded_on: date
    ahead: list[str]

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        cassette: Cassette,
        *,
        allow_writes: Collection[str] = (),
        log_dir: Path,
        apart_s: float = 60.0,
    ) -> None:
        self.specs = tuple(specs)
        self.cassette = cassette
        self.allow_writes = frozenset(allow_writes)
        self.log_dir = log_dir
        self.apart_s = apart_s
        self.cost = Cost()
        self.offered: dict[str, list[str]] = {}
        self.limit_per_tool: int | None = None
        self.stack = AsyncExitStack()
        self._looks: dict[int, Look] = {}

    async def __aenter__(self) -> World:
        if {spec.name for spec in self.specs} <= self.cassette.tools().keys():
            settings = {spec.name: spec.settings for spec in self.specs}
            listing = Toolbox(
                (), log_dir=self.log_dir, cassette=self.cassette, cassette_mode="replay", replayed=settings
            )
        else:
            listing = Toolbox(self.specs, log_dir=self.log_dir)
        async with listing as toolbox:
            self.catalog = toolbox.catalog
            for name, (version, tools) in toolbox.definitions.items():
                self.cassette.record_tools(name, version, tools)
        recorded = {} if self.noted("start", "date", None) else self._recorded()
        for listed in await asyncio.gather(*(self._offered(spec, recorded) for spec in self.specs)):
            for name, values in listed.items():
                self.offered.setdefault(name, []).extend(values)
        self.specs = tuple(map(self._isolated, self.specs))
        self.recorded_on = date.fromisoformat(self.noted("start", "date", date.today().isoformat()))
        self.ahead = json.loads(self.noted("clock", "ahead", None) or "[]")
        return self

    def noted(self, kind: str, name: str, text: str | None) -> str:
        """Return a note from the cassette. If there is none, record `text` as the note."""
        place = (_JOURNAL, kind, name, dict[str, Any]())
        found = self.cassette.find(*place)
        if found is None and text is not None:
            self.cassette.record(*place, text)
        return found.text if found is not None else text or ""

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    def _recorded(self) -> dict[str, dict[str, list[Any]]]:
        """Return the argument values of calls that were recorded earlier, by server and argument."""
        found: dict[str, dict[str, list[Any]]] = {}
        servers = {tool.name: tool.server for tool in self.catalog}
        for each in self.cassette.recordings():
            values = found.setdefault(servers.get(each.tool, ""), {}) if each.server != _JOURNAL else {}
            for name, value in each.arguments.items():
                if isinstance(value, str | int | float) and value not in values.setdefault(name, []):
                    values[name] = [*values[name], value][:_RECORDED]
        return found

    async def _offered(self, spec: ServerSpec, recorded: Mapping[str, Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
        """Return values that a server lists besides its tools, and argument values of its earlier recorded calls."""
        if not (known := self.noted("offered", spec.name, None)):
            log = self.log_dir / f"{spec.name}-offered.log"
            values: dict[str, list[Any]] = {**await offered_values(spec, log, deadline_s=START_S)}
            for name, others in recorded.get(spec.name, {}).items():
                values[name] = [*values.get(name, ()), *others]
            known = self.noted("offered", spec.name, json.dumps(values, ensure_ascii=False))
        return json.loads(known)

    def _isolated(self, spec: ServerSpec) -> ServerSpec:
        """Give each episode a server of its own, if writes are allowed and the server keeps no state per episode."""
        writing = [tool for tool in self.catalog if tool.server == spec.name and not tool.read_only]
        if spec.name not in self.allow_writes or all(tool.episodic for tool in writing):
            return spec
        return replace(spec, settings=spec.settings.model_copy(update={"isolation": "per_episode"}))

    def may_call(self, tool: Tool) -> bool:
        """Return True if a tool may be called, because it is read-only or writes to its server are allowed."""
        return tool.read_only or tool.server in self.allow_writes

    def look(self, number: int) -> Look:
        return self._looks.setdefault(number, Look(self, number))


class Look:
    """The world on its own set of servers."""

    toolbox: Toolbox
    reading: ToolLease

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.started_at: float | None = None
        self._starting = asyncio.Lock()
        self._flights: dict[str, asyncio.Task[Seen]] = {}

    async def start(self) -> None:
        """Start fresh servers, unless they are running."""
        async with self._starting:
            if self.started_at is not None:
                return
            before = self.world.look(self.number - 1).started_at if self.number > 1 else None
            if before is not None:
                await asyncio.sleep(max(0.0, before + self.world.apart_s - time.monotonic()))
            self.toolbox = await self._toolbox()
            self.reading = await self.world.stack.enter_async_context(self.toolbox.lease(None))
            self.started_at = time.monotonic()

    async def _toolbox(self) -> Toolbox:
        """Start the servers. For the last look, set their clocks a day ahead if they can start that way."""
        stack, specs, logs = self.world.stack, self.world.specs, self.world.log_dir
        ahead = tuple(map(_a_day_ahead, specs)) if self.number == _LAST_LOOK else specs
        shifted = [spec.name for spec, other in zip(specs, ahead, strict=True) if spec != other]
        try:
            toolbox = await stack.enter_async_context(Toolbox(ahead, log_dir=logs))
        except ServerStartError:
            if not shifted:
                raise
            toolbox, shifted = await stack.enter_async_context(Toolbox(specs, log_dir=logs)), []
        if self.number == _LAST_LOOK:
            self.world.ahead = json.loads(self.world.noted("clock", "ahead", json.dumps(shifted)))
        return toolbox

    @asynccontextmanager
    async def lease(
        self, tool_names: Sequence[str] | None, *, probes: Sequence[str] = (), lives_s: float = 3600.0
    ) -> AsyncGenerator[Access]:
        """Lease tools to an episode."""
        async with AsyncExitStack() as stack:
            yield Access(self, self.world.catalog.select(tool_names), stack, lives_s)

    async def read(self, tool: str, arguments: Mapping[str, Any], *, again: int = 0) -> Seen:
        """Call a read-only tool with flat arguments. Equal calls are made once; a different `again` repeats a call."""
        async with self.lease(None) as access:
            return await access.see(tool, shaped(self.world.catalog[tool], arguments), again=again)

    async def answer(self, tool: Tool, key: Mapping[str, Any], make: _Make) -> Seen:
        """Return the recorded result, or make the call and record it. Equal calls are made once."""
        name = canonical_json([tool.name, key])
        if name not in self._flights:
            self.world.cost.asked[tool.name] += 1
            self._flights[name] = asyncio.create_task(self._answer(tool, key, make))
        seen = await asyncio.shield(self._flights[name])
        if not seen.worked:
            self.world.cost.refused.setdefault(tool.name, seen.text)
        return seen

    async def _answer(self, tool: Tool, key: Mapping[str, Any], make: _Make) -> Seen:
        place, cassette = (_JOURNAL, f"look {self.number}", tool.name), self.world.cassette
        found = cassette.find(*place, key)
        if found is not None:
            self.world.cost.replayed += 1
            return Seen(*json.loads(found.text))
        seen = await self._made(tool, make)
        cassette.record(*place, key, json.dumps([seen.worked, seen.text, seen.refused], ensure_ascii=False))
        if seen.worked and tool.read_only and self.number == 0 and set(key) == {"arguments"}:
            # Also as training finds it.
            version = self.toolbox.definitions[tool.server][0]
            cassette.record(tool.server, version, tool.name, key["arguments"], seen.text)
        return seen

    async def _made(self, tool: Tool, make: _Make) -> Seen:
        cost, limit = self.world.cost, self.world.limit_per_tool
        if self.number == 0 and limit is not None and cost.calls[tool.name] >= limit:
            self._stop(tool, f"the limit of {limit} calls was reached")
        if tool.name in cost.stopped and self.number == 0:
            return Seen(worked=False, text=cost.stopped[tool.name], refused=True)
        await self.start()
        cost.calls[tool.name] += 1
        cost.in_flight += 1
        started = time.monotonic()
        try:
            seen = await make()
        except ToolServerError as error:
            why = f"{error.code} {error.what}"
            cost.failures[tool.name] += 1
            if cost.failures[tool.name] >= _FAILURES_PER_TOOL:
                self._stop(tool, f"it failed {_FAILURES_PER_TOOL} times ({why})")
            return Seen(worked=False, text=why)
        except BudgetExceededError as error:
            self._stop(tool, "the budget of its server is used up")
            return Seen(worked=False, text=error.code)
        finally:
            elapsed_s = (time.monotonic() - started) / cost.in_flight
            cost.in_flight -= 1
        cost.seconds[tool.name] = cost.seconds.get(tool.name, 0.0) + elapsed_s
        if cost.seconds[tool.name] > _SECONDS_PER_TOOL:
            self._stop(tool, f"its calls took more than {_SECONDS_PER_TOOL:g} s")
        return Seen(worked=seen.worked and not seen.truncated, text=seen.text)

    def _stop(self, tool: Tool, reason: str) -> None:
        """Make no more calls of a tool. The reason is recorded, since a second run has it in its report, too."""
        self.world.cost.stopped.setdefault(tool.name, self.world.noted("stopped", tool.name, reason))


def _a_day_ahead(spec: ServerSpec) -> ServerSpec:
    """Return a server that starts with its clock a day ahead, or the same server if that is not possible."""
    library = next((str(path) for pattern in _FAKETIME for path in Path("/usr").glob(pattern)), None)
    if library is None or not (spec.command or spec.settings.start):
        return spec
    return replace(spec, env={**spec.env, **_A_DAY_AHEAD, "LD_PRELOAD": library})


_Make = Callable[[], Coroutine[Any, Any, Observation]]


class Access:
    """The tools of one episode in a look."""

    def __init__(self, look: Look, tools: tuple[Tool, ...], stack: AsyncExitStack, lives_s: float) -> None:
        self.tools = tools
        self._look = look
        self._stack = stack
        self._lives_s = lives_s
        self._written: dict[str, list[ToolCall]] = {}
        self._leases: dict[str, ToolLease] = {}
        self._made: Counter[str] = Counter()

    async def see(self, name: str, arguments: Mapping[str, Any], *, again: int = 0) -> Seen:
        """Make one call, or return its recorded result."""
        look, tool = self._look, self._look.world.catalog[name]
        if not look.world.may_call(tool):
            raise NoConsentError(
                f"{name} of server {tool.server!r} is not read-only, and writes are not allowed",
                fix=f"if a fresh process of the server undoes all writes, pass --allow-writes {tool.server}",
            )
        if (problem := look.world.catalog.check(name).problem(arguments)) is not None:
            return Seen(worked=False, text=problem)
        call = ToolCall(name=name, arguments=dict(arguments))
        written = self._written.setdefault(tool.server, [])
        key: dict[str, Any] = {"arguments": call.arguments} | ({"again": again} if again else {})
        if written:
            key["after"] = [[each.name, dict(each.arguments)] for each in written]
        place = len(written)
        if not tool.read_only:
            written.append(call)
        return await look.answer(tool, key, lambda: self._live(tool, call, place))

    async def _live(self, tool: Tool, call: ToolCall, place: int) -> Observation:
        """Make a call on a server. First make the episode's earlier writes there that were only replayed so far."""
        look, server = self._look, tool.server
        if tool.read_only and place == 0:
            return await look.reading.call(call)
        if server not in self._leases:
            names = [each.name for each in look.world.catalog if each.server == server]
            lease = look.toolbox.lease(names, lives_s=self._lives_s)
            self._leases[server] = await self._stack.enter_async_context(lease)
        for earlier in self._written[server][self._made[server] : place]:
            await self._leases[server].call(earlier)
        self._made[server] = place if tool.read_only else place + 1
        return await self._leases[server].call(call)

    async def call(self, call: ToolCall, **_: Any) -> Observation:
        """Make a call for the policy. Errors are not injected, and no tool is withheld."""
        return await self.probe(call)

    async def probe(self, call: ToolCall) -> Observation:
        """Make a call for the environment. Raises CallRefusedError if it is not made."""
        seen = await self.see(call.name, call.arguments)
        if seen.refused:
            raise CallRefusedError(seen.text)
        shown = Observation(tool=call.name, server=self._look.world.catalog[call.name].server, text=seen.text)
        return shown if seen.worked else replace(shown, fault=Fault.POLICY)
