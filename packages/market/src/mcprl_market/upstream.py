"""The HTTP client of the live sources: timeouts, a size limit, and a distinction between failures.

A request ends in one of three ways:

    the decoded JSON     the upstream answered; read it field by field with `JsonFields`
    UpstreamRefusal      it rejected the request (400, 404, 422); the server reports that in a ToolError
    MCPError             anything else: key rejected, busy, broken, slow, gone, cut off, not JSON, too large. A client
                         sees a JSON-RPC error, so the failure is never blamed on the caller. Its data has
                         RETRY_AFTER_S if the upstream asked to wait.

No message contains a key. Redirects are not followed, because the key would be sent along.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import quote

import httpx2
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from mcprl.errors import BadValueError, MissingKeyError
from mcprl.protocol import RETRY_AFTER_S, retry_after_s
from mcprl.secrets import SECRETS

T = TypeVar("T")

MAX_BODY_BYTES = 8 * 1024 * 1024
UNSAID_WAIT_S = 1.0
"""Seconds to wait after a 429 without Retry-After."""

_CONNECT_S = 5.0
_MAX_DETAIL_CHARS = 300
_REFUSALS = frozenset({400, 404, 422})
_KEY_REFUSALS = frozenset({401, 402, 403})


class UpstreamRefusal(Exception):
    """The upstream works but rejected this request. `text` is the beginning of its response, without secrets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status
        self.text = text


class Upstream:
    """One upstream: its address, the parameters of every request, and one HTTP client, which is created when needed.

    `params` and `headers` carry the key. `deadline_s` covers a whole request including its body, even if the body keeps
    arriving in small pieces. `lifespan` is for the MCP server: `MCPServer(…, lifespan=upstream.lifespan)`.

        Upstream("fmp", "https://example.org/stable", params={"apikey": required_key("fmp", "FMP_API_KEY")})
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        deadline_s: float = 10.0,
    ) -> None:
        self.name = name
        self._base_url = base_url.rstrip("/")
        self._headers = {"accept": "application/json", **(headers or {})}
        self._params = dict(params or {})
        self._deadline_s = deadline_s
        self._client: httpx2.AsyncClient | None = None

    async def get(self, path: str, params: Mapping[str, str | int] | None = None) -> Any:
        """Send a GET. Return the decoded response. Escape a caller's text in `path` with `path_segment`."""
        return await self._exchange("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST with a JSON body. Return the decoded response."""
        return await self._exchange("POST", path, body=body)

    @asynccontextmanager
    async def lifespan(self, _server: object) -> AsyncGenerator[None]:
        """Close the client when the MCP server ends."""
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        # Failures are raised `from None`, because httpx2's messages contain the URL, and the URL contains the key.
        try:
            async with asyncio.timeout(self._deadline_s):
                request = self._running_client().build_request(
                    method, self._base_url + path, params={**(params or {}), **self._params}, json=body
                )
                response = await self._running_client().send(request, stream=True)
                try:
                    content = await self._read(response)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx2.TimeoutException):
            raise upstream_fault(self.name, f"did not answer within {self._deadline_s:g} s") from None
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise upstream_fault(self.name, f"could not be reached ({type(error).__name__}: {error})") from None
        if response.status_code != 200:
            self._fail(response, _text(content))
        return self._decoded(content)

    def _running_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            timeout = httpx2.Timeout(self._deadline_s, connect=min(_CONNECT_S, self._deadline_s))
            self._client = httpx2.AsyncClient(headers=self._headers, timeout=timeout, follow_redirects=False)
        return self._client

    async def _read(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_BODY_BYTES:
                raise upstream_fault(self.name, f"sent a response of more than {MAX_BODY_BYTES} bytes")
        return bytes(content)

    def _fail(self, response: httpx2.Response, text: str) -> NoReturn:
        status = response.status_code
        detail = f"HTTP {status}" + (f": {text}" if text else "")
        if status in _REFUSALS:
            raise UpstreamRefusal(status, text)
        if status in _KEY_REFUSALS:
            raise upstream_fault(
                self.name, f"rejected the key, or the key does not give access to this data ({detail})"
            )
        wait_s = retry_after_s(response.headers)
        if status == 429:
            raise upstream_fault(
                self.name, f"received too many calls ({detail})", UNSAID_WAIT_S if wait_s is None else wait_s
            )
        if response.is_redirect:
            raise upstream_fault(
                self.name,
                f"redirected the request ({detail}), which mcprl does not follow, because the key would be passed on",
            )
        # Asking for a retry promises that the first call did nothing. Only a read can promise that.
        raise upstream_fault(self.name, f"failed ({detail})", wait_s if response.request.method == "GET" else None)

    def _decoded(self, content: bytes) -> Any:
        try:
            return json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise upstream_fault(self.name, f"did not respond with JSON: {_text(content)}") from None


def upstream_fault(name: str, what: str, retry_after_s: float | None = None) -> MCPError:
    """Return the error for a failure of the upstream `name`. `retry_after_s` asks the client to retry later."""
    data = None if retry_after_s is None else {RETRY_AFTER_S: retry_after_s}
    return MCPError(INTERNAL_ERROR, SECRETS.redact(f"{name}: the upstream {what}"), data)


def required_key(server: str, variable: str) -> str:
    """Return the key in an environment variable, and register it as a secret. Raises if it is missing."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MissingKeyError(
            f"server {server!r} needs {variable}, which is not set",
            fix=f"set {variable}, or serve an offline world, which does not need a key: mcprl serve {server} --world 7",
        )
    SECRETS.add(variable, key)
    return key


def base_url(variable: str, default: str) -> str:
    """Return an upstream's address (for example, a proxy's) from an environment variable, or else `default`."""
    url = os.environ.get(variable, "").strip() or default
    if not url.startswith(("https://", "http://")):
        raise BadValueError(f"{variable} is {url!r}, which is not a URL", fix=f"use a URL such as {default}")
    return url


def path_segment(text: str) -> str:
    """Escape a string as one segment of a path, so that it adds no segments or parameters. Not for "." and ".."."""
    return quote(text, safe="")


def _text(content: bytes) -> str:
    """Return the beginning of a body on one line. Redacts before cutting, because half a key is not recognized."""
    text = " ".join(SECRETS.redact(content[: 8 * _MAX_DETAIL_CHARS].decode(errors="replace")).split())
    return text if len(text) <= _MAX_DETAIL_CHARS else f"{text[: _MAX_DETAIL_CHARS - 1]}…"


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


class JsonFields:
    """One JSON object. Its readers raise an MCPError that names the field; `maybe_…` return None for null or missing.

    JsonFields("fmp", "quote", {"symbol": "VLKN", "price": 213.88}).number("price")   # 213.88
    JsonFields("fmp", "quote", {"symbol": "VLKN"}).number("price")
    # MCPError: fmp: the upstream sent an unexpected response: quote.price should be a number, but is missing
    """

    def __init__(self, upstream: str, where: str, value: Any) -> None:
        self._upstream = upstream
        self._where = where
        if not isinstance(value, dict):
            raise _wrong(upstream, where, "an object", value)
        self._fields = cast("dict[str, Any]", value)

    def __contains__(self, name: str) -> bool:
        """Return True if the field exists and is not null."""
        return self._fields.get(name) is not None

    def text(self, name: str) -> str:
        return self._needed(name, "a string", self.maybe_text(name))

    def maybe_text(self, name: str) -> str | None:
        found = self._fields.get(name)
        if found is not None and not isinstance(found, str):
            raise self.wrong(name, "a string")
        return found

    def number(self, name: str) -> float:
        return self._needed(name, "a number", self.maybe_number(name))

    def maybe_number(self, name: str) -> float | None:
        found = self._fields.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.wrong(name, "a number")
        try:
            return float(found)
        except OverflowError:
            raise self.wrong(name, "a number that fits a 64-bit float") from None

    def whole(self, name: str) -> int:
        return self._needed(name, "a whole number", self.maybe_whole(name))

    def maybe_whole(self, name: str) -> int | None:
        """Return an integer. Upstreams write some integers as 1.5e9 or with a fraction, which is rounded."""
        found = self.maybe_number(name)
        return None if found is None else round(found)

    def flag(self, name: str) -> bool:
        found = self._fields.get(name)
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false")
        return found

    def fields(self, name: str) -> JsonFields:
        """Return a nested object."""
        return JsonFields(self._upstream, f"{self._where}.{name}", self._fields.get(name))

    def objects(self, name: str) -> list[JsonFields]:
        """Return a nested list of objects."""
        return json_objects(self._upstream, f"{self._where}.{name}", self._fields.get(name))

    def maybe_texts(self, name: str) -> list[str]:
        """Return a nested list of strings; empty if it is null or missing."""
        found: Any = self._fields.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[Any]", found)):
            raise self.wrong(name, "a list of strings")
        return cast("list[str]", found)

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return a nested object whose values are all strings."""
        inner = self.fields(name)
        return {key: inner.text(key) for key in inner._fields}

    def wrong(self, name: str, expected: str) -> MCPError:
        """Return the error for a field that is missing or has the wrong type."""
        return _wrong(self._upstream, f"{self._where}.{name}", expected, self._fields.get(name))

    def _needed(self, name: str, expected: str, found: T | None) -> T:
        if found is None:
            raise self.wrong(name, expected)
        return found


def json_objects(upstream: str, where: str, value: Any) -> list[JsonFields]:
    """Check that a value is a list of JSON objects, and return it."""
    if not isinstance(value, list):
        raise _wrong(upstream, where, "a list", value)
    return [JsonFields(upstream, f"{where}[{index}]", item) for index, item in enumerate(cast("Sequence[Any]", value))]


def _wrong(upstream: str, where: str, expected: str, found: Any) -> MCPError:
    kind = "missing" if found is None else f"{type(found).__name__} {SECRETS.redact(str(found))[:40]!r}"
    return upstream_fault(upstream, f"sent an unexpected response: {where} should be {expected}, but is {kind}")
