"""An agent without libraries: two turns with a tool call between them. It edits its first turn, so episodes branch."""

import json
import os
import sys
import urllib.request
from typing import Any


def post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response)


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return post(url, {"model": "m", "messages": messages, "tools": []})["choices"][0]["message"]


task = json.load(sys.stdin)
said = ask(task["messages"])
call = {"name": "ring", "arguments": {"bell": "low"}}
rung = post(os.environ["MCPRL_MCP_URL"], {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
edited = {"role": "assistant", "content": f"{said['content']}!"}
heard = {"role": "user", "content": f"The bell said {rung['result']['content'][0]['text']}"}
print(ask([*task["messages"], edited, heard])["content"] or "nothing")
