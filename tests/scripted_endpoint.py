"""A chat-completions endpoint on this machine that answers by a script, with the real formats of OpenAI and vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


def response(status: str, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body.encode())}"]
    return "\r\n".join([*lines, *headers, "connection: close", "", body]).encode()


@dataclass
class Endpoint:
    """A local endpoint. `script` gives the response to the n-th request, or None to hang up."""

    script: Callable[[int], bytes | None]
    url: str = ""
    requests: list[tuple[str, dict]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length")
        )
        self.requests.append((head, json.loads(await reader.readexactly(length))))
        number = len(self.requests) - 1
        self.asked.set()
        await self.released.wait()
        answer = self.script(number)
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def endpoint(script: Callable[[int], bytes | None], *, held: bool = False):
    served = Endpoint(script)
    if not held:
        served.released.set()
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield served


def always(body: str, status: str = "200 OK", *headers: str) -> Callable[[int], bytes]:
    return lambda _: response(status, body, *headers)
