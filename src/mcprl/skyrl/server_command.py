"""The command and the environment of SkyRL's server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig
from mcprl.config.engines import SkyrlConfig

__all__ = ["ADAPTERS", "checkpoints_folder", "database_file", "server_argv", "server_env"]

ADAPTERS = 4
"""Adapters that the engine has room for: its own for the base, the one in training, and snapshots of it."""

_SCRIPT = Path(__file__).parent / "serve.py"
_SEQUENCES_AT_ONCE = 8
_NEVER = -1
_LOG_COLUMNS = 200
# What tells a Python of another environment to look for packages in ours.
_OURS_ALONE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_ACCELERATORS = ("nvidia0", "nvidiactl", "kfd", "accel0", "vfio")


def server_argv(
    config: SkyrlConfig, *, model: ModelConfig, learner: LearnerConfig, folder: Path, port: int
) -> list[str]:
    """The command of the server. What it keeps (its database, its checkpoints) is in `folder`."""
    backend: dict[str, int | float | bool | str] = {
        "max_lora_adapters": ADAPTERS,
        "max_lora_rank": learner.lora_rank,
        "train_micro_batch_size": learner.microbatch,
        "gradient_checkpointing": learner.checkpointing,
        "sample_max_num_sequences": _SEQUENCES_AT_ONCE,
    }
    arguments: dict[str, object] = {
        "--dtype": model.dtype,
        "--host": "127.0.0.1",
        "--port": port,
        "--base-model": model.path,
        "--backend": config.backend,
        "--backend-config": json.dumps(backend | config.backend_config),
        "--checkpoints-base": checkpoints_folder(folder),
        "--database-url": f"sqlite:///{database_file(folder)}",
        # A session that is silent for five minutes would lose its model, and a trainer may wait that long for its
        # tools. This server ends with its trainer, so nobody else waits for the place.
        "--session-cleanup-interval-sec": _NEVER,
        "--session-timeout-sec": _NEVER,
    }
    pairs = [str(part) for pair in arguments.items() for part in pair]
    return [str(config.python or sys.executable), "-P", str(_SCRIPT), "api", *pairs]


def server_env(config: SkyrlConfig, ours: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """The server's environment: ours, without what belongs to our own Python where the server has another.

    What JAX compiles is kept in `folder`, so that the next server over it starts sooner and learns sooner.
    """
    dropped = _OURS_ALONE if config.python is not None else ()
    env = {name: value for name, value in ours.items() if name not in dropped}
    if not any(os.path.exists(f"/dev/{name}") for name in _ACCELERATORS):
        # Left to look for an accelerator, JAX takes its time and warns.
        env.setdefault("JAX_PLATFORMS", "cpu")
    env.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder.absolute() / f"compiled-{_instructions_of_cpu()}"))
    # Hundreds of small programs, each compiled in a moment.
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    # SkyRL wraps the lines of its log to the width of the terminal that is not there.
    env["COLUMNS"] = str(_LOG_COLUMNS)
    return env


def _instructions_of_cpu() -> str:
    """Stands for what this CPU can do: a program that was compiled for another may not run here."""
    flags = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        flags = next((line for line in info if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:8]


def database_file(folder: Path) -> Path:
    return folder.absolute() / "skyrl.db"


def checkpoints_folder(folder: Path) -> Path:
    return folder.absolute() / "checkpoints"
