"""The results of a server held to the output schemas that it lists, in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from mcprl.bounds import OverLimitError
from mcprl.schemas import BadSchemaError, SchemaCheck

__all__ = ["ResultChecks"]

_logger = logging.getLogger(__name__)


class ResultChecks:
    """The output schemas of a server's tools. Each is compiled when its first result comes."""

    def __init__(self, server: str, schemas: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._server = server
        self._schemas = dict(schemas)
        self._checks: dict[str, SchemaCheck] = {}

    async def validate(self, name: str, result: CallToolResult) -> None:
        """Raise RuntimeError, as the SDK does, if a result breaks the schema that its tool promises."""
        schema = self._schemas.get(name)
        if schema is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"tool {name} has an output schema but did not return structured content")
        try:
            if name not in self._checks:
                self._checks[name] = await asyncio.to_thread(SchemaCheck, schema)
        except BadSchemaError as error:
            raise RuntimeError(f"the output schema of tool {name} is invalid: {error}") from error
        except OverLimitError as error:
            self._schemas[name] = None
            _logger.warning(
                "server %r: results of tool %r are not checked: its output schema %s", self._server, name, error
            )
            return
        try:
            error = self._checks[name].error(result.structured_content)
        except (OverLimitError, RecursionError) as error:
            raise RuntimeError(f"the structured content of tool {name} {error}") from error
        if error is not None:
            raise RuntimeError(f"invalid structured content returned by tool {name}: {error.message}")
