"""What every error says, and the two kinds of fault that are errors."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "ConfigurationError",
    "Fault",
    "InfrastructureError",
    "McprlError",
]


class Fault(StrEnum):
    """Whose fault something is."""

    INFRASTRUCTURE = "infrastructure"
    POLICY = "policy"
    CONFIGURATION = "configuration"


class McprlError(Exception):
    """Base of all errors. `str(error)` is the whole sentence for a person: code, what happened, fix."""

    code: ClassVar[str]
    fault: ClassVar[Fault]

    def __init__(self, what: str, *, fix: str) -> None:
        # Here and not above: compiling its patterns takes as long as all else that `mcprl --help` does.
        from mcprl.redact import SECRETS

        # An error may quote what a server wrote, or a command with a key in it.
        self.what = SECRETS.redact(what)
        self.fix = SECRETS.redact(fix)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.code} {self.what}. Fix: {self.fix}."

    def __reduce__(self) -> tuple[Any, ...]:
        # For another process: not made anew from `what` alone, but as it is.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore


class ConfigurationError(McprlError):
    """Something the user wrote, chose or installed is wrong."""

    fault = Fault.CONFIGURATION


class InfrastructureError(McprlError):
    """The world failed: a server, the network, the sampler's process. Nothing the policy did.

    One that ended an episode has the calls of each of its turns, as (tool, arguments); the last was under way.
    """

    fault = Fault.INFRASTRUCTURE
    turns: tuple[tuple[tuple[str, Mapping[str, Any]], ...], ...] = ()
