"""An agent of forty lines: the openai client, an MCP client, and a loop. It knows nothing of mcprl but its two URLs."""

import asyncio
import json
import os
import sys

from mcp import Client
from openai import AsyncOpenAI


async def turn(model, asked, stream):
    if not stream:
        return (await model.chat.completions.create(**asked)).choices[0].message.model_dump(exclude_none=True)
    message = {"role": "assistant", "content": "", "tool_calls": []}
    async for chunk in await model.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            message["tool_calls"].append(call.model_dump(exclude={"index"}))
    return {name: value for name, value in message.items() if value}


async def main():
    task, stream = json.load(sys.stdin), "--stream" in sys.argv
    model, messages = AsyncOpenAI(), task["messages"]
    async with Client(os.environ["MCPRL_MCP_URL"]) as servers:
        listed = (await servers.list_tools()).tools
        tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in listed
        ]
        while True:
            message = await turn(model, {"model": task["model"], "messages": messages, "tools": tools}, stream)
            messages.append(message)
            if not message.get("tool_calls"):
                print(message.get("content", ""))
                return
            for call in message["tool_calls"]:
                made = await servers.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": made.content[0].text})


asyncio.run(main())
