"""What a server says about one of its tools: all that a catalog, a pin and a cassette need to know."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mcprl.canonical import canonical_json
from mcprl.protocol import EPISODE_SCOPE, SCOPE
from mcprl.redact import SECRETS

if TYPE_CHECKING:
    import mcp_types

__all__ = ["ToolDefinition", "definition_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as its server lists it. `read_only` and `idempotent` are promises of the server, False where it is silent.

    `episodic`: it works on a state that the server keeps for each episode (`mcprl.protocol`).

    ToolDefinition(name="find_person", description="City and time zone of a colleague.", read_only=True,
                   parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    episodic: bool = False

    def fingerprint(self) -> str:
        """SHA-256 of all fields, the same for the same definition on every machine."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()


def definition_of(listed: mcp_types.Tool) -> ToolDefinition:
    """The definition in a server's listing, without secrets: prompts, pins and cassettes show it."""
    hints = listed.annotations
    return ToolDefinition(
        name=listed.name,
        description=SECRETS.redact(listed.description or ""),
        parameters=SECRETS.redact_json(listed.input_schema),
        output_schema=SECRETS.redact_json(listed.output_schema),
        read_only=bool(hints is not None and hints.read_only_hint),
        idempotent=bool(hints is not None and hints.idempotent_hint),
        episodic=(listed.meta or {}).get(SCOPE) == EPISODE_SCOPE,
    )
