"""The example projects of examples/ that are started as programs: each is short and does what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mcprl.runs.trajectories import read_trajectories

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("compare_and_export", "conversation", "from_python", "own_code")
MOST_LINES = 60


@pytest.mark.parametrize("name", SHORT)
def test_an_example_has_at_most_60_lines(name):
    files = (file for file in (EXAMPLES / name).iterdir() if file.is_file())
    assert 0 < sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES


def run_in(folder: Path, *command: str) -> list[str]:
    """Run a program of an example, with `mcprl` on its path, and return the lines that it printed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    variables = {**os.environ, "PATH": path, "OPENAI_API_KEY": "none"}
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def test_python_without_yaml_trains_and_evaluates(small_qwen3, tmp_path):
    first, second, last = run_in(tmp_path, sys.executable, str(EXAMPLES / "from_python" / "train.py"), str(small_qwen3))
    assert first.startswith("step 0: reward ")
    assert second.startswith("step 1: reward ")
    assert last == "outputs/from-python: 0% solved"
    assert (tmp_path / "outputs" / "from-python" / "summary.json").is_file()


def test_the_users_own_code_trains_in_every_place(taught_qwen3, tmp_path):
    folder = shutil.copytree(EXAMPLES / "own_code", tmp_path / "own_code")
    settings = (
        f"model.path={taught_qwen3}",
        "engine=transformers",
        "sampling.max_tokens=48",
        "algorithm.min_learnable_tokens=1",
        "training.steps=2",
    )
    run_in(folder, "mcprl", "train", "recipe.yaml", *(word for setting in settings for word in ("--set", setting)))
    run = folder / "outputs" / "own-code"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
    for name in ("check", "one_call", "brief"):
        assert all(0 <= step[f"reward_part_{name}"] <= 1 for step in steps)
    assert json.loads((run / "summary.json").read_text())["updates"] == 2
    said = (run / "logs" / "tracker-tracker.log").read_text()
    assert said == "".join(f"{number} {step['reward']}\n" for number, step in enumerate(steps, 1))


class LargeModel(BaseHTTPRequestHandler):
    """Looks the person up, and answers with what the tool said. As a user, wants Hiro's time zone."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last, message = asked["messages"][-1], {"role": "assistant", "content": None}
        if "tools" not in asked:
            message["content"] = "DONE" if "Asia/Tokyo" in last["content"] else "I mean Hiro's."
        elif last["role"] == "tool":
            message["content"] = last["content"]
        else:
            name = last["content"].split("'s")[0].split()[-1]
            function = {"name": "find_person", "arguments": json.dumps({"name": name})}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if message["content"] else "tool_calls"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def large_model() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LargeModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_conversations_with_three_kinds_of_users_are_played(large_model, tmp_path):
    folder = shutil.copytree(EXAMPLES / "conversation", tmp_path / "conversation")
    recipe = str(folder / "recipe.yaml")
    lines = run_in(folder, "mcprl", "tasks", "validate", "tasks.jsonl", "--recipe", recipe, "--gold")
    assert "2 of 2 solutions score 1.0; 1 tasks have no solution that can be run" in " ".join(" ".join(lines).split())
    player = ("--endpoint", large_model, "--model", "large", "--set", f"tasks.user.url={large_model}")
    run_in(folder, "mcprl", "eval", recipe, *player, "--tasks", "tasks.jsonl", "--out", "outputs/played")
    played = json.loads((folder / "outputs" / "played" / "results.json").read_text())
    assert played["figures"]["success"]["value"] == 1.0
    (vague,) = (t for t in read_trajectories(folder / "outputs/played/trajectories.parquet") if t.task_id == "vague")
    assert [turn.follow_up[0]["content"] for turn in vague.turns if turn.follow_up] == ["I mean Ana's."]


def test_a_large_model_and_a_small_one_are_compared_and_the_small_one_exported(small_qwen3, large_model, tmp_path):
    folder = shutil.copytree(EXAMPLES / "compare_and_export", tmp_path / "examples" / "compare_and_export")
    models = tmp_path / ".cache" / "models"
    models.mkdir(parents=True)
    (models / "tiny-qwen3").symlink_to(small_qwen3)  # loads faster
    run_in(folder, "sh", "run.sh", large_model, "large")
    large = json.loads((folder / "outputs" / "large" / "results.json").read_text())
    assert large["figures"]["success"]["value"] == 1.0
    assert large["endpoint"]["requests"] == 4
    report = (folder / "outputs" / "compared" / "report.md").read_text()
    assert "large" in report
    card = (folder / "outputs" / "export" / "README.md").read_text()
    assert 'base_model: "tiny/random"' in card
    assert (folder / "outputs" / "export" / "adapter_model.safetensors").is_file()
