"""OpenAI's Agents SDK, with its default API (responses) and model name."""

import asyncio
import json
import os
import sys

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp


async def main() -> None:
    task = json.load(sys.stdin)
    async with MCPServerStreamableHttp(params={"url": os.environ["MCPRL_MCP_URL"]}, name="tools") as tools:
        agent = Agent(name="helper", instructions="Use the tools to answer.", mcp_servers=[tools])
        print((await Runner.run(agent, task["prompt"])).final_output)


asyncio.run(main())
