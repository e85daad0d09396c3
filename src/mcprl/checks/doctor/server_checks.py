"""Checks of the tool servers: their keys, and whether each starts, lists and answers.

Each server is opened separately, so that one that fails does not hide the others.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2

from mcprl.checks.doctor.examination import Examination, Finding, fine, skipped, warning, wrong, wrong_by
from mcprl.config import BudgetSettings, ServerSettings
from mcprl.errors import (
    EmptyCatalogError,
    McprlError,
    MissingKeyError,
    ServerFileError,
    ServerLostError,
    ServerStartError,
)
from mcprl.records import Observation, Task, ToolCall
from mcprl.tools import Catalog, ServerSpec, Tool, Toolbox, load_specs, open_toolbox
from mcprl.tools.cassette import Cassette
from mcprl.tools.keys import load_keys
from mcprl.tools.specs import PORT

# Maximum number of characters shown of a server's text.
_SHOWN = 160
_ASK_S = 5.0
# Maximum number of tools called, and of calls made, per server. Some servers exit after a few calls.
_CALLED_TOOLS, _CALLS, _CALLING_S = 8, 5, 10.0
# The rule to suggest for servers.settings.NAME.errors: it matches results that begin with an error.
_ERROR = re.compile(r'^\s*(\{\s*"errors?"\s*:(?!\s*(null|false|""|\[\]))|Error:)')
# The first request of a session, without a key.
_CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "mcprl doctor", "version": "1"}}
_HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _CLIENT}


async def check_keys(examination: Examination) -> AsyncIterator[Finding]:
    """Check that all keys of the servers, the judge and the simulated user are set."""
    config = examination.config.value
    servers = config.servers
    if servers.cassette_mode == "replay":
        examination.specs.put(())
    else:
        try:
            examination.specs.put(load_specs(servers))
        except ServerFileError as error:
            yield wrong_by("server file", error)
            return
    models = (
        ("the judge", "rewards.judge", config.rewards.judge),
        ("the simulated user", "tasks.user", config.tasks.user),
    )
    for who, setting, model in models:
        key = None if model is None else model.key_env
        if key is not None and not load_keys().get(key, "").strip():
            what = f"{who} needs a key, but {key} is not set"
            raise MissingKeyError(what, fix=f"set {key}, or correct {setting}.key_env")
    yield fine("keys", "all keys that the servers and the model endpoints need are set")


async def check_servers(examination: Examination) -> AsyncIterator[Finding]:
    """Start every server separately and list its tools. Then combine all their tools in one catalog."""
    servers = examination.config.value.servers
    if servers.cassette_mode in {"replay", "mixed"}:
        async for finding in _replayed(examination):
            yield finding
        return
    assert servers.file is not None
    if servers.cassette is not None and servers.cassette_mode != "live":
        Cassette.require_folder(servers.cassette)
    once = {"replicas": 1}  # one process of each server is enough here
    specs = [replace(spec, settings=spec.settings.model_copy(update=once)) for spec in examination.specs.value]
    with _Dropped() as dropped:
        openings = await asyncio.gather(*(_open(examination, spec) for spec in specs))
    opened = {spec.name: box for spec, (box, _, _) in zip(specs, openings, strict=True) if box is not None}
    examination.toolboxes.put(opened)
    for spec, (box, error, seconds) in zip(specs, openings, strict=True):
        name = f"server {spec.name}"
        if box is not None:
            async for finding in _started(name, spec, box, seconds, dropped.lines):
                yield finding
        elif isinstance(error, EmptyCatalogError):
            yield warning(
                name,
                "started, but offers no tools",
                fix=f"configure the server to offer tools, check servers.settings.{spec.name}.allow and deny, or "
                "disable the server",
            )
        elif isinstance(error, ServerStartError):
            # The error's own fix names a log that is deleted after the examination; its text already quotes that log.
            how = (
                "run its command by hand" if spec.command or spec.settings.start else "start it, check that it answers,"
            )
            fix = f"{how} and correct its entry in {servers.file.name}"
            yield wrong(name, error.what, fix, error.code)
        elif error is not None:
            yield wrong_by(name, error)
    if any(error is not None and not isinstance(error, EmptyCatalogError) for _, error, _ in openings):
        return
    try:
        tools = [tool for box in opened.values() for tool in box.catalog]
        checks = {tool.name: box.catalog.check(tool.name) for box in opened.values() for tool in box.catalog}
        examination.catalog.put(Catalog(tools, checks))
    except McprlError as error:
        yield wrong_by("catalog", error)


async def _replayed(examination: Examination) -> AsyncIterator[Finding]:
    """Open the cassette and, in mixed mode, the servers that answer the calls that it does not contain."""
    servers = examination.config.value.servers
    opening = open_toolbox(servers, log_dir=examination.folder / "logs")
    try:
        toolbox = await examination.servers_stack.enter_async_context(opening)
    except ServerStartError as error:
        yield wrong_by("servers", error)
        return
    examination.toolboxes.put({"cassette": toolbox})
    examination.catalog.put(toolbox.catalog)
    for finding in _worlds(examination, toolbox):
        yield finding


def _worlds(examination: Examination, toolbox: Toolbox) -> Iterator[Finding]:
    """Report what answers the calls of each tool: the cassette, a server that comes with mcprl, or another server."""
    servers = examination.config.value.servers
    if servers.cassette_mode == "replay":
        yield fine("servers", f"none started: {len(toolbox.catalog)} tools are replayed from {servers.cassette}")
        return
    ships = {spec.name for spec in examination.specs.value if "serve" in spec.args and "--world" in spec.args}
    worlds: dict[str, list[str]] = {}
    for tool in toolbox.catalog:
        live = toolbox.world_of(tool.name) == "live"
        world = "recorded" if not live else f"stand-in {tool.server}" if tool.server in ships else f"live {tool.server}"
        worlds.setdefault(world, []).append(tool.name)
    for world, tools in worlds.items():
        yield fine(world, ", ".join(tools))


class _Dropped(logging.Handler):
    """Collects lines that servers write to stdout but that are not MCP messages. The transport logs them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._logger = logging.getLogger("mcprl.tools.transports.stdio")

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> _Dropped:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


async def _started(
    name: str, spec: ServerSpec, box: Toolbox, seconds: float, dropped: Sequence[str]
) -> AsyncIterator[Finding]:
    """Yield the findings about a running server."""
    count = len(box.catalog)
    yield fine(name, f"started in {seconds:.1f} s, lists {count} tool{'s' if count != 1 else ''}")
    if noise := [line for line in dropped if line.startswith(f"{spec.name}.log: ")]:
        yield warning(
            name,
            f"writes text to stdout, which must carry only MCP messages: {_short(noise[0].partition(': ')[2])}",
            fix="make the server print and log to stderr",
        )
    if spec.url is not None and PORT not in spec.url and await _answers_anyone(spec.url):
        host, port = urlsplit(spec.url).hostname, urlsplit(spec.url).port
        local = host in ("127.0.0.1", "::1", "localhost")
        who = "every user of this machine" if local else "anyone who can reach it"
        yield warning(
            name,
            f"{host}:{port} answers without a key, so {who} can call its tools",
            fix="make the server require a key and send the key in 'headers' (mcprl's own servers require one if "
            "MCPRL_SERVER_TOKEN is set), or start the server with 'command'",
        )
    unenforced = [(tool.name, what) for tool in box.catalog for what in box.catalog.check(tool.name).unenforced]
    if unenforced:
        tool, what = unenforced[0]
        more = f" (and {len(unenforced) - 1} more)" if len(unenforced) > 1 else ""
        yield warning(
            name,
            f"mcprl does not enforce {_short(what)} of {tool}{more}, because checking takes more than linear time",
            fix=f"exclude the tool with servers.settings.{spec.name}.deny, unless the server checks its arguments",
        )


async def _answers_anyone(url: str) -> bool:
    """Return True if a server opens a session without the headers of its entry."""
    try:
        async with httpx2.AsyncClient(timeout=_ASK_S) as client:
            answer = await client.post(url, json=_HELLO, headers={"accept": "application/json, text/event-stream"})
    except httpx2.HTTPError:
        return False
    return answer.is_success


async def _open(examination: Examination, spec: ServerSpec) -> tuple[Toolbox | None, McprlError | None, float]:
    started = time.monotonic()
    toolbox = Toolbox([spec], log_dir=examination.folder / "logs")
    try:
        await examination.servers_stack.enter_async_context(toolbox)
    except McprlError as error:
        return None, error, time.monotonic() - started
    return toolbox, None, time.monotonic() - started


async def check_calls(examination: Examination) -> AsyncIterator[Finding]:
    """Call harmless tools of each server, because a server may start and still refuse calls, return nothing or die."""
    tasks = examination.tasks.value.tasks if examination.tasks.there else ()
    settings = {spec.name: spec.settings for spec in examination.specs.value}
    boxes = examination.toolboxes.value.items()
    found = await asyncio.gather(
        *(_call(name, box, tasks, settings.get(name, ServerSettings())) for name, box in boxes)
    )
    for finding in (finding for findings in found for finding in findings):
        yield finding


async def _call(server: str, toolbox: Toolbox, tasks: Sequence[Task], settings: ServerSettings) -> list[Finding]:
    name = f"call {server}"
    calls = _harmless_calls(tuple(toolbox.catalog), tasks)[:_CALLED_TOOLS]
    if not calls:
        return [skipped(name, "no task contains example arguments for a known read-only tool")]
    is_limited = settings.rate is not None or settings.budget != BudgetSettings()
    again = 0 if is_limited else _CALLS - len(calls)
    found: list[Finding] = []
    latencies: list[float] = []
    for number, call in enumerate([*calls, *[calls[0]] * again]):
        started, restarts = time.monotonic(), toolbox.restarts
        try:
            async with toolbox.lease([call.name]) as lease:
                seen = await lease.call(call)
        except McprlError as error:
            return [*found, wrong_by(name, error)]
        latencies.append(time.monotonic() - started)
        if toolbox.restarts > restarts:
            what = f"it exited after {number} call{'s' if number != 1 else ''} and had to be restarted"
            fix = (
                f"run the server's command by hand, call {call.name} several times, and look for the cause in its "
                "stderr"
            )
            return [*found, wrong(name, what, fix, ServerLostError.code)]
        if number < len(calls) and (finding := _judge_result(name, seen)) is not None:
            found.append(finding)
        if sum(latencies) > _CALLING_S:
            break
    tools = dict.fromkeys(call.name for call in calls[: len(latencies)])
    answered = f"{', '.join(tools)} answered in {max(latencies) * 1000:.0f} ms"
    return found or [fine(name, answered)]


def _judge_result(name: str, seen: Observation) -> Finding | None:
    if seen.fault is not None:
        return warning(
            name,
            f"{seen.tool} rejected a call that should succeed: {_short(seen.text)}",
            fix=f"repeat the call with `mcprl tools call RECIPE {seen.tool} …`, and correct the task or the server",
        )
    return judge_text(name, seen)


def judge_text(check: str, seen: Observation) -> Finding | None:
    """Return a finding if a successful result contains nothing that the policy can read, or reports an error."""
    shown = re.sub(r"\[(image|audio|resource \S*) omitted\]", "", seen.text).strip()
    if not shown:
        sample = f"only {_short(seen.text)}" if seen.text.strip() else "an empty result"
        return warning(
            check,
            f"{seen.tool} returned {sample}, but the policy can read only text",
            fix=f"make {seen.tool} return its result as text, or exclude it with servers.settings.{seen.server}.deny",
        )
    if _ERROR.match(shown) is not None:
        return warning(
            check,
            f"{seen.tool} returned an error marked as success: {_short(shown)}",
            fix="remove the cause of this error, or count such results as failed calls: set "
            f"servers.settings.{seen.server}.errors to [{{match: '{_ERROR.pattern}'}}]",
        )
    return None


def _harmless_calls(tools: Sequence[Tool], tasks: Sequence[Task]) -> list[ToolCall]:
    """Return calls without lasting effects: one per tool from solutions and goals, or else one without arguments.

    Only tools that declare themselves read-only, and tools with state per episode, are called.
    """
    harmless = {tool.name: tool for tool in tools if tool.read_only or tool.episodic}
    found: dict[str, ToolCall] = {}
    for task in tasks:
        solved = task.solution.calls if task.solution is not None else ()
        expected = [ToolCall(name=call.tool, arguments=call.arguments) for call in task.goal.calls]
        for calls in (solved, expected):
            for place, call in enumerate(calls):
                tool = harmless.get(call.name)
                complete = tool is not None and set(tool.parameters.get("required", ())) <= set(call.arguments)
                # A call that reads or changes an episode's state may depend on an earlier call.
                if tool is not None and complete and (place == 0 or not tool.episodic):
                    found.setdefault(call.name, call)
    bare = [tool.name for tool in harmless.values() if tool.read_only and not tool.parameters.get("required")]
    return list(found.values()) or [ToolCall(name=name, arguments={}) for name in bare[:1]]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
