"""A toolbox opened for one command, with a word on stderr about what is going on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcprl.tools import Toolbox

__all__ = ["shown_opening"]


class _Opens(Protocol):
    def __call__(self, *, log_dir: Path) -> AbstractAsyncContextManager[Toolbox]: ...


@asynccontextmanager
async def shown_opening(opens: _Opens, then: str) -> AsyncGenerator[Toolbox]:
    """The toolbox that `opens` gives, its logs thrown away in the end. Starting takes seconds; `then` follows."""
    from rich.console import Console
    from rich.text import Text

    from mcprl.monitoring.printable import printable

    with (
        tempfile.TemporaryDirectory(prefix="mcprl-") as logs,
        Console(stderr=True, highlight=False).status("starting the tool servers …") as status,
    ):
        async with opens(log_dir=Path(logs)) as toolbox:
            status.update(Text(f"{printable(then)} …"))
            yield toolbox
