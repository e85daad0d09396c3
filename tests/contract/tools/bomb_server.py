"""An MCP server by hand whose list of tools is a bomb: `bomb_server.py NUM_TOOLS LEVELS_OF_DOUBLED_REFERENCES`."""

import json
import sys

num_tools, levels = map(int, sys.argv[1:])
twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
schema = {"type": "object", "properties": {"name": {"type": "string"}}}
if levels:
    schema = {"type": "object", "$defs": {**twice, f"d{levels}": {}}, "$ref": "#/$defs/d0"}
tools = [{"name": f"tool_{i}", "description": "A tool.", "inputSchema": schema} for i in range(num_tools)]

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = {"tools": tools} if request["method"] == "tools/list" else {}
    if request["method"] == "initialize":
        result = {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bomb", "version": "1"},
        }
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
