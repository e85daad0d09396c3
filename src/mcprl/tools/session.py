"""One session with a tool server, from the start of its process to its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.stdio import get_default_environment
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CallToolResult, PromptReference, ResourceTemplateReference, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcprl.bounds import MAX_DEPTH, MAX_LISTING_BYTES, OverLimitError, measure
from mcprl.errors import ServerStartError, ToolLimitError
from mcprl.processes import ChildProcess, free_port, search_path
from mcprl.protocol import TOKEN_HEADER, TOKEN_VARIABLE
from mcprl.schemas import BadSchemaError, SchemaCheck
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import ToolDefinition, definition_of
from mcprl.tools.sandbox import filter_file, sandbox_command
from mcprl.tools.specs import FOLDER, PORT, ServerSpec
from mcprl.tools.transports.http import http_transport
from mcprl.tools.transports.stdio import stdio_transport

_logger = logging.getLogger(__name__)

_CONNECT_S = 2.0
_PORT_POLL_S = 0.05
_MAX_LIST_PAGES = 100
_OFFERED = 100
# Besides its text, a message holds JSON escapes, structured content or a long list of tools.
_MIN_MESSAGE_BYTES = 4 * 1024 * 1024
_MESSAGE_BYTES_PER_RESULT_BYTE = 16
# The bearer tokens of this process's servers are derived from this key.
_TOKEN_KEY = secrets.token_bytes(32)


class ResultChecks:
    """Checks results against the output schemas of a server's tools. Compiles each schema when first needed."""

    def __init__(self, server: str, schemas: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._server = server
        self._schemas = dict(schemas)
        self._checks: dict[str, SchemaCheck] = {}

    async def validate(self, name: str, result: CallToolResult) -> None:
        """Raise RuntimeError, as the SDK does, if a result violates the output schema of its tool."""
        schema = self._schemas.get(name)
        if schema is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"tool {name} has an output schema but did not return structured content")
        try:
            if name not in self._checks:
                self._checks[name] = await asyncio.to_thread(SchemaCheck, schema)
        except BadSchemaError as error:
            raise RuntimeError(f"the output schema of tool {name} is invalid: {error}") from error
        except OverLimitError as error:
            self._schemas[name] = None
            _logger.warning(
                "server %r: results of tool %r are not checked: its output schema %s", self._server, name, error
            )
            return
        try:
            error = self._checks[name].error(result.structured_content)
        except (OverLimitError, RecursionError) as error:
            raise RuntimeError(f"the structured content of tool {name} {error}") from error
        if error is not None:
            raise RuntimeError(f"invalid structured content returned by tool {name}: {error.message}")


def find_program(spec: ServerSpec) -> str | None:
    """Return the path of the program in a server's `command` or `start`; None if it is not found."""
    program = spec.command if spec.command is not None else spec.settings.start[0]
    if "/" in program:
        # Relative to the server's folder, as in a shell. Absolute, because the child changes its folder before the
        # exec.
        program = os.path.abspath(Path(spec.cwd or ".") / program)
    # Search here, because the operating system would search our PATH instead of the child's.
    return shutil.which(program, path=_environment(spec)["PATH"])


_VALIDATION_ERRORS = re.compile(r"Failed to validate request: \d+")
_DETAIL = re.compile(r"\s\s|\w+(\.\w+)+$")


class ServerLog:
    """Cleans the lines of a server's log, and drops the errors that mcp 1.x logs for the first request of a session.

    The first request is `server/discover`, which older servers do not know. mcp 1.x then logs one error for each kind
    of request that it knows, 31 in all. It answers with an error, and the client sends `initialize` instead.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._is_told = self._is_report = False

    def __call__(self, line: str) -> str | None:
        clean = self._clean(line)
        if not self._is_told and _VALIDATION_ERRORS.search(line):
            self._is_told = self._is_report = True
            return "[mcprl: this server does not support server/discover, so an older protocol version is used]"
        self._is_report = self._is_report and _DETAIL.match(line) is not None
        return None if self._is_report else clean


async def start_child(spec: ServerSpec, *, port: int | None, log: Path) -> ChildProcess:
    """Start the process of a server, with pipes if it uses stdio.

    `port` replaces `{port}` in a start command. Raises OSError if the program cannot be executed.
    """
    program = find_program(spec)
    if program is None:
        raise FileNotFoundError(f"command {spec.command or spec.settings.start[0]!r} not found on the PATH")
    arguments = spec.args if spec.command is not None else spec.settings.start[1:]
    argv = [program, *(word if port is None else word.replace(PORT, str(port)) for word in arguments)]
    start = functools.partial(
        ChildProcess.start, log=log, pipes=spec.command is not None, clean=ServerLog(SECRETS.line_cleaner())
    )
    environment, sandbox = _environment(spec), spec.settings.sandbox
    if sandbox is None:
        return await start(argv, env=environment, cwd=spec.cwd)
    path = environment["PATH"]
    with filter_file() as fd:
        build = functools.partial(sandbox_command, spec.name, sandbox, argv, path=path, cwd=spec.cwd, filter_fd=fd)
        # Runs off the event loop, because it reads files and starts a process the first time.
        command = await asyncio.to_thread(build)
        inside = {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", **spec.env}
        return await start(command, env=inside, cwd="/", pass_fds=(fd,))


async def port_answers(url: str) -> bool:
    """Return True if something accepts connections at the host and port of a URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _environment(spec: ServerSpec) -> dict[str, str]:
    """Return the variables that the SDK considers safe to inherit (HOME, PATH, USER etc.), plus those of the spec."""
    return {**get_default_environment(), "PATH": search_path(), **spec.env}


class Session:
    """An open session with a server. The task that opened it waits for its end with `until_over`."""

    client: Client
    definitions: tuple[ToolDefinition, ...] = ()
    version: str = ""

    def __init__(self, child: ChildProcess | None = None) -> None:
        self.child = child
        self.over = asyncio.Event()
        self.why = ""
        self.tools_changed = asyncio.Event()
        self.heard_at = 0.0
        """When the server last sent anything, in event loop time."""
        self.calls: set[asyncio.Task[CallToolResult]] = set()
        """Calls in progress, including those that no caller awaits any more."""

    def end(self, why: str) -> None:
        """Mark the session as over. Only the first reason is kept."""
        if not self.over.is_set():
            self.why = why
            self.over.set()

    def forget(self, call: asyncio.Task[CallToolResult]) -> None:
        """Remove a finished call. Retrieves its error, because its caller may have been cancelled."""
        self.calls.discard(call)
        if not call.cancelled():
            call.exception()

    def heard(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()

    async def until_over(self) -> None:
        """Wait until the session or its process has ended."""
        if self.child is None:
            await self.over.wait()
            return
        exited = asyncio.ensure_future(self.child.wait())
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({exited, over}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                self.end(f"its process ended with exit code {self.child.exit_code}")
        finally:
            exited.cancel()
            over.cancel()

    async def watch_tools(self) -> None:
        """Subscribe to tool list changes if the protocol is stateless. Older servers notify without a subscription."""
        capabilities = self.client.server_capabilities.tools
        is_modern = self.client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not is_modern or capabilities is None or not capabilities.list_changed:
            return
        # If the server refuses or drops the subscription, a change is noticed at the next start.
        with contextlib.suppress(MCPError, SubscriptionLost, TimeoutError):
            async with self.client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self.tools_changed.set()


async def open_session(stack: AsyncExitStack, spec: ServerSpec, log: Path) -> Session:
    """Start the server and initialize the session. `stack` closes both."""
    spec = _with_token(_with_folder(stack, spec))
    if spec.make is not None:
        session = Session()
        server: Any = spec.make()
    elif spec.url is not None:
        session, url = await _start_http(stack, spec, log)
        server = http_transport(
            url,
            spec,
            max_message_bytes=_max_message_bytes(spec),
            on_end=lambda: session.end("its stream ended"),
            on_message=session.heard,
            on_session_lost=lambda: session.end("it no longer knows the session"),
        )
    else:
        session = await _start_stdio(stack, spec, log)
        assert session.child is not None
        server = stdio_transport(
            session.child,
            max_message_bytes=_max_message_bytes(spec),
            on_end=lambda: session.end("its stream ended"),
            on_message=session.heard,
        )

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            session.tools_changed.set()

    # No response cache, because a restarted server must list its tools again.
    session.client = await stack.enter_async_context(Client(server, cache=None, message_handler=on_message))
    info = session.client.server_info
    session.version = info.version if info is not None else ""
    return session


async def list_tools(server: str, client: Client) -> tuple[ToolDefinition, ...]:
    """List all tools of a server, from all pages. The session then checks results against the output schemas."""
    tools: list[Tool] = []
    cursor: str | None = None
    size = 0
    for _ in range(_MAX_LIST_PAGES):
        page = await client.list_tools(cursor=cursor)
        size += await asyncio.to_thread(_measure, server, page.tools)
        if size > MAX_LISTING_BYTES:
            raise _too_large(server, f"is longer than {MAX_LISTING_BYTES} bytes")
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            # The SDK's own check would block the event loop for as long as the server's schema takes.
            checks = ResultChecks(server, {tool.name: tool.output_schema for tool in tools})
            client.session.validate_tool_result = checks.validate
            return await asyncio.to_thread(lambda: tuple(map(definition_of, tools)))
    raise ServerStartError(
        f"server {server!r} lists its tools on more than {_MAX_LIST_PAGES} pages",
        fix="correct the server: its last page must not have a nextCursor",
    )


async def offered_values(spec: ServerSpec, log: Path, *, deadline_s: float) -> dict[str, list[str]]:
    """Start a server and return argument values that it may accept, by argument name: its resources and completions.

    {"uri": ["demo://text/1"], "name": ["text 1"], "department": ["Sales", "Support"]}
    """
    try:
        async with asyncio.timeout(deadline_s), AsyncExitStack() as stack:
            return await _offered((await open_session(stack, spec, log)).client)
    except* (MCPError, TimeoutError) as errors:
        _logger.warning("server %r did not list its resources and completions: %s", spec.name, errors.exceptions[0])
    return {}


async def _offered(client: Client) -> dict[str, list[str]]:
    """Return the names and URIs of resources, and completions for the arguments of prompts and URI templates."""
    found: dict[str, list[str]] = {}
    able = client.server_capabilities
    references: list[tuple[Any, list[str]]] = []
    if able.resources is not None:
        resources = (await client.list_resources()).resources[:_OFFERED]
        found["uri"] = [str(each.uri) for each in resources]
        found["name"] = [each.name for each in resources]
        templates: list[Any] = []
        with contextlib.suppress(MCPError):  # many servers with resources have no templates
            templates += (await client.list_resource_templates()).resource_templates[:_OFFERED]
        for template in templates:
            uri = template.uri_template
            references.append((ResourceTemplateReference(type="ref/resource", uri=uri), re.findall(r"{(\w+)}", uri)))
    if able.prompts is not None and able.completions is not None:
        for prompt in (await client.list_prompts()).prompts[:_OFFERED]:
            names = [argument.name for argument in prompt.arguments or ()]
            references.append((PromptReference(type="ref/prompt", name=prompt.name), names))
    for reference, names in references if able.completions is not None else ():
        before: dict[str, str] = {}
        for name in names:
            asked = await client.complete(reference, {"name": name, "value": ""}, context_arguments=before or None)
            values = asked.completion.values[:_OFFERED]
            found.setdefault(name, []).extend(values)
            before |= {name: values[0]} if values else {}
    return {name: list(dict.fromkeys(values)) for name, values in found.items() if values}


def _measure(server: str, tools: Sequence[Tool]) -> int:
    try:
        # Twice the allowed depth of a schema, because tools that are not offered do not have to be usable.
        listed = [[tool.name, tool.description, tool.input_schema, tool.output_schema] for tool in tools]
        return measure(listed, most_bytes=MAX_LISTING_BYTES, most_depth=2 * MAX_DEPTH)
    except OverLimitError as error:
        raise _too_large(server, str(error)) from error


def _too_large(server: str, what: str) -> ToolLimitError:
    return ToolLimitError(
        f"the tool list of server {server!r} {what}",
        fix="disable the server in the mcpServers file, or ask its author for a shorter list",
    )


def _with_folder(stack: AsyncExitStack, spec: ServerSpec) -> ServerSpec:
    """Return the spec with {folder} replaced by a new folder."""
    words = (*spec.args, *spec.env.values(), *spec.settings.start, spec.cwd or "")
    if not any(FOLDER in word for word in words):
        return spec
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcprl-", ignore_cleanup_errors=True))
    changes: dict[str, Any] = {"start": tuple(word.replace(FOLDER, folder) for word in spec.settings.start)}
    if (sandbox := spec.settings.sandbox) is not None:
        changes["sandbox"] = sandbox.model_copy(update={"write": (*sandbox.write, Path(folder))})
    return replace(
        spec,
        args=tuple(word.replace(FOLDER, folder) for word in spec.args),
        env={name: value.replace(FOLDER, folder) for name, value in spec.env.items()},
        cwd=spec.cwd and spec.cwd.replace(FOLDER, folder),
        settings=spec.settings.model_copy(update=changes),
    )


def _with_token(spec: ServerSpec) -> ServerSpec:
    """Return the spec with a bearer token, if mcprl starts the server on a port that every local user can connect to.

    The server gets the token in its environment, and mcprl sends it with each request. Each server has its own token,
    so that no server can call another. Every start reuses the token, because registered secrets are never dropped.
    """
    if not spec.settings.start:
        return spec
    token = hashlib.blake2b(spec.name.encode(), key=_TOKEN_KEY, digest_size=32).hexdigest()
    return replace(spec, env={TOKEN_VARIABLE: token, **spec.env}, headers={TOKEN_HEADER: token, **spec.headers})


def _max_message_bytes(spec: ServerSpec) -> int:
    return max(_MIN_MESSAGE_BYTES, _MESSAGE_BYTES_PER_RESULT_BYTE * spec.settings.max_result_bytes)


async def _start_stdio(stack: AsyncExitStack, spec: ServerSpec, log: Path) -> Session:
    if find_program(spec) is None:
        raise ServerStartError(
            f"server {spec.name!r} did not start: command {spec.command!r} not found",
            fix="install the command, or correct 'command' in the mcpServers file",
        )
    child = await start_child(spec, port=None, log=log)
    stack.push_async_callback(child.stop)
    return Session(child)


async def _start_http(stack: AsyncExitStack, spec: ServerSpec, log: Path) -> tuple[Session, str]:
    """Return the session and the URL of its server. Starts the server if the spec has a start command."""
    assert spec.url is not None
    if not spec.settings.start:
        return Session(), spec.url
    port = free_port() if PORT in spec.url else None
    url = spec.url if port is None else spec.url.replace(PORT, str(port))
    if await port_answers(url):
        raise ServerStartError(
            f"server {spec.name!r} was not started, because another process already answers at {url}",
            fix=f"stop the other process, or write {PORT} instead of the port number in url and start",
        )
    child = await start_child(spec, port=port, log=log)
    stack.push_async_callback(child.stop)
    while not await port_answers(url):
        if child.exit_code is not None:
            raise OSError(f"it ended with exit code {child.exit_code} before its port answered")
        await asyncio.sleep(_PORT_POLL_S)
    return Session(child), url
