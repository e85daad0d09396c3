"""Which tool servers there are and how each is reached: the standard mcpServers file plus the run's own settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

from mcprl.config import ServerSettings
from mcprl.errors import ServerFileError, did_you_mean
from mcprl.secrets import SECRETS
from mcprl.tools.keys import (
    Expansion,
    load_keys,
    missing_keys_error,
    refuse_foreign_references,
    register_expanded,
    register_secrets,
)

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["FOLDER", "PORT", "ServerSpec", "load_server_specs"]

PORT = "{port}"
"""Stands for a free port in the URL and in the start command of a server that mcprl starts itself."""

FOLDER = "{folder}"
"""Stands for a new, empty folder in `args`, `env`, `cwd` and the start command: one for each life of a server, gone
with it. Two episodes that have servers of their own so do not meet in a file either."""

_STDIO_FIELDS = frozenset({"command", "args", "env", "cwd"})
_URL_FIELDS = frozenset({"url", "headers", "env"})
# Other clients write these for their own screens; they change nothing about what a server does.
_IGNORED_FIELDS = frozenset({"description", "icon", "autoApprove", "alwaysAllow"})
_SHARED_FIELDS = frozenset({"type", "transport", "disabled"}) | _IGNORED_FIELDS
_STDIO_TYPES = frozenset({"stdio"})
_URL_TYPES = frozenset({"http", "streamable-http", "streamable_http", "streamableHttp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One tool server: a command spoken to over its standard streams, a URL spoken to over streamable HTTP, or a
    function that makes a server inside this process (from Python only, never from a file).

    ServerSpec(name="time", command="mcp-server-time", args=("--local-timezone", "UTC"))
    ServerSpec(name="directory", url="http://127.0.0.1:{port}/mcp",
               settings=ServerSettings(start=("mcprl", "serve", "directory", "--http", "--port", "{port}")))
    ServerSpec(name="board", make=make_board, settings=ServerSettings(isolation="per_episode"))

    Fields that may hold keys are not in its `repr`, and the keys are known to the registry of secrets.
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
            raise ValueError(f"server {self.name!r}: start belongs to a server reached by URL")
        if (self.url is not None and PORT in self.url) != any(PORT in word for word in self.settings.start):
            raise ValueError(f"server {self.name!r}: {PORT} belongs in both the url and start, or in neither")
        register_secrets(
            self.name, {"args": self.args, "env": self.env, "headers": self.headers, "url": self.url or ""}
        )


def load_server_specs(
    path: Path, settings: Mapping[str, ServerSettings], env_file: Path | None = None
) -> tuple[ServerSpec, ...]:
    """Read an mcpServers file as other MCP clients write it, and add what the run says about each server.

    An entry has `command` (with `args`, `env`, `cwd`) or `url` (with `headers`, and `env` for the start command).
    A command such as `./server` or `../bin/server` is seen from the folder of the file.
    `type` or `transport`, where present, must agree with that. An entry with `"disabled": true` is left out.
    `description`, `icon`, `autoApprove` and `alwaysAllow` are for other clients and ignored. Anything else is an error,
    because ignoring it could change what the server does.

    `${NAME}` stands for a key from the environment or `env_file` (see `mcprl.tools.keys`). Keys that are missing are
    reported all at once; a disabled server needs none. The keys are made known to the registry of secrets.
    """
    entries = _read_entries(path)
    enabled = {name: entry for name, entry in entries.items() if not _is_disabled(path, name, entry)}
    for name in settings:
        if name not in enabled:
            _reject_unknown_settings(path, name, entries)
    expanded = _expand(path, enabled, env_file)
    return tuple(
        _make_spec(path, name, entry, settings.get(name, ServerSettings())) for name, entry in expanded.items()
    )


def _expand(path: Path, entries: Mapping[str, dict[str, Any]], env_file: Path | None) -> dict[str, dict[str, Any]]:
    SECRETS.install_in_logging()
    keys = load_keys(env_file)
    expansions = {name: Expansion(entry, keys) for name, entry in entries.items()}
    for name, expansion in expansions.items():
        refuse_foreign_references(path, name, expansion)
        # Before anything about the entry is said: the sentence could hold a key.
        register_expanded(expansion)
        register_secrets(name, expansion.entry)
    missing = {name: expansion.missing for name, expansion in expansions.items() if expansion.missing}
    if missing:
        raise missing_keys_error(path, missing, env_file)
    return {name: expansion.entry for name, expansion in expansions.items()}


def _read_entries(path: Path) -> dict[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ServerFileError(f"{path} cannot be read: {error}", fix="give the path of an mcpServers file") from error
    try:
        document = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except ValueError as error:
        raise ServerFileError(f"{path} is not JSON: {error}", fix="correct the file at that place") from error
    servers = cast("dict[str, Any]", document).get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise ServerFileError(
            f"{path} has no object 'mcpServers'",
            fix='write {"mcpServers": {"NAME": {"command": "…"}}}, as other MCP clients do',
        )
    for name, entry in cast("dict[str, Any]", servers).items():
        if not isinstance(entry, dict):
            _reject(path, name, "is not an object", "give it a 'command' or a 'url'")
    return cast("dict[str, dict[str, Any]]", servers)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON itself lets the last of two equal keys win without a word.
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice in one object")
        result[key] = value
    return result


def _is_disabled(path: Path, name: str, entry: Mapping[str, Any]) -> bool:
    disabled = entry.get("disabled", False)
    if not isinstance(disabled, bool):
        _reject(path, name, f"has 'disabled' {disabled!r}", "write true or false")
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


def _make_spec(path: Path, name: str, entry: Mapping[str, Any], settings: ServerSettings) -> ServerSpec:
    command, url = entry.get("command"), entry.get("url")
    if (command is None) == (url is None):
        which = "neither 'command' nor 'url'" if command is None else "both 'command' and 'url'"
        _reject(path, name, f"has {which}", "give it exactly one of them")
    _check_fields(path, name, entry, is_url=url is not None)
    if url is None:
        if settings.start:
            _reject(path, name, "has a 'command' and also settings.start", "remove 'start': the command starts it")
    else:
        _check_url(path, name, _text(path, name, entry, "url"), settings.start)
        if "env" in entry and not settings.start:
            _reject(path, name, "has 'env' but is not started by mcprl", "remove 'env', or set 'start' for it")
    return ServerSpec(
        name=name,
        command=None if command is None else _program(path, _text(path, name, entry, "command")),
        args=_text_list(path, name, entry, "args"),
        env=_text_mapping(path, name, entry, "env"),
        cwd=_text(path, name, entry, "cwd") if "cwd" in entry else None,
        url=None if url is None else _text(path, name, entry, "url"),
        headers=_text_mapping(path, name, entry, "headers"),
        settings=settings,
    )


def _program(path: Path, command: str) -> str:
    """A name is looked up on PATH; a relative path with a folder in it is relative to the mcpServers file."""
    # Links are left alone: a virtual environment's python is one, and what it points to has none of its packages.
    return os.path.abspath(path.parent / command) if "/" in command else command


def _check_fields(path: Path, name: str, entry: Mapping[str, Any], *, is_url: bool) -> None:
    known = _SHARED_FIELDS | (_URL_FIELDS if is_url else _STDIO_FIELDS)
    for key in entry:
        if key not in known:
            hint = did_you_mean(key, known)
            _reject(path, name, f"has an unknown field {key!r}{hint}", "correct the field, or remove it")
    types = _URL_TYPES if is_url else _STDIO_TYPES
    for key in ("type", "transport"):
        if key in entry and entry[key] not in types:
            reached = "a 'url', which is spoken to over streamable HTTP" if is_url else "a 'command'"
            _reject(
                path, name, f"has {key!r} {entry[key]!r} but {reached}", f"write {sorted(types)[0]!r}, or remove it"
            )


def _check_url(path: Path, name: str, url: str, start: tuple[str, ...]) -> None:
    in_start = any(PORT in word for word in start)
    if PORT in url and not start:
        _reject(path, name, f"has {PORT} in its url but no 'start'", "set 'start' for it, or write the port")
    if PORT in url and not in_start:
        _reject(path, name, f"has {PORT} in its url but not in 'start'", f"pass {PORT} to the start command")
    if in_start and PORT not in url:
        _reject(path, name, f"has {PORT} in 'start' but not in its url", f"write the url with {PORT}")
    try:
        parts = urlsplit(url.replace(PORT, "1"))
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        _reject(path, name, f"has a url that is none: {url!r}", "write http://HOST:PORT/PATH or https://…")


def _text(path: Path, name: str, entry: Mapping[str, Any], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        _reject(path, name, f"has {key!r} {value!r}", "write a text")
    return value


def _text_list(path: Path, name: str, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[Any]", value)):
        _reject(path, name, f"has {key!r} {value!r}", "write a list of texts")
    return tuple(cast("list[str]", value))


def _text_mapping(path: Path, name: str, entry: Mapping[str, Any], key: str) -> dict[str, str]:
    value = entry.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in cast("dict[str, Any]", value).values()):
        # The values may be secrets, so they are not shown.
        _reject(path, name, f"has {key!r} that is no object of texts", 'write {"NAME": "value"}')
    return cast("dict[str, str]", value)


def _reject(path: Path, name: str, problem: str, fix: str) -> NoReturn:
    raise ServerFileError(f"{path}: server {name!r} {SECRETS.redact(problem)}", fix=fix)
