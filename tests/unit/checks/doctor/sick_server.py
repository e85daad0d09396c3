"""An MCP server by hand, which starts in milliseconds and is sick in the way that its one argument says.

Its argument is a JSON object: `tools` as a server lists them, `version`, `mood`: dies, hangs, slow, refuses, chatty,
tired (exits after three calls), and `content`, the content of every result.
"""

from __future__ import annotations

import json
import sys
import threading


def answer(request: dict, plan: dict) -> dict | None:
    if "id" not in request:
        return None
    method, result = request["method"], {}
    if method == "initialize":
        server = {"name": "sick", "version": plan.get("version", "1")}
        version = request["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    elif method == "tools/list":
        result = {"tools": plan["tools"]}
    elif method == "tools/call":
        if plan.get("mood") == "slow":
            threading.Event().wait(plan["slow_s"])
        refused = plan.get("mood") == "refuses"
        said = [{"type": "text", "text": "No such person." if refused else "Lima"}]
        result = {"content": plan.get("content", said), "isError": refused}
    elif method != "ping":
        return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": f"no method {method}"}}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan.get("mood") == "dies":
        sys.exit("the licence has expired")
    if plan.get("mood") == "hangs":
        threading.Event().wait()
    if plan.get("mood") == "chatty":
        print("Loading the directory", flush=True)
    calls = 0
    for line in sys.stdin:
        request = json.loads(line)
        said = answer(request, plan)
        if said is not None:
            print(json.dumps(said), flush=True)
        calls += request["method"] == "tools/call"
        if plan.get("mood") == "tired" and calls == 3:
            return


if __name__ == "__main__":
    main()
