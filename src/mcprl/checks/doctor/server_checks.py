"""The tool servers of a recipe: their keys, whether each starts, lists and answers, and whether its tools are pinned.

Each server is opened by itself, so that one that fails does not hide the others.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from mcprl.checks.doctor.examination import Examination, Finding, fine, warning, wrong, wrong_by
from mcprl.config import ServersConfig
from mcprl.errors import (
    EmptyCatalogError,
    McprlError,
    MissingKeyError,
    ServerFileError,
    ServerStartError,
    ToolsChangedError,
    did_you_mean,
)
from mcprl.records import Task, ToolCall
from mcprl.tools import Catalog, ServerSpec, Tool, Toolbox, load_server_specs, open_toolbox
from mcprl.tools.keys import Expansion, load_keys
from mcprl.tools.pins import compare_tools, read_pins
from mcprl.tools.specs import PORT

__all__ = ["check_calls", "check_keys", "check_pins", "check_servers", "harmless_call"]


# Shown of a text that a server wrote.
_SHOWN = 160
_ASK_S = 5.0
# What opens a session: the first request of a client that has no key.
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "mcprl doctor", "version": "1"},
    },
}


async def check_keys(examination: Examination) -> AsyncIterator[Finding]:
    """Every key that a server or the judge needs, by its name alone; none that nobody needs."""
    config = examination.config.value
    servers = config.servers
    named: list[str] = []
    if servers.cassette_mode == "replay":
        examination.specs.put(())
    else:
        assert servers.file is not None
        try:
            examination.specs.put(load_server_specs(servers.file, servers.settings, servers.env_file))
        except ServerFileError as error:
            yield wrong_by("server file", error)
            return
        named += _keys_used(servers)
    judge = config.rewards.judge
    if judge is not None and judge.key_env is not None:
        if not load_keys(servers.env_file).get(judge.key_env, "").strip():
            raise MissingKeyError(
                f"the judge needs a key, and {judge.key_env} is not set",
                fix=f"set {judge.key_env}, or correct rewards.judge.key_env",
            )
        named.append(judge.key_env)
    yield fine("keys", f"set: {', '.join(dict.fromkeys(named))}" if named else "no server needs one")


def _keys_used(servers: ServersConfig) -> Iterator[str]:
    assert servers.file is not None
    entries = cast("dict[str, dict[str, Any]]", json.loads(servers.file.read_text(encoding="utf-8"))["mcpServers"])
    keys = load_keys(servers.env_file)
    for entry in entries.values():
        if not entry.get("disabled", False):
            yield from Expansion(entry, keys).used


async def check_servers(examination: Examination) -> AsyncIterator[Finding]:
    """Start every server of the recipe by itself and list its tools; then all their tools as one catalog."""
    servers = examination.config.value.servers
    if servers.cassette_mode == "replay":
        opening = open_toolbox(servers.model_copy(update={"pins": None}), log_dir=examination.folder / "logs")
        toolbox = await examination.servers_stack.enter_async_context(opening)
        examination.toolboxes.put({"cassette": toolbox})
        examination.catalog.put(toolbox.catalog)
        yield fine("servers", f"none is started: {len(toolbox.catalog)} tools are replayed from {servers.cassette}")
        return
    assert servers.file is not None
    specs = [_once(spec) for spec in examination.specs.value]
    openings = await asyncio.gather(*(_open(examination, spec) for spec in specs))
    opened = {spec.name: box for spec, (box, _, _) in zip(specs, openings, strict=True) if box is not None}
    examination.toolboxes.put(opened)
    for spec, (box, error, seconds) in zip(specs, openings, strict=True):
        name = f"server {spec.name}"
        if box is not None:
            listed = f"{len(box.catalog)} tools" if len(box.catalog) != 1 else "1 tool"
            yield fine(name, f"started in {seconds:.1f} s, lists {listed}")
            if spec.url is not None and PORT not in spec.url and await _answers_anyone(spec.url):
                yield _open_to_all(name, spec.url)
            unenforced = [(tool.name, what) for tool in box.catalog for what in box.catalog.check(tool.name).unenforced]
            if unenforced:
                yield _unenforced(name, unenforced)
        elif isinstance(error, EmptyCatalogError):
            yield warning(
                name,
                "started, but offers no tool",
                fix=f"see that it is set up to offer tools, check servers.settings.{spec.name}.allow and deny, or "
                "disable it",
            )
        elif isinstance(error, ServerStartError):
            # Its own fix names a log, which goes with the examination; what stands there is in its words.
            fix = (
                f"run its command by hand and correct its entry in {servers.file.name}; "
                f"servers.settings.{spec.name}.start_deadline_s says how long it may take"
            )
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


def _unenforced(name: str, found: Sequence[tuple[str, str]]) -> Finding:
    tool, what = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return warning(
        name,
        f"{_short(what)} of {tool}{more} is not enforced here, since it cannot be checked in linear time",
        fix="nothing, if the server checks its arguments itself; else leave the tool out with deny",
    )


async def _answers_anyone(url: str) -> bool:
    """Whether a server opens a session without the headers of its entry."""
    try:
        async with httpx2.AsyncClient(timeout=_ASK_S) as client:
            answer = await client.post(url, json=_HELLO, headers={"accept": "application/json, text/event-stream"})
    except httpx2.HTTPError:
        return False
    return answer.is_success


def _open_to_all(name: str, url: str) -> Finding:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    is_local = host in ("127.0.0.1", "::1", "localhost")
    return warning(
        name,
        f"{host}:{port} answers without a key, so {'every user of this machine' if is_local else 'whoever reaches it'} "
        "can call its tools",
        fix="let it ask for a key and send that in 'headers' (a server of mcprl does if MCPRL_SERVER_TOKEN is set), or "
        "start it with 'command'",
    )


def _once(spec: ServerSpec) -> ServerSpec:
    """The server in one process: looking at it needs no replicas."""
    return replace(spec, settings=spec.settings.model_copy(update={"replicas": 1}))


async def _open(examination: Examination, spec: ServerSpec) -> tuple[Toolbox | None, McprlError | None, float]:
    started = time.monotonic()
    toolbox = Toolbox([spec], log_dir=examination.folder / "logs")
    try:
        await examination.servers_stack.enter_async_context(toolbox)
    except McprlError as error:
        return None, error, time.monotonic() - started
    return toolbox, None, time.monotonic() - started


async def check_calls(examination: Examination) -> AsyncIterator[Finding]:
    """Call one tool of each server, where that can do no harm; a server may start well and refuse every call."""
    tasks = examination.tasks.value.tasks if examination.tasks.there else ()
    boxes = examination.toolboxes.value
    outcomes = await asyncio.gather(*(_call_one(name, box, tasks) for name, box in boxes.items()))
    for finding in outcomes:
        yield finding


async def _call_one(server: str, toolbox: Toolbox, tasks: Sequence[Task]) -> Finding:
    name = f"call {server}"
    call = harmless_call(tuple(toolbox.catalog), tasks)
    if call is None:
        return fine(
            name, "listed only: no tool promises to be read-only and can be called with what the tasks say of it"
        )
    started = time.monotonic()
    try:
        async with toolbox.lease([call.name]) as lease:
            seen = await lease.call(call)
    except McprlError as error:
        return wrong_by(name, error)
    seconds = time.monotonic() - started
    if seen.fault is not None:
        return warning(
            name,
            f"{call.name} refused a call that should work: {_short(seen.text)}",
            fix=f"see what it wants with `mcprl tools call RECIPE {call.name} …`; correct the task or the server",
        )
    return fine(name, f"{call.name} answered in {seconds * 1000:.0f} ms")


def harmless_call(tools: Sequence[Tool], tasks: Sequence[Task]) -> ToolCall | None:
    """A call that changes nothing: one that a task's solution or goal has whole, else one that takes no arguments.

    Only tools that promise to be read-only are called, and those whose state is each episode's own.
    """
    harmless = {tool.name: tool for tool in tools if tool.read_only or tool.episodic}
    for task in tasks:
        solved = task.solution.calls if task.solution is not None else ()
        expected = [ToolCall(name=call.tool, arguments=call.arguments) for call in task.goal.calls]
        for calls in (solved, expected):
            for place, call in enumerate(calls):
                tool = harmless.get(call.name)
                whole = tool is not None and set(tool.parameters.get("required", ())) <= set(call.arguments)
                # What changes an episode's state may need what an earlier call left behind.
                if tool is not None and whole and (tool.read_only or place == 0):
                    return call
    for tool in harmless.values():
        if tool.read_only and not tool.parameters.get("required"):
            return ToolCall(name=tool.name, arguments={})
    return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


async def check_pins(examination: Examination) -> AsyncIterator[Finding]:
    """The tools as they are listed now against those that were reviewed and pinned."""
    path = examination.config.value.servers.pins
    if path is None:
        yield fine("pins", "none: servers.pins is not set (`mcprl tools pin` writes them)")
        return
    pinned = read_pins(path)
    again = "review the change, then run `mcprl tools pin RECIPE`"
    same = 0
    for box in examination.toolboxes.value.values():
        for server, (_, listed) in box.definitions.items():
            if server not in pinned:
                what = f"{path.name} pins no tools of server {server!r}{did_you_mean(server, pinned)}"
                yield wrong("pins", what, fix=again, code=ToolsChangedError.code)
                continue
            diff = compare_tools(pinned[server], listed)
            if diff is not None:
                what = f"the tools of server {server!r} are not those pinned in {path.name}: {diff.summary()}"
                yield wrong("pins", what, fix=again, code=ToolsChangedError.code)
            same += diff is None
    if same:
        yield fine("pins", f"the tools of {same} server{'s' if same != 1 else ''} are as pinned in {path.name}")
