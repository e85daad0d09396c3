"""Calls of the shipped servers whose failures are to be seen at once."""

import pytest

from mcprl.tools import calls


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """Nobody waits because a server is busy, neither for it nor before the next call."""
    monkeypatch.setattr(calls, "MAX_WAIT_S", 0.0)
