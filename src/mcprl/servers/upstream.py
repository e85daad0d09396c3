"""The HTTP client that the live sources share: time-outs, a size limit, and each failure told as what it is.

A request ends in one of three ways:

    the decoded JSON     the upstream answered; `mcprl.servers.json_fields` reads it field by field
    UpstreamRefusal      it did not like what was asked (400, 404, 422): the server says so in a ToolError
    MCPError             anything else: key refused, busy, broken, slow, gone, cut off, no JSON, too large. To a client
                         it is a JSON-RPC error, so that the failure is never taken for a fault of the caller. Its
                         data holds RETRY_AFTER_S where the upstream asked to be left alone for a while.

No text of these holds a key. Redirects are not followed, because the key would go with them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn
from urllib.parse import quote

import httpx2
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from mcprl.errors import BadValueError, MissingKeyError
from mcprl.protocol import RETRY_AFTER_S
from mcprl.redact import SECRETS
from mcprl.retry_after import retry_after_s

__all__ = ["Upstream", "UpstreamRefusal", "base_url", "path_segment", "required_key", "upstream_fault"]

MAX_BODY_BYTES = 8 * 1024 * 1024
UNSAID_WAIT_S = 1.0
"""How long to leave an upstream alone that says 429 and not for how long."""

_CONNECT_S = 5.0
_MAX_DETAIL_CHARS = 300
_REFUSALS = frozenset({400, 404, 422})
_KEY_REFUSALS = frozenset({401, 402, 403})


class UpstreamRefusal(Exception):
    """The upstream is well but refused this request. `text` is the beginning of its answer, without secrets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status
        self.text = text


class Upstream:
    """One upstream: where it is, what goes with every request, and one client, made when it is first needed.

    `params` and `headers` carry the key. `deadline_s` is for a whole request, its body included, however steadily that
    drips. `lifespan` belongs to the MCP server: `MCPServer(…, lifespan=upstream.lifespan)`.

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
        """The decoded answer to a GET. Put what a caller wrote into `path` through `path_segment` only."""
        return await self._exchange("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded answer to a POST of JSON."""
        return await self._exchange("POST", path, body=body)

    @asynccontextmanager
    async def lifespan(self, _server: object) -> AsyncGenerator[None]:
        """As long as the MCP server runs; the client is closed after it."""
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
        # Failures are raised `from None`: what httpx2 says holds the URL, and with it the key.
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
            raise upstream_fault(self.name, f"could not be asked ({type(error).__name__}: {error})") from None
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
                raise upstream_fault(self.name, f"answered with more than {MAX_BODY_BYTES} bytes")
        return bytes(content)

    def _fail(self, response: httpx2.Response, text: str) -> NoReturn:
        status = response.status_code
        told = f"HTTP {status}" + (f": {text}" if text else "")
        if status in _REFUSALS:
            raise UpstreamRefusal(status, text)
        if status in _KEY_REFUSALS:
            raise upstream_fault(self.name, f"refused the key, or the key does not include this data ({told})")
        wait_s = retry_after_s(response.headers)
        if status == 429:
            raise upstream_fault(self.name, f"is asked too often ({told})", UNSAID_WAIT_S if wait_s is None else wait_s)
        if response.is_redirect:
            raise upstream_fault(self.name, f"sent the request elsewhere ({told}), which would take the key along")
        # To ask for a second call is to promise that the first did nothing, which only a read can be sure of.
        raise upstream_fault(self.name, f"failed ({told})", wait_s if response.request.method == "GET" else None)

    def _decoded(self, content: bytes) -> Any:
        try:
            return json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise upstream_fault(self.name, f"answered with what is not JSON: {_text(content)}") from None


def upstream_fault(name: str, what: str, retry_after_s: float | None = None) -> MCPError:
    """A failure of the upstream `name`, to be raised. With `retry_after_s` it asks to be called again after that."""
    data = None if retry_after_s is None else {RETRY_AFTER_S: retry_after_s}
    return MCPError(INTERNAL_ERROR, SECRETS.redact(f"{name}: the upstream {what}"), data)


def required_key(server: str, variable: str) -> str:
    """The key in an environment variable, from now on struck out of every text. A server without it does not start."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MissingKeyError(
            f"server {server!r} needs {variable}, which is not set",
            fix=f"set {variable}, or serve an offline world, which needs no key: mcprl serve {server} --world 7",
        )
    SECRETS.add(variable, key)
    return key


def base_url(variable: str, default: str) -> str:
    """Where an upstream is: what an environment variable says, such as a proxy's address, or else `default`."""
    url = os.environ.get(variable, "").strip() or default
    if not url.startswith(("https://", "http://")):
        raise BadValueError(f"{variable} is {url!r}, which is no address", fix=f"write it such as {default}")
    return url


def path_segment(text: str) -> str:
    """A text as one segment of a path, which adds neither segments nor parameters. Not for texts of dots alone."""
    return quote(text, safe="")


def _text(content: bytes) -> str:
    """The beginning of a body on one line, for a sentence. Redacted before it is cut: half a key is not recognised."""
    text = " ".join(SECRETS.redact(content[: 8 * _MAX_DETAIL_CHARS].decode(errors="replace")).split())
    return text if len(text) <= _MAX_DETAIL_CHARS else f"{text[: _MAX_DETAIL_CHARS - 1]}…"


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
