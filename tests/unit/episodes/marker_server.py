"""A stdio MCP server that dies whenever a call contains MARKER. Run it as a script: marker_server.py FOLDER

`look` shows an easy or a hard riddle, by its text. Once a process has died with a text, that text is easy for ever:
a policy that ends the server and is played again gets an easy riddle. Written by hand, since it starts very often.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def is_easy(folder: Path, label: str) -> bool:
    digest = hashlib.sha256(label.encode()).hexdigest()
    return int(digest, 16) % 2 == 0 or (folder / digest).exists()


def call(folder: Path, text: str) -> str:
    label = text.removeprefix("MARKER ")
    if label != text:
        (folder / hashlib.sha256(label.encode()).hexdigest()).touch()
        os._exit(3)
    return "easy: say 42" if is_easy(folder, label) else "hard"


def main(folder: Path) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        params = request.get("params", {})
        if request["method"] == "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "riddles", "version": "1"},
            }
        elif request["method"] == "tools/list":
            result = {"tools": [{"name": "look", "description": "Look at a riddle.", "inputSchema": SCHEMA}]}
        elif request["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": call(folder, params["arguments"]["text"])}]}
        else:
            result = {}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
