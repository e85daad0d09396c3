"""API keys for tool servers: where they come from, how the mcpServers file refers to them, and which are secrets.

The file itself holds no keys. Like other MCP clients, mcprl expands `${NAME}` and `${NAME:-default}` in `command`,
`args`, `url` and in the values of `env` and `headers`, and nowhere else. It looks up `NAME` in the environment, then in
the env file. An empty value counts as missing, because the server would reject it later.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from dotenv.parser import parse_stream

from mcprl.errors import MissingKeyError, ServerFileError
from mcprl.secrets import MIN_SECRET_CHARACTERS, SECRETS, looks_secret

_KEY_FILE = Path(".env")  # in the folder where mcprl is started
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}")
_FOREIGN_REFERENCE = re.compile(r"\$\{(?:env:|input:|[A-Za-z_][A-Za-z0-9_]*:-[^}]*\{)[^}]*\}")
_SCHEMES = frozenset({"apikey", "basic", "bearer", "token"})
_MIN_PATH_SECRET = 20


def load_keys() -> Mapping[str, str]:
    """Return the environment variables plus the `NAME=value` lines of `.env` in the current folder, if it exists.

    Values are literal: `$` in a password is a dollar sign. Quotes, comments and `export` work as in other tools that
    read such files. A line that cannot be parsed is an error.
    """
    in_file = _read(_KEY_FILE) if _KEY_FILE.exists() else {}
    return {**in_file, **{name: value for name, value in os.environ.items() if value}}


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MissingKeyError(
            f"the env file {path} cannot be read: {problem}", fix="make it a readable NAME=value file, or delete it"
        ) from None
    keys: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            raise MissingKeyError(  # do not show the line, because it may contain a key
                f"the env file {path} is invalid: line {binding.original.line} is not NAME=value",
                fix="correct the line, or start it with # to make it a comment",
            )
        if binding.key is not None and binding.value:
            keys[binding.key] = binding.value
    return keys


class Expansion:
    """One entry of the mcpServers file with its references replaced. `used` holds the keys found, `missing` the others.

    Expansion({"command": "fmp", "env": {"KEY": "${FMP_API_KEY}"}}, {"FMP_API_KEY": "3f9a…"}).entry
    == {"command": "fmp", "env": {"KEY": "3f9a…"}}
    """

    def __init__(self, entry: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        self._keys = keys
        self.used: dict[str, str] = {}
        self.missing: list[str] = []
        self.foreign: list[str] = []
        self.entry: dict[str, Any] = dict(entry)
        for field in ("command", "url", "args", "env", "headers"):
            if field in entry:
                self.entry[field] = _map_strings(entry[field], self._expand)

    def _expand(self, text: str) -> str:
        self.foreign += _FOREIGN_REFERENCE.findall(text)
        return _REFERENCE.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        value = self._keys.get(name)
        if value:
            self.used[name] = value
            return value
        if default is None and name not in self.missing:
            self.missing.append(name)
        return default or ""


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in a field, but not to the keys of objects. Other types are rejected later."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _map_strings(item, change) for name, item in cast("dict[str, Any]", value).items()}
    return value


def expand_entries(path: Path, entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries of an mcpServers file with references replaced by keys. Keys that are secrets are registered.

    Raises one MissingKeyError that names all missing keys.
    """
    SECRETS.install_in_logging()
    keys = load_keys()
    expansions = {name: Expansion(entry, keys) for name, entry in entries.items()}
    missing: dict[str, list[str]] = {}
    for server, expansion in expansions.items():
        if expansion.foreign:
            # References in the syntax of other clients. Passed on literally, they would be wrong keys.
            raise ServerFileError(
                f"{path}: server {server!r} uses {expansion.foreign[0]!r}, which mcprl does not expand",
                fix="write ${NAME} or ${NAME:-default}",
            )
        # Register before any message about the entry, because the message could contain a key. A value that looks like
        # a path, a region or a date is not a secret, unless its variable has the name of a secret.
        for name, value in expansion.used.items():
            _register(name, value, surely=looks_secret(name))
        register_secrets(server, expansion.entry)
        for name in expansion.missing:
            missing.setdefault(name, []).append(repr(server))
    if missing:
        names = "; ".join(f"{name} for server {' and '.join(servers)}" for name, servers in missing.items())
        raise MissingKeyError(
            f"{path} needs keys that are not set: {names}",
            fix=f"set each key in the environment or as a line NAME=value in {_KEY_FILE.absolute()}, or disable the "
            "server; for a value that may be empty, write ${NAME:-}",
        )
    return {name: expansion.entry for name, expansion in expansions.items()}


def register_secrets(server: str, entry: Mapping[str, Any]) -> None:
    """Register the secrets in an entry, so that they are redacted everywhere.

    - In `env` and `headers`: values with a name like API_KEY, which suggests a secret. In `Bearer X`, only X is secret.
    - In `args`: values of options with such a name.
    - In URLs: the password, query parameters with such a name, and long random parts of the path.
    """
    for field in ("env", "headers"):
        values = entry.get(field)
        if isinstance(values, Mapping):
            for name, value in cast("Mapping[str, Any]", values).items():
                if isinstance(value, str) and (looks_secret(name) or "://" in value):
                    _register(name, value, surely=True)
    words = entry.get("args")
    if isinstance(words, list | tuple):
        _register_options([word for word in cast("list[Any]", words) if isinstance(word, str)])
    url = entry.get("url")
    if isinstance(url, str):
        _register_url(server, url)


def _register(name: str, value: str, *, surely: bool) -> None:
    if "://" in value:
        _register_url(name, value)
        return
    scheme, _, rest = value.strip().partition(" ")
    if rest and scheme.lower() in _SCHEMES:
        value = rest.strip()
        if scheme.lower() == "basic":
            _register_basic(name, value)
    if surely or not _is_plain(value):
        SECRETS.add(name, value)


def _register_basic(name: str, value: str) -> None:
    try:
        decoded = base64.b64decode(value, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        return
    SECRETS.add(name, decoded.partition(":")[2])


def _register_options(words: list[str]) -> None:
    for word, following in pairwise([*words, ""]):
        if "://" in word:
            _register_url("argument", word)
        option, is_assigned, value = word.partition("=")
        if option.startswith("-") and looks_secret(option):
            value = value if is_assigned else following
            if not value.startswith("-"):
                _register(option.lstrip("-"), value, surely=False)


def _register_url(name: str, text: str) -> None:
    try:
        parts = urlsplit(text)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return  # not a URL; the validation of the entry reports it
    SECRETS.add(f"{name}_password", unquote(password))
    if not password and not _is_plain(user):
        SECRETS.add(f"{name}_user", unquote(user))
    for parameter, value in parse_qsl(parts.query):
        if looks_secret(parameter):
            SECRETS.add(parameter, value)
    for part in parts.path.split("/"):
        if len(part) >= _MIN_PATH_SECRET and not _is_plain(part):
            SECRETS.add(f"{name}_path", unquote(part))


_PLAIN_PIECE = re.compile(r"[a-z]{0,14}|[A-Z]{0,14}|[A-Z][a-z]{0,13}|[0-9]{1,8}|[A-Za-z0-9]{1,4}")


def _is_plain(value: str) -> bool:
    """Return True if a value consists of words and small numbers, like a path, host, region, date or model name."""
    return len(value) < MIN_SECRET_CHARACTERS or all(
        _PLAIN_PIECE.fullmatch(piece) for piece in re.split(r"[^A-Za-z0-9]", value)
    )
