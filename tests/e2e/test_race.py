"""bench/race: TRL's side of the race plays the tasks with the servers and rewards of the recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

# A random model calls no tool, so its turns are replaced: those of the task's solution, or the same without the answer.
SCRIPTED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import trl_side
from trl import GRPOTrainer

lines = [json.loads(line) for line in open(sys.argv[3])]
plain, prompts = GRPOTrainer._generate_single_turn, []

def speak(self, prompt_ids, *rest, **options):
    made = []
    for number, ids in enumerate(prompt_ids):
        prompt = self._tokenizer.decode(ids)
        task = next(line for line in lines if line["prompt"] in prompt)
        calls, done = task["solution"]["calls"], prompt.count("<|im_start|>tool")
        if done == 0:
            prompts.append([prompt, task["tools"]])
            self.solves = getattr(self, "solves", {}) | {number: number % 2 == 0}
        if done < len(calls):
            text = "<tool_call>\\n" + json.dumps(calls[done]) + "\\n</tool_call>"
        else:
            text = task["solution"]["answer"] if self.solves[number] else "It is done."
        made.append(self._tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))
    return made, None

GRPOTrainer._generate_single_turn = speak
sys.argv = ["trl_side.py", sys.argv[2]]
trl_side.main()
print(json.dumps(prompts))
"""


def test_solutions_earn_the_whole_reward_and_see_the_tools_of_their_task_in_its_order(root, tiny_qwen3, tmp_path):
    python = root / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.skip(".venv-peers is missing: run scripts/setup peers")
    lines = (root / "recipes" / "finance-multi" / "train.jsonl").read_text().splitlines(keepends=True)
    chosen = [next(line for line in lines if f'"train-{kind}-' in line) for kind in ("post-price", "keep-price")]
    (tmp_path / "tasks.jsonl").write_text("".join(chosen))
    settings = [f"tasks.train={tmp_path / 'tasks.jsonl'}", f"model.path={tiny_qwen3}", "training.tasks_per_step=1"]
    settings += ["episodes.group_size=2", "algorithm.minibatches=1"]
    work = {
        "recipe": str(root / "recipes" / "finance-multi-cpu.yaml"),
        "settings": settings,
        "adapter": None,
        "output": str(tmp_path / "run"),
        "steps": 2,
        "save_every": 2,
        "rows": 2,
        "max_completion_tokens": 1024,
        "head_on_completions": True,
        "grpo_config": {},
    }
    (tmp_path / "work.json").write_text(json.dumps(work))
    command = [str(python), "-c", SCRIPTED, str(root / "bench" / "race")]
    command += [str(tmp_path / "work.json"), str(tmp_path / "tasks.jsonl")]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    sources = [str(root / "src"), *map(str, root.glob("packages/*/src")), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(sources)
    variables["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # has `mcprl`
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["episodes"] for row in rows] == [2, 2]
    assert [row["success_rate"] for row in rows] == [0.5, 0.5]  # one episode of each group answers without the figure
    assert all(0.5 < row["reward"] < 1.0 for row in rows)
    for prompt, tools in json.loads(ended.stdout.splitlines()[-1]):
        places = [prompt.index(f'"name": "{name}", "description"') for name in tools]
        assert places == sorted(places)
    assert (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").exists()
