"""The run of the soak: the vaults of the pipeline's bench, with a server that can be told to fail, asynchronously."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from pipelining.vaults import VAULTS, write_vaults

__all__ = ["MAX_STALENESS", "SERVER", "make_config"]

SERVER = Path(__file__).resolve().parent / "key_server.py"
MAX_STALENESS = 1
_GROUP_SIZE = 8
_CALL_DEADLINE_S = 2.0


def make_config(folder: Path, name: str, *, engine: str) -> RunConfig:
    """A run in `folder` that never comes to an end by itself."""
    (folder / "orders").mkdir(exist_ok=True)
    write_vaults(folder / "vaults.jsonl")
    entry = {"command": sys.executable, "args": [str(SERVER), str(folder / "orders")]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"keys": entry}}))
    settings: dict[str, Any] = {"replicas": 2, "call_deadline_s": _CALL_DEADLINE_S}
    return RunConfig.model_validate(
        {
            "name": name,
            "engine": engine,
            "model": {"path": str(folder / "policy"), "renderer": "chatml", "dtype": "float32", "context_tokens": 512},
            "tasks": {"train": str(folder / "vaults.jsonl")},
            "servers": {"file": str(folder / "servers.json"), "settings": {"keys": settings}},
            "sampling": {"max_tokens": 16},
            "episodes": {"group_size": _GROUP_SIZE, "max_concurrent": 128},
            "rewards": {"calls": 0, "efficiency": 0, "arguments": 1, "penalty": 0},
            "algorithm": {"old_logprobs": "recomputed", "epochs": 4, "minibatches": 1},
            "learner": {"lora_rank": 8, "learning_rate": 1e-4, "tokens_per_pack": 1 << 16, "max_parity_error": 1e-4},
            "training": {"steps": 100_000, "tasks_per_step": len(VAULTS), "max_staleness": MAX_STALENESS}
            | {"outputs": str(folder / "runs")},
        }
    )
