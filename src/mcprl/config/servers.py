"""Settings of the tool servers: where they are, and what a run adds to each entry of the mcpServers file."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from mcprl.config.section import FilePath, Section

__all__ = [
    "BreakerSettings",
    "BudgetSettings",
    "CassetteMode",
    "ErrorRule",
    "RateSettings",
    "RetrySettings",
    "ServerSettings",
    "ServersConfig",
]


class RateSettings(Section):
    """How often a server may be called. A call that comes too early waits."""

    calls: int = Field(ge=1, description="Calls allowed in each period.")
    per_s: float = Field(default=1.0, gt=0, description="Length of the period in seconds.")


class BudgetSettings(Section):
    """How much a run may use a server. The call that would exceed it is not made, and the run stops."""

    calls: int | None = Field(default=None, ge=0, description="Calls in the whole run.")
    usd: float | None = Field(default=None, ge=0, description="Money for the whole run.")
    usd_per_call: float = Field(default=0.0, ge=0, description="Price of one call.")

    @model_validator(mode="after")
    def _money_has_a_price(self) -> BudgetSettings:
        if self.usd is not None and not self.usd_per_call:
            raise ValueError("budget.usd limits nothing without budget.usd_per_call")
        return self


class RetrySettings(Section):
    """When a call that the infrastructure failed is made again: only where that cannot do a thing twice."""

    attempts: int = Field(default=3, ge=1, description="Times a call may be made; 1 means never again.")
    wait_s: float = Field(default=0.1, ge=0, description="Wait before the second attempt; it doubles each time.")
    max_wait_s: float = Field(
        default=30.0, ge=0, description="Longest wait; a server that asks for a longer one is given up."
    )


class BreakerSettings(Section):
    """When a server that keeps failing is left alone for a while."""

    failures: int = Field(default=5, ge=1, description="Failures in a row that open the breaker.")
    rest_s: float = Field(default=5.0, gt=0, description="Seconds until one call may try the server again.")


class ErrorRule(Section):
    """Recognises an error in a result, also one that the server reports as a success."""

    match: str = Field(description="Regular expression searched for in the result's text.")
    fault: Literal["policy", "infrastructure"] = Field(
        default="policy", description="policy: it is shown as an error; infrastructure: the call failed."
    )
    tools: tuple[str, ...] = Field(default=("*",), description="Tools that it judges; * stands for any text.")

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value


class ServerSettings(Section):
    """What a run adds to one entry of the mcpServers file."""

    start: tuple[str, ...] = Field(
        default=(),
        description="Command that starts a server reached by URL; `{port}` in it and in the URL is a free port.",
    )
    start_deadline_s: float = Field(default=30.0, gt=0, description="Seconds to start and shake hands.")
    call_deadline_s: float = Field(default=30.0, gt=0, description="Seconds one call may take.")
    replicas: int = Field(default=1, ge=1, description="Processes of a shared server; each call goes to the idlest.")
    isolation: Literal["shared", "per_episode"] = Field(
        default="shared", description="per_episode: each episode gets a server of its own, fresh and never used again."
    )
    spares: int = Field(default=2, ge=0, description="Servers kept warm for the next episodes (per_episode).")
    max_result_bytes: int = Field(default=65536, ge=256, description="Longer results are cut, and say so.")
    rate: RateSettings | None = Field(default=None, description="Limit on how often it is called.")
    budget: BudgetSettings = BudgetSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    cache_s: float = Field(
        default=0.0, ge=0, description="Seconds for which the same call of a read-only tool gets the same answer."
    )
    read_only: tuple[str, ...] = Field(
        default=(), description="Tools without side effects, where the server does not say so itself; * is any text."
    )
    allow: tuple[str, ...] = Field(default=("*",), description="Tools on offer; * stands for any text.")
    deny: tuple[str, ...] = Field(default=(), description="Tools never on offer, even where allowed.")
    tool_aliases: dict[str, str] = Field(
        default_factory=dict[str, str], description="Other names of tools, each with the tool it means."
    )
    argument_aliases: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Other names of arguments, used where a tool has the argument meant and not the other.",
    )
    errors: tuple[ErrorRule, ...] = Field(
        default=(), description="Rules that recognise errors; the first match counts."
    )

    @model_validator(mode="after")
    def _replicas_are_shared(self) -> ServerSettings:
        if self.isolation == "per_episode" and (self.replicas != 1 or self.cache_s):
            raise ValueError("replicas and cache_s belong to a shared server, isolation is per_episode")
        return self


CassetteMode = Literal["live", "record", "replay_else_live", "replay"]


class ServersConfig(Section):
    """Where the tools are."""

    file: FilePath | None = Field(
        default=None, description="mcpServers file, in the JSON that MCP clients share; only replay does without."
    )
    env_file: FilePath | None = Field(
        default=None, description="File of keys, NAME=value a line; default: .env where mcprl starts, if there is one."
    )
    pins: FilePath | None = Field(
        default=None, description="File written by `mcprl tools pin`; other tools than those stop the run."
    )
    cassette: FilePath | None = Field(default=None, description="SQLite file of recorded calls.")
    cassette_mode: CassetteMode = Field(
        default="live",
        description="live: unused; record: written; replay_else_live: read, else written; replay: read, no server.",
    )
    settings: dict[str, ServerSettings] = Field(
        default_factory=dict[str, ServerSettings], description="Settings of single servers, by name."
    )

    @model_validator(mode="after")
    def _a_mode_has_its_file(self) -> ServersConfig:
        if self.file is None and self.cassette_mode != "replay":
            raise ValueError("servers.file is missing: only cassette_mode replay does without servers")
        if self.cassette is None and self.cassette_mode != "live":
            raise ValueError(f"servers.cassette_mode is {self.cassette_mode}, but servers.cassette names no file")
        return self
