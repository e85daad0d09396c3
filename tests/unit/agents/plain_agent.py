"""An agent without libraries. Its argument says what it does after a turn: `print`, `fail`, `loop` or `hang`.

A second one is JSON that is added to its requests.
"""

import json
import os
import sys
import time
import urllib.request


def ask(messages):
    body = json.dumps({"model": "m", "messages": messages, "tools": [], **more}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body,
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


more = json.loads(sys.argv[2]) if sys.argv[2:] else {}
with open(os.environ["MCPRL_TASK"]) as task:
    messages = json.load(task)["messages"]
while True:
    said = ask(messages)
    if sys.argv[1] == "loop":
        messages += [said, {"role": "user", "content": "Again."}]
    elif sys.argv[1] == "hang":
        time.sleep(1000)
    elif sys.argv[1] == "fail":
        sys.exit("ModelBehaviorError: no such tool")
    else:
        print(said["content"])
        break
