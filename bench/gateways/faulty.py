"""An agent that has a fault when it is first started for a task: python faulty.py FOLDER

The task's id names the fault: "crash-7". Started for the task again, or for another member of its group, it has none.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

task = json.load(sys.stdin)
fault = task["id"].split("-")[0]
try:
    (Path(sys.argv[1]) / task["id"]).touch(exist_ok=False)
except FileExistsError:
    fault = "none"

if fault == "silent":  # it has an answer, but not from the model
    print("It is blue.")
    sys.exit()
if fault == "children":
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "sleep 1000 &"], start_new_session=True).wait()

request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "m", "messages": task["messages"]}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    said = json.load(response)["choices"][0]["message"]["content"]

if fault == "crash":
    raise RuntimeError("planted")
if fault == "hang":
    time.sleep(1000)
if fault == "flood":
    while True:
        print("x" * 100_000)
if fault != "early":  # it exits without its answer
    print(said or "nothing")
