"""The tool servers of a run: the standard mcpServers file plus the settings of the recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcprl.bounds import OverLimitError, decode_json, read_text
from mcprl.config import ServersConfig, ServerSettings
from mcprl.errors import ServerFileError, did_you_mean
from mcprl.secrets import SECRETS
from mcprl.tools.cassette import Cassette
from mcprl.tools.keys import expand_entries, register_secrets

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

PORT = "{port}"
"""Placeholder for a free port, in the URL and in the start command of a server that mcprl starts itself."""

FOLDER = "{folder}"
"""Placeholder for a new, empty folder, in `args`, `env`, `cwd` and the start command. Each start of a server gets its
own folder, which is removed when the server ends. So the servers of two episodes share no files."""

# Other clients use these for their user interface. They do not change what a server does.
_IGNORED_FIELDS = frozenset({"description", "icon", "autoApprove", "alwaysAllow"})


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    disabled: bool = False
    env: dict[str, str] = {}


_E = TypeVar("_E", bound=_Entry)


class _StdioEntry(_Entry):
    type: Literal["stdio"] = "stdio"
    transport: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: list[str] = []
    cwd: str | None = Field(None, min_length=1)


_Http = Literal["http", "streamable-http", "streamable_http", "streamableHttp"]


class _UrlEntry(_Entry):
    type: _Http = "http"
    transport: _Http = "http"
    url: str
    headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One tool server: a command (used over stdio), a URL (used over streamable HTTP), or a function that creates a
    server inside this process (only from Python, never from a file).

    ServerSpec(name="time", command="mcp-server-time", args=("--local-timezone", "UTC"))
    ServerSpec(name="directory", url="http://127.0.0.1:{port}/mcp",
               settings=ServerSettings(start=("mcprl", "serve", "directory", "--http", "--port", "{port}")))
    ServerSpec(name="board", make=make_board, settings=ServerSettings(isolation="per_episode"))

    Fields that may contain keys are left out of its `repr`, and the keys are registered as secrets.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    make: Callable[[], MCPServer] | None = None
    settings: ServerSettings = field(default_factory=ServerSettings)

    def __post_init__(self) -> None:
        if [self.command, self.url, self.make].count(None) != 2:
            raise ValueError(f"server {self.name!r} needs exactly one of command, url and make")
        if self.settings.start and self.url is None:
            raise ValueError(f"server {self.name!r}: start applies only to a server reached by URL")
        if self.settings.sandbox is not None and self.command is None:
            raise ValueError(f"server {self.name!r}: sandbox applies only to a server with a command")
        if (self.url is not None and PORT in self.url) != any(PORT in word for word in self.settings.start):
            raise ValueError(f"server {self.name!r}: {PORT} must be in both url and start, or in neither")
        register_secrets(
            self.name, {"args": self.args, "env": self.env, "headers": self.headers, "url": self.url or ""}
        )


def load_server_specs(path: Path, settings: Mapping[str, ServerSettings]) -> tuple[ServerSpec, ...]:
    """Read an mcpServers file as other MCP clients write it, and add the run's settings for each server.

    An entry has `command` (with `args`, `env`, `cwd`) or `url` (with `headers`, and `env` for the start command).
    `type` and `transport`, if present, must match it. An entry with `"disabled": true` is left out.
    A command such as `./server` or `../bin/server` is relative to the folder of the file.
    `description`, `icon`, `autoApprove` and `alwaysAllow` are for other clients and ignored. Anything else is an error,
    because ignoring it could change what the server does.

    `${NAME}` is a key from the environment or `.env` (see `mcprl.tools.keys`). All missing keys are reported in one
    error; a disabled server needs none. The keys are registered as secrets.
    """
    entries = _read_entries(path)
    enabled = {name: entry for name, entry in entries.items() if not _is_disabled(path, name, entry)}
    for name in settings:
        if name not in enabled:
            _reject_unknown_settings(path, name, entries)
    expanded = expand_entries(path, enabled)
    return tuple(
        _make_spec(path, name, entry, settings.get(name, ServerSettings())) for name, entry in expanded.items()
    )


def load_specs(config: ServersConfig) -> tuple[ServerSpec, ...]:
    """Load the servers that a recipe starts. In mode mixed, skip settings for servers that only the cassette has."""
    assert config.file is not None
    settings = config.settings
    if config.cassette_mode == "mixed" and config.cassette is not None:
        with Cassette.open(config.cassette, writable=False) as cassette:
            recorded = cassette.tools().keys() - _read_entries(config.file).keys()
        settings = {name: own for name, own in settings.items() if name not in recorded}
    return load_server_specs(config.file, settings)


def _read_entries(path: Path) -> dict[str, dict[str, Any]]:
    try:
        text = read_text(path).strip()
    except OSError as error:
        raise ServerFileError(f"{path} cannot be read: {error}", fix="pass the path of an mcpServers file") from error
    except ValueError as error:
        raise ServerFileError(f"{path} {error}", fix="pass the path of an mcpServers file") from error
    try:
        document, end = decode_json(text, _DECODER)
        if end != len(text):
            raise ValueError(f"there is text after the object, at character {end}")
    except OverLimitError as error:
        raise ServerFileError(f"{path} {error}", fix="pass the path of an mcpServers file") from error
    except ValueError as error:
        raise ServerFileError(f"{path} is not valid JSON: {error}", fix="correct the file at this position") from error
    servers = cast("dict[str, Any]", document).get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise ServerFileError(
            f"{path} has no 'mcpServers' object",
            fix='write {"mcpServers": {"NAME": {"command": "…"}}}, as for other MCP clients',
        )
    for name, entry in cast("dict[str, Any]", servers).items():
        if not isinstance(entry, dict):
            _reject(path, name, "is not an object", "write an object with a 'command' or a 'url'")
    return cast("dict[str, dict[str, Any]]", servers)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python's JSON parser silently keeps only the last of two equal keys.
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice in one object")
        result[key] = value
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates)


def _is_disabled(path: Path, name: str, entry: Mapping[str, Any]) -> bool:
    disabled = entry.get("disabled", False)
    if not isinstance(disabled, bool):
        _reject(path, name, f"has the value {disabled!r} for 'disabled'", "write true or false")
    return disabled


def _reject_unknown_settings(path: Path, name: str, entries: Mapping[str, Any]) -> NoReturn:
    if name in entries:
        raise ServerFileError(
            f"the configuration has settings for server {name!r}, which {path} disables",
            fix="enable the server, or remove its settings",
        )
    hint = did_you_mean(name, entries)
    raise ServerFileError(
        f"the configuration has settings for server {name!r}, which is not in {path}{hint}",
        fix="correct the name, or add the server to the file",
    )


def _make_spec(path: Path, name: str, fields: Mapping[str, Any], settings: ServerSettings) -> ServerSpec:
    fields = {key: value for key, value in fields.items() if key not in _IGNORED_FIELDS and value is not None}
    if ("command" in fields) == ("url" in fields):
        which = "both 'command' and 'url'" if "url" in fields else "neither 'command' nor 'url'"
        _reject(path, name, f"has {which}", "use exactly one of them")
    if "command" in fields:
        entry = _validated(path, name, _StdioEntry, fields)
        if settings.start:
            _reject(
                path, name, "has a 'command' and also settings.start", "remove 'start': the command starts the server"
            )
        command = entry.command
        if "/" in command:
            # Do not resolve symlinks: a virtual environment's python is one, and its target lacks the packages.
            command = os.path.abspath(path.parent / command)
        return ServerSpec(
            name=name, command=command, args=tuple(entry.args), env=entry.env, cwd=entry.cwd, settings=settings
        )
    entry = _validated(path, name, _UrlEntry, fields)
    if settings.sandbox is not None:
        _reject(
            path, name, "has a 'url' and also settings.sandbox", "start the server with 'command', or remove 'sandbox'"
        )
    _check_url(path, name, entry.url, settings.start)
    if "env" in fields and not settings.start:
        _reject(path, name, "has 'env' but is not started by mcprl", "remove 'env', or set 'start'")
    return ServerSpec(name=name, url=entry.url, env=entry.env, headers=entry.headers, settings=settings)


def _validated(path: Path, name: str, kind: type[_E], fields: Mapping[str, Any]) -> _E:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        # Leave out the input, because it may contain a key.
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"an invalid field {place!r}: {first['msg']}"
        if first["type"] == "extra_forbidden":
            problem = f"an unknown field {place!r}{did_you_mean(place, kind.model_fields)}"
        _reject(path, name, f"has {problem}", "correct the field, or remove it")


def _check_url(path: Path, name: str, url: str, start: tuple[str, ...]) -> None:
    in_start = any(PORT in word for word in start)
    if PORT in url and not start:
        _reject(path, name, f"has {PORT} in its url but no 'start'", "set 'start', or write a port number")
    if PORT in url and not in_start:
        _reject(path, name, f"has {PORT} in its url but not in 'start'", f"pass {PORT} to the start command")
    if in_start and PORT not in url:
        _reject(path, name, f"has {PORT} in 'start' but not in its url", f"use {PORT} in the url")
    try:
        parts = urlsplit(url.replace(PORT, "1"))
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        _reject(path, name, f"has an invalid url: {url!r}", "write http://HOST:PORT/PATH or https://…")


def _reject(path: Path, name: str, problem: str, fix: str) -> NoReturn:
    raise ServerFileError(f"{path}: server {name!r} {SECRETS.redact(problem)}", fix=fix)
