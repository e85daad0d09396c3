"""The names in an mcpServers file. A plan needs neither the keys nor the commands of the servers."""

from __future__ import annotations

import json
from typing import Any, cast

from mcprl.config import ServersConfig
from mcprl.errors import ServerFileError

__all__ = ["server_names"]


def server_names(config: ServersConfig) -> tuple[str, ...]:
    """The servers that are not disabled; without a file, as with a cassette, those that have settings."""
    path = config.file
    if path is None:
        return tuple(sorted(config.settings))
    try:
        read: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise ServerFileError(f"cannot read {path}: {reason}", fix="correct servers.file") from error
    entries = cast("dict[str, Any]", read).get("mcpServers") if isinstance(read, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise ServerFileError(f"{path} names no server", fix='write {"mcpServers": {"NAME": {…}}}')
    named = cast("dict[str, Any]", entries)
    return tuple(name for name, entry in named.items() if not (isinstance(entry, dict) and entry.get("disabled")))  # pyright: ignore[reportUnknownMemberType]
