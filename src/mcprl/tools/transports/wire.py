"""What a transport answers in the server's place: the request got no usable answer, and this is why.

The SDK ends a whole session for one broken response. So our transports put a JSON-RPC error in the place of what they
cannot pass on, addressed to the one request it belongs to, and `outcome_of` recognises it on the other side. Each
carries a word that only this process knows, because a server that could forge one could make us repeat a call.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, cast

from mcp import MCPError
from mcp_types import ErrorData, JSONRPCError

__all__ = ["TransportOutcome", "Trouble", "error_for", "outcome_of"]

_CODE = -32090
_PROOF = secrets.token_hex(8)


class Trouble(StrEnum):
    """What came in the place of an answer."""

    UNREACHABLE = "unreachable"
    """The connection failed before or after the request was sent; `delivered` says which."""
    BUSY = "busy"
    """The server, or whoever stands before it, asked to be called later."""
    BROKEN = "broken"
    """An answer that is none: an HTTP status of failure, or bytes that are no JSON-RPC."""
    REFUSED_FOR_SIZE = "refused_for_size"
    """The request itself was turned away, because it is longer than the server takes."""
    TOO_LARGE = "too_large"
    """A result beyond the limit, or nested beyond what can be read; `text` is its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOutcome:
    """One request's outcome as its transport saw it.

    TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 429", delivered=False, retry_after_s=2.0)
    """

    trouble: Trouble
    detail: str
    delivered: bool = True
    retry_after_s: float | None = None
    text: str = ""


def error_for(request_id: str | int, outcome: TransportOutcome) -> JSONRPCError:
    """The message that a transport hands to the session."""
    data = ErrorData(code=_CODE, message=outcome.detail, data={"proof": _PROOF, **asdict(outcome)})
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=data)


def outcome_of(error: MCPError) -> TransportOutcome | None:
    """What a transport said, or None where the error is the server's own."""
    data: Any = error.data
    if error.code != _CODE or not isinstance(data, dict):
        return None
    fields = cast("dict[str, Any]", data)
    if fields.get("proof") != _PROOF:
        return None
    return TransportOutcome(
        trouble=Trouble(fields["trouble"]),
        detail=fields["detail"],
        delivered=fields["delivered"],
        retry_after_s=fields["retry_after_s"],
        text=fields["text"],
    )
