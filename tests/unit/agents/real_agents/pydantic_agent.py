"""Pydantic AI, as its documentation has it: by default it asks for responses, not for chat completions."""

import asyncio
import json
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset


async def main() -> None:
    task = json.load(sys.stdin)
    tools = MCPToolset(os.environ["MCPRL_MCP_URL"])
    agent = Agent("openai:gpt-5", instructions="Use the tools to answer.", toolsets=[tools])
    print((await agent.run(task["prompt"])).output)


asyncio.run(main())
