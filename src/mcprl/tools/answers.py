"""A server's answer to a call, reduced to what the pipeline needs: a text, and whether it is an error or cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

__all__ = ["Answer", "CallableServer", "answer_of"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: Answer("Ana: Lima, America/Lima"), Answer("Nobody called 'Bo' works here.", is_error=True)."""

    text: str
    is_error: bool = False
    truncated: bool = False


class CallableServer(Protocol):
    """What the pipeline needs of a server: one connection, or several that share the work."""

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> Answer: ...


def answer_of(result: CallToolResult) -> Answer:
    """Its text parts, or else its structured content as JSON; other parts are named, not shown."""
    texts: list[str] = []
    omitted: list[str] = []
    for part in result.content:
        match part:
            case TextContent():
                texts.append(part.text)
            case EmbeddedResource(resource=TextResourceContents() as resource):
                texts.append(resource.text)
            case ImageContent():
                omitted.append("[image omitted]")
            case AudioContent():
                omitted.append("[audio omitted]")
            case ResourceLink():
                omitted.append(f"[resource {part.uri} omitted]")
            case EmbeddedResource():
                omitted.append(f"[resource {part.resource.uri} omitted]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    return Answer("\n".join([*texts, *omitted]), is_error=bool(result.is_error))
