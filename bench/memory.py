"""The memory of an update, counted on fake tensors: is the count right, and what do models need?

worst_error           of the count against the real peak of a small model on the CPU, over its settings. The real peak
                      is the growth of a process's peak RSS in one forward and backward pass, with an allocator that
                      returns freed memory at once
prediction_error      of what doctor predicts from a few layers, against the count of all layers, over the table (--ci:
                      over Qwen3-0.6B at 8k)
table                 GiB of activations and gradients, and of the whole learner, for Qwen3-0.6B, 4B and 8B (bfloat16,
                      adapter of rank 32) at 8k and 32k packed tokens, with and without checkpointing; full size only

    python bench/memory.py [--ci]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from servers.harness import run_bench, say

BARS = {"worst_error": ("<=", 0.10), "prediction_error": ("<=", 0.15)}
GIB = 2**30
# hidden, inner, layers, heads, tied
QWEN = {
    "0.6B": (1024, 3072, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
SMALL = (256, 1024, 6, 8, True)
SMALL_TOKENS = 3072


def write_model(folder: Path, shape: tuple[int, int, int, int, bool], vocabulary: int = 151_936) -> Path:
    """Write the settings of a Qwen3 model, without weights."""
    from transformers import Qwen3Config

    hidden, inner, layers, heads, tied = shape
    Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=hidden // heads if heads == 8 else 128,
        tie_word_embeddings=tied,
        max_position_embeddings=40_960,
    ).save_pretrained(folder)
    return folder


def make_config(model: Path, *, dtype: str = "bfloat16", **learner: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "memory",
            "model": {"path": str(model), "renderer": "qwen3", "dtype": dtype},
            "tasks": {"train": "tasks.jsonl"},
            "servers": {"file": "servers.json"},
            "learner": {"lora_rank": 32, "share_prefix": False, **learner},
        }
    )


def small_settings() -> Iterator[dict[str, Any]]:
    for tuning in ("lora", "full"):
        for checkpointing in (False, True):
            yield {"tuning": tuning, "checkpointing": checkpointing, "dtype": "float32"}


def real_peak(folder: Path, settings: dict[str, Any]) -> float:
    """The bytes by which a real pass raises the peak of this process, which does nothing else."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mcprl.learning.memory import _fake_pack  # pyright: ignore[reportPrivateUsage]
    from mcprl.learning.models import load_policy

    config = make_config(folder, **settings)
    base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa")
    policy = load_policy(config, torch.device("cpu"), base=base)
    vocabulary = base.get_output_embeddings().weight.shape[0]
    policy(_fake_pack(64, vocabulary, config)).logprob_N.sum().backward()  # libraries allocate once
    policy.zero_grad(set_to_none=True)
    pack = _fake_pack(SMALL_TOKENS, vocabulary, config)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = _status("VmRSS")
    policy(pack).logprob_N.sum().backward()
    return _status("VmHWM") - before


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


async def real_peaks(folder: Path) -> list[float]:
    """`real_peak` of each of the settings, in a process whose allocator maps each large block by itself."""
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--peaks", str(folder), env=env, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return json.loads(output.decode().splitlines()[-1])


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    from mcprl.learning.memory import count_update, predict_update

    small = write_model(folder / "small", SMALL, vocabulary=32_000)
    figures: dict[str, Any] = {"worst_error": 0.0, "prediction_error": 0.0, "table": {}}
    for settings, real in zip(small_settings(), await real_peaks(small), strict=True):
        counted = count_update(make_config(small, **settings), str(small), tokens=SMALL_TOKENS).activations
        say(f"{settings}: counted {counted / 2**20:.0f} MiB, really {real / 2**20:.0f} MiB")
        figures["worst_error"] = round(max(figures["worst_error"], abs(counted / real - 1)), 3)
    for name, shape in QWEN.items():
        model = write_model(folder / name, shape)
        for tokens in (8192, 32_768):
            for checkpointing in (True, False):
                config = make_config(model, checkpointing=checkpointing)
                whole = count_update(config, str(model), tokens=tokens)
                error = abs(predict_update(config, str(model), tokens=tokens).peak / whole.peak - 1)
                figures["prediction_error"] = round(max(figures["prediction_error"], error), 3)
                row = f"{name} {tokens // 1024}k{'' if checkpointing else ', no checkpointing'}"
                figures["table"][row] = round(whole.activations / GIB, 1), round(whole.peak / GIB, 1)
                say(f"{row}: {figures['table'][row]} GiB, doctor is off by {error:.1%}")
                if ci:
                    return figures
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peaks"]:
        print(json.dumps([real_peak(Path(sys.argv[2]), settings) for settings in small_settings()]))
        sys.exit()
    sys.exit(run_bench(__doc__, measure, BARS))
