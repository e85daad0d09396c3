"""The streams between a session and its HTTP transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

__all__ = ["KeptOpen"]


class KeptOpen:
    """A stream of the SDK that is closed when the transport ends, and not already when the session lets go of it.

    In between, the SDK ends its session with the server, and an answer that arrives then would find no stream and be
    raised as an error.
    """

    def __init__(
        self, stream: Any, on_end: Callable[[], None] | None = None, on_message: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._on_end = on_end
        self._on_message = on_message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._stream.__anext__()
        except StopAsyncIteration:
            if self._on_end is not None:
                self._on_end()
            raise
        if self._on_message is not None:
            self._on_message()
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave it open."""
