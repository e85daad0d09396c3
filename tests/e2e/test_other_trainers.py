"""examples/other_trainers: mcprl's tools inside TRL's GRPOTrainer and inside an environment of verifiers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

# A random model calls no tool, so its turns are replaced: a call, then the right answer or another one.
TRL = """
import importlib.util, json, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "vllm" else find(name, *rest)  # TRL would import it
sys.path.insert(0, sys.argv[1])
import trl_grpo
from trl import GRPOTrainer

plain, zones = GRPOTrainer._generate_single_turn, {"Ana": "America/Lima", "Hiro": "Asia/Tokyo"}
sampled = []

def speak(self, prompt_ids, *rest, **options):
    _, logprobs = plain(self, prompt_ids, *rest, **options)
    assert logprobs is None
    made = []
    for number, ids in enumerate(prompt_ids):
        prompt = self._tokenizer.decode(ids)
        name = next(name for name in zones if f"is {name}'s" in prompt)
        if "<tool_response>" in prompt:
            assert f"{name}: " in prompt and zones[name] in prompt.partition("<tool_response>")[2], prompt
            text = f"It is {zones[name] if number % 2 else 'Europe/Oslo'}."
        else:
            call = {"name": "find_person", "arguments": {"name": name}}
            text = "<tool_call>\\n" + json.dumps(call) + "\\n</tool_call>"
        made.append(self._tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))
        sampled.append(text)
    return made, None

GRPOTrainer._generate_single_turn = speak
trainer = trl_grpo.main(sys.argv[2], int(sys.argv[3]))
steps = [entry for entry in trainer.state.log_history if "reward" in entry]
names = ("reward", "tools/call_frequency", "tools/failure_frequency")
figures = {name: [step[name] for step in steps] for name in names}
print(json.dumps({"updates": trainer.state.global_step, "turns": len(sampled), **figures}))
"""

VERIFIERS = """
import asyncio, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
sys.path.insert(0, sys.argv[1])
import verifiers_env

class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["find_person", "list_people"]
        name = "Ana" if "Ana" in str(asked["messages"]) else "Hiro"
        last, message = asked["messages"][-1], {"role": "assistant", "content": None}
        if last["role"] == "tool":
            message["content"] = "It is " + last["content"].rpartition(" ")[2] + "."
        else:
            function = {"name": "find_person", "arguments": json.dumps({"name": name})}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
        reason = "stop" if message["content"] else "tool_calls"
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                "choices": [{"index": 0, "message": message, "finish_reason": reason}]}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_): ...

server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
threading.Thread(target=server.serve_forever, daemon=True).start()
results = asyncio.run(verifiers_env.main(f"http://127.0.0.1:{server.server_port}/v1", "scripted", int(sys.argv[2])))
outputs = results["outputs"]
errors = [str(output["error"]) for output in outputs if output["error"]]
print(json.dumps({"rewards": [output["reward"] for output in outputs], "errors": errors}))
"""


def result_of(root: Path, program: str, *arguments: object, folder: Path) -> dict[str, Any]:
    """Run a program in the environment with other trainers, and return the JSON object on its last line."""
    python = root / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.skip(".venv-peers is missing: run scripts/setup peers")
    command = [str(python), "-c", program, str(root / "examples" / "other_trainers"), *map(str, arguments)]
    variables = {**os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root / "src"), os.environ.get("PYTHONPATH"))))
    variables["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # has `mcprl`
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def qwen3_with_its_template(root, tiny_qwen3, tmp_path_factory) -> Path:
    """TRL knows how calls are written from the chat template, which must be that of Qwen3."""
    folder = shutil.copytree(tiny_qwen3, tmp_path_factory.mktemp("trl") / "model")
    templates = list((root / ".venv-peers").glob("lib/python3*/site-packages/trl/chat_templates/qwen3.jinja"))
    if not templates:
        pytest.skip(".venv-peers is missing: run scripts/setup peers")
    shutil.copy(templates[0], folder / "chat_template.jinja")
    return folder


@pytest.mark.parametrize("updates", [1, pytest.param(5, marks=pytest.mark.full)])
def test_grpo_of_trl_learns_from_episodes_with_our_tools(updates, root, qwen3_with_its_template, tmp_path):
    found = result_of(root, TRL, qwen3_with_its_template, updates, folder=tmp_path)
    assert found["updates"] == updates
    assert found["turns"] == 2 * 4 * updates
    assert found["reward"] == [0.5] * updates
    assert found["tools/call_frequency"] == [1.0] * updates
    assert found["tools/failure_frequency"] == [0.0] * updates


@pytest.mark.parametrize("rollouts", [1, pytest.param(8, marks=pytest.mark.full)])
def test_rollouts_of_verifiers_use_our_tools(rollouts, root, tmp_path):
    found = result_of(root, VERIFIERS, rollouts, folder=tmp_path)  # of each of two tasks
    assert found == {"rewards": [1.0] * 2 * rollouts, "errors": []}
