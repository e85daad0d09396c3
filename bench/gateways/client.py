"""Many agents in one process: each line on stdin starts one, and its answer is a line on stdout.

An agent asks the model for turns, makes the calls of a turn, and ends with a turn without calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx2

_ACCEPT = {"Accept": "application/json, text/event-stream"}


async def play(client: httpx2.AsyncClient, given: dict[str, Any]) -> str:
    url, key, messages = given["url"], {"Authorization": f"Bearer {given['token']}"}, list(given["messages"])
    listed = await post(client, f"{url}/mcp", rpc("tools/list", {}))
    tools = [
        {"type": "function", "function": {"name": t["name"], "description": "", "parameters": t["inputSchema"]}}
        for t in listed["result"]["tools"]
    ]
    while True:
        asked = {"model": "m", "messages": messages, "tools": tools}
        message = (await post(client, f"{url}/v1/chat/completions", asked, key))["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            function = call["function"]
            made = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            seen = await post(client, f"{url}/mcp", rpc("tools/call", made))
            text = seen["result"]["content"][0]["text"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(
    client: httpx2.AsyncClient, url: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Any:
    answer = await client.post(url, json=body, headers={**_ACCEPT, **(headers or {})})
    return answer.raise_for_status().json()


async def main() -> None:
    async with httpx2.AsyncClient(timeout=600, limits=httpx2.Limits(max_connections=1100)) as client:

        async def answer(given: dict[str, Any]) -> None:
            print(json.dumps({"number": given["number"], "answer": await play(client, given)}), flush=True)

        async with asyncio.TaskGroup() as playing:
            while line := await asyncio.to_thread(sys.stdin.readline):
                playing.create_task(answer(json.loads(line)))


asyncio.run(main())
