"""Small runs with something to lose everywhere: a curriculum, moments, a moving reference, a schedule, a value head."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig

__all__ = ["AGENT", "FUNCTIONS", "SFT", "VARIANTS", "small_run"]

HERE = Path(__file__).resolve().parent
TINY_QWEN3 = HERE.parents[1] / ".cache" / "models" / "tiny-qwen3"
STEPS = 5
SFT = "small-sft"
FUNCTIONS = "functions"
AGENT = "agent"

_KL = {"coefficient": 0.05, "target": 0.001, "reference": "ema", "lag": 5}

VARIANTS: dict[str, dict[str, Any]] = {
    # Every step is saved, and a value head is trained.
    "critic": {"algorithm": {"advantages": "gae", "old_logprobs": "recomputed", "minibatches": 2, "kl": _KL}},
    # Two steps from one checkpoint to the next; groups that teach nothing are played for by others.
    "refill": {
        "algorithm": {"refill_rounds": 2, "minibatches": 2, "kl": _KL},
        "training": {"checkpoint_every": 2, "keep_checkpoints": 1},
    },
    # Supervised fine-tuning: a validation every two steps, which plays episodes and may become the best one so far.
    SFT: {
        "algorithm": {},
        "sampling": {"max_tokens": 48},
        "tasks": {"order": "shuffled"},
        "sft": {"steps": 6, "batch_size": 2, "learning_rate": 1e-2},
        "training": {"keep_checkpoints": 1},
    },
    # Rewards are given by functions of the user: per episode, which also asks the server, per turn and per group.
    FUNCTIONS: {
        "algorithm": {"advantages": "gae", "old_logprobs": "recomputed", "kl": _KL},
        "functions": {"whole": {"probes": ["ring"]}, "turns": {}, "ranks": {}},
    },
    # A program plays the episodes, which branch.
    AGENT: {
        "algorithm": {"old_logprobs": "recomputed", "minibatches": 2, "kl": _KL},
        "agent": {"command": [sys.executable, "-S", str(HERE / "agent.py")]},
    },
}
# Values that look random and are a function of the episode alone.
_REWARDS = """
import hashlib

import mcprl


def share(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


async def whole(episode):
    rung = await episode.probe("ring", bell="high")
    return share(rung.text + repr([turn.text for turn in episode.turns]))


@mcprl.reward(per="turn")
def turns(episode):
    return [share(turn.text) for turn in episode.turns]


@mcprl.reward(per="group")
def ranks(episodes):
    values = [share(repr(episode.parts)) for episode in episodes]
    return [sum(other < value for other in values) / len(values) for value in values]
"""


def small_run(
    folder: Path, variant: str, *, engine: str = "transformers", model: Path = TINY_QWEN3, **training: Any
) -> RunConfig:
    """The configuration of a run below `folder`, with its tasks and its server written there."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = _tasks()
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    (folder / "validation.jsonl").write_text(
        "\n".join(json.dumps(task | {"id": f"v-{task['id']}"}) for task in tasks[:2])
    )
    server = {"command": sys.executable, "args": [str(HERE / "bells.py")]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"bells": server}}))
    (folder / "rewards.py").write_text(_REWARDS)
    own = VARIANTS[variant]
    functions = {
        name: {"function": f"{folder.resolve()}/rewards.py:{name}", "weight": 1.0, **settings}
        for name, settings in own.get("functions", {}).items()
    }
    config = RunConfig.model_validate(
        {
            "name": variant,
            "seed": 11,
            "engine": engine,
            "model": {"path": str(model), "renderer": "chatml", "dtype": "float32", "context_tokens": 512},
            "tasks": {"train": str(folder / "tasks.jsonl"), "validation": str(folder / "validation.jsonl")}
            | {"order": "curriculum"}
            | own.get("tasks", {}),
            # A busy machine is not a broken server.
            "servers": {"file": str(folder / "servers.json")},
            # A turn ends at the letter e, if one comes up: some episodes answer and some are cut.
            "sampling": own.get("sampling", {"max_tokens": 2, "stop": ["e"]}),
            "episodes": {"group_size": 4, "max_turns": {"easy": 2, "medium": 2, "hard": 2}, "agent": own.get("agent")},
            "rewards": {"functions": functions},
            "algorithm": {"min_learnable_tokens": 1, **own["algorithm"]},
            "learner": {"lora_rank": 2, "learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2}
            | {"max_parity_error": 1e-4},
            "training": {"steps": STEPS, "tasks_per_step": 2, "outputs": str(folder / "outputs")}
            | own.get("training", {})
            | training,
            "sft": own.get("sft"),
        }
    )
    return config if config.sft is None else config.for_sft()


_RING = {"name": "ring", "arguments": {"bell": "low"}}


def _tasks() -> list[dict[str, Any]]:
    calls = [{"tool": "ring", "arguments": {"bell": "low"}}]
    levels = ("easy", "easy", "easy", "medium", "medium", "hard")
    return [
        {"id": f"bell-{number}", "prompt": f"Ring bell {number}.", "tools": ["ring"], "difficulty": level}
        | {"calls": calls, "solution": {"calls": [_RING], "answer": "Dong."}}
        for number, level in enumerate(levels)
    ]
