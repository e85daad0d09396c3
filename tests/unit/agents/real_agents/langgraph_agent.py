"""LangGraph with the MCP adapters of LangChain, which open a session for each call."""

import asyncio
import json
import os
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main() -> None:
    task = json.load(sys.stdin)
    servers = MultiServerMCPClient({"tools": {"transport": "http", "url": os.environ["MCPRL_MCP_URL"]}})
    agent = create_agent(ChatOpenAI(model=task["model"]), await servers.get_tools(), system_prompt="Use the tools.")
    done = await agent.ainvoke({"messages": [{"role": "user", "content": task["prompt"]}]})
    print(done["messages"][-1].content)


asyncio.run(main())
