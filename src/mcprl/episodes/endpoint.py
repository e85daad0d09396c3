"""A client of OpenAI-compatible chat endpoints, with retries, a rate limit and a spending cap.

The judge, simulated users and `mcprl eval --endpoint` use it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, Field, ValidationError

from mcprl.config import RateSettings
from mcprl.errors import BadValueError, BudgetExceededError, InfrastructureError, MissingKeyError
from mcprl.protocol import retry_after_s
from mcprl.secrets import SECRETS
from mcprl.tools.limits import RateLimit

__all__ = ["ChatEndpoint", "EndpointSettings", "EndpointUse", "SettingNames", "Spending", "Usage", "authorization"]

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_MILLION: Final = 1_000_000
_MAX_EXCERPT_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """The endpoint of a model that plays tasks. `body` changes fields of each request; None removes a field.

    EndpointSettings(url="https://api.openai.com/v1", model="gpt-5", price=(1.25, 10.0), max_usd=2.0, per_minute=500,
                     body={"max_tokens": None, "max_completion_tokens": 2000})

    `price`: USD per million prompt tokens and per million completion tokens. `key_env`: the variable with the API key.
    """

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    price: tuple[float, float] | None = None
    max_usd: float | None = None
    per_minute: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.max_usd is not None and self.price is None:
            raise BadValueError("--max-usd needs prices", fix="add --price, in USD per million tokens")


class SettingNames(NamedTuple):
    """How errors name an endpoint and its settings: SettingNames("the judge", "rewards.judge.url", …)."""

    who: str
    url: str
    model: str
    key_env: str


@dataclass(slots=True, kw_only=True)
class EndpointUse:
    """The requests to an endpoint so far: EndpointUse(requests=40, prompt_tokens=31_000, completion_tokens=2_100,
    usd=0.06).

    `requests` includes those that failed. `usd` is None without prices. If the response to a request was lost, its
    maximum cost counts.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None


class Usage(BaseModel):
    """The token counts of a response."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class _Billed(BaseModel):
    usage: Usage


class Spending:
    """Counts tokens and costs. Each request reserves the most that it can cost, so the cap is never exceeded."""

    def __init__(self, price: tuple[float, float] | None, max_usd: float | None, *, setting: str = "--max-usd") -> None:
        self.use = EndpointUse(usd=None if price is None else 0.0)
        self._price = price or (0.0, 0.0)
        self._max_usd = max_usd
        self._setting = setting
        self._reserved: list[float] = []  # of each running request
        self._settled = asyncio.Event()

    async def reserve(self, content: bytes, max_tokens: int | None) -> float:
        """Reserve the maximum cost of a request, and return it. If too little of the cap is left, wait for running
        requests, which may cost less than they reserved."""
        most = self._usd(len(content), max_tokens or 0)  # a token is at least one byte
        if self._max_usd is None:
            return most
        if max_tokens is None:
            raise BadValueError("--max-usd needs a token limit per turn", fix="set max_tokens with --body")
        while (spent := self.use.usd or 0.0) + sum(self._reserved) + most > self._max_usd:
            if not self._reserved:
                raise BudgetExceededError(
                    f"the next request may cost ${most:.4f}, but ${spent:.4f} of ${self._max_usd:g} is already spent",
                    fix=f"raise {self._setting}, or run fewer tasks",
                )
            self._settled.clear()
            await self._settled.wait()
        self._reserved.append(most)
        return most

    def settle(self, reserved: float, cost: float | None) -> None:
        """Replace a reservation with the actual cost. None: the response was lost, so the reserved amount counts."""
        if self._max_usd is not None:
            self._reserved.remove(reserved)
        if self.use.usd is not None:
            self.use.usd += reserved if cost is None else cost
        self._settled.set()

    def cost_of(self, response: httpx2.Response) -> float | None:
        """Count the tokens of a response, and return its cost. Rejected requests cost nothing."""
        if not response.is_success:
            return 0.0
        try:
            usage = _Billed.model_validate_json(response.content).usage
        except ValidationError:
            return None
        self.use.prompt_tokens += usage.prompt_tokens
        self.use.completion_tokens += usage.completion_tokens
        return self._usd(usage.prompt_tokens, usage.completion_tokens)

    def _usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self._price[0] + completion_tokens * self._price[1]) / _MILLION


class ChatEndpoint:
    """A client of one endpoint, to be used as an async context manager. If the endpoint fails, an error of the class
    `fail` is raised."""

    def __init__(
        self,
        url: str,
        *,
        names: SettingNames,
        fail: type[InfrastructureError],
        headers: Mapping[str, str],
        rate: RateSettings | None = None,
        spending: Spending | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadValueError(
                f"{names.url} is {url!r}, which is not a URL", fix="write a URL such as http://127.0.0.1:8000/v1"
            )
        self.host = parts.hostname
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._names, self._fail, self._headers = names, fail, headers
        self._rate = RateLimit(rate)
        self._spending = spending or Spending(None, None)
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(
            headers=dict(self._headers),
            timeout=None,  # callers have deadlines
            limits=httpx2.Limits(max_connections=None),
            trust_env=self.host not in _LOOPBACK,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    @property
    def use(self) -> EndpointUse:
        return self._spending.use

    async def ask(self, body: Mapping[str, Any], *, waits_s: Sequence[float], longest_wait_s: float) -> httpx2.Response:
        """Send a request and return the response, which may be a rejection. Retries after overload, failures and
        broken connections.

        After 429 or 503, this client sends no requests for as long as the endpoint asks.
        """
        # A policy can write half of a surrogate pair, which UTF-8 cannot encode.
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        max_tokens: int | None = body.get("max_completion_tokens") or body.get("max_tokens")
        for usual_wait_s in (*waits_s, None):
            try:
                response = await self._send(content, max_tokens)
            except httpx2.TransportError as error:
                what, fix = f"did not answer ({type(error).__name__})", "start it, or fix the connection to it"
                asked_s = None
            else:
                status = response.status_code
                if status not in (408, 429) and status < 500:
                    return response
                what, fix = f"answered with {status}: {_excerpt(response.text)}", "wait, or check the endpoint"
                asked_s = retry_after_s(response.headers)
            if usual_wait_s is None or (asked_s or 0.0) > longest_wait_s:
                raise self._fail(f"{self._names.who} at {self._url} {what}", fix=fix)
            if asked_s:
                self._rate.pause(asked_s)
            else:
                await asyncio.sleep(usual_wait_s)
        raise AssertionError("the last attempt returns or raises")

    def refusal(self, response: httpx2.Response) -> BadValueError:
        """Return the error for an unsuccessful response."""
        what = f"{self._names.who} at {self._url} answered with {response.status_code}: {_excerpt(response.text)}"
        if response.status_code in (401, 403):
            return BadValueError(
                what, fix=f"correct the key in the environment variable that {self._names.key_env} names"
            )
        return BadValueError(what, fix=f"correct {self._names.url} or {self._names.model}")

    async def _send(self, content: bytes, max_tokens: int | None) -> httpx2.Response:
        if self._client is None:
            raise RuntimeError("the endpoint is not open: use `async with`")
        reserved, cost = await self._spending.reserve(content, max_tokens), None
        try:
            async with self._rate.passage():
                self.use.requests += 1
                response = await self._client.post(
                    self._url, content=content, headers={"content-type": "application/json"}
                )
            cost = self._spending.cost_of(response)
        except httpx2.ConnectError:
            cost = 0.0
            raise
        finally:
            self._spending.settle(reserved, cost)
        return response


def _excerpt(text: str) -> str:
    return " ".join(SECRETS.redact(text).split())[:_MAX_EXCERPT_CHARS]


def authorization(names: SettingNames, variable: str | None, keys: Mapping[str, str], url: str = "") -> dict[str, str]:
    """Return the header with the API key from `variable`. If `url` is on this machine, the key may be missing."""
    if variable is None:
        return {}
    key = keys.get(variable, "").strip()
    if not key and urlsplit(url).hostname in _LOOPBACK:
        return {}
    if not key:
        raise MissingKeyError(
            f"{names.who} needs a key, but {variable} is not set", fix=f"set {variable}, or correct {names.key_env}"
        )
    SECRETS.add(variable, key)
    return {"Authorization": f"Bearer {key}"}
