"""What a run and the processes of its learner say to each other.

A message is a pickled object behind its length. Both ends are mcprl, on one machine, and the line between them is a
socket in a folder that only the user can enter; nothing is ever unpickled that came from elsewhere.
"""

from __future__ import annotations

import asyncio
import pickle
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from mcprl.errors import McprlError

__all__ = ["SOCKET_VARIABLE", "Answer", "Plan", "receive", "send"]

SOCKET_VARIABLE = "MCPRL_LEARNER_SOCKET"
"""Variable in the environment of a process: where to call."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a process is to be. `constrained` says whether trajectories were held to grammars.

    The processes tell each other their addresses in the file `rendezvous`, in a folder that only the user can enter.

    Plan(config=…, folder=Path("outputs/hello/weights"), rendezvous=Path("/tmp/mcprl-x1/rendezvous"), constrained=True)
    """

    config: RunConfig
    folder: Path
    rendezvous: Path
    constrained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request: its result, or the error that it ended with. Only the first process has results.

    Answer(result=Update(…), error=None)
    """

    result: Any = None
    error: McprlError | None = None


async def send(writer: StreamWriter, message: Any) -> None:
    """Raises ConnectionError where nobody listens."""
    data = await asyncio.to_thread(pickle.dumps, message, pickle.HIGHEST_PROTOCOL)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    writer.write(data)
    await writer.drain()


async def receive(reader: StreamReader) -> Any:
    """Raises IncompleteReadError where the line ended."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    data = await reader.readexactly(length)
    return await asyncio.to_thread(pickle.loads, data)
