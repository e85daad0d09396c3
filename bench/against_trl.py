"""The learner against TRL's GRPOTrainer: the same model, tokens, rewards and adapter, on one thread of a CPU.

SmolLM2-135M with LoRA of rank 16 on all linear layers, a group of 8 that shares a prompt of 1,024 tokens and has 128
tokens of its own each, no reference policy, one optimiser step. TRL is measured as it is shipped, and with its head
asked for the completions only: off Triton it scores every position. What is timed is a whole step without sampling:
ours with making the batch and saving the adapter, TRL's without either (bench/peers/trl_grpo.py). Each side runs in a
process of its own, warmed up on a few tokens, the sides in turns; figures are medians of processor seconds.

  DTYPE_shipped_ratio    tokens learned a processor second, ours ÷ TRL's as shipped
  DTYPE_patched_ratio    ours ÷ TRL's with its head on completions only
  DTYPE_SIDE_cpu_s, _wall_s, _tokens_per_cpu_s, _peak_mb     sides: ours, shipped, patched
  DTYPE_gradient_cosine, DTYPE_gradient_difference  between our gradient and TRL's from the same adapter
  DTYPE_grad_norm_difference (relative), DTYPE_advantage_difference, DTYPE_entropy_difference

At the size of `--ci` (256 + 32 tokens, float32, once) the bars of speed do not count: less is shared, more is overhead.

    python bench/against_trl.py [--ci] [--rounds N] [--dtype DTYPE] [--peers-python FILE] [--write PAGE]

`--write` puts the table between the markers <!-- against_trl --> and <!-- /against_trl --> of a page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from learner_workload import (
    MODEL,
    Clock,
    Work,
    agreement,
    load_policy_with_adapter,
    make_config,
    make_work,
    peak_mb,
    run_side,
)
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch
from mcprl.records import Batch, Update
from pages import write_between_markers
from servers.harness import exit_status, missed_bars, say

HERE = Path(__file__).resolve().parent
GROUP = 8
FULL, CI = (1024, 128), (256, 32)
# Trajectories in one of TRL's forward passes, their gradients added up. All eight take more than twice the memory.
TRL_ROWS = 2
SIDES = ("ours", "patched", "shipped")
SPEED_BARS = {"shipped_ratio": (">=", 4.0), "patched_ratio": (">=", 2.5)}
SAME_IN_FLOAT32 = {
    "gradient_cosine": (">=", 0.999),
    "grad_norm_difference": ("<=", 1e-3),
    "advantage_difference": ("<=", 1e-3),
    "entropy_difference": ("<=", 1e-3),
}


def write_work(folder: Path, work: Work, dtype: str) -> dict[str, Path]:
    """The files that the sides read: the same but for TRL's head."""
    config = make_config(dtype)
    policy = load_policy_with_adapter(config)
    trained = {name: p.detach().clone() for name, p in policy.model.named_parameters() if p.requires_grad}
    save_file(trained, folder / "start.safetensors")
    files: dict[str, Path] = {}
    for side in SIDES:
        files[side] = folder / f"{side}.json"
        text = {
            "prompt_ids": work.prompt_ids,
            "completion_ids": work.completion_ids,
            "rewards": work.rewards,
            "model": str(MODEL),
            "dtype": dtype,
            "start": str(folder / "start.safetensors"),
            "gradients": str(folder / f"{side}.safetensors"),
            "head_on_completions": side == "patched",
            "rows": TRL_ROWS,
            "learning_rate": config.learner.learning_rate,
            "lora_rank": config.learner.lora_rank,
            "lora_alpha": config.learner.lora_alpha,
        }
        files[side].write_text(json.dumps(text))
    return files


def ours(file: Path) -> dict[str, Any]:
    """The side of mcprl: one update from a group, making the batch and saving the adapter included."""
    torch.set_num_threads(1)
    asked = json.loads(file.read_text())
    work = Work(prompt_ids=asked["prompt_ids"], completion_ids=asked["completion_ids"])
    few = Work(prompt_ids=work.prompt_ids[:8], completion_ids=[ids[:8] for ids in work.completion_ids])
    config = make_config(asked["dtype"])
    weights = Path(tempfile.mkdtemp(prefix="weights-", dir=file.parent))  # rounds share the folder of the files
    learner = TorchLearner(config, folder=weights, grammars=None)
    trained = {name: p for name, p in learner.policy.model.named_parameters() if p.requires_grad}
    start = load_file(asked["start"])

    def learn(some: Work) -> tuple[Batch, Update, dict[str, float]]:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(start[name])
        group = some.group(asyncio.run(learner.score(some.trajectories())))
        clock = Clock()
        batch = make_batch(0, [group], config.algorithm)
        update = asyncio.run(learner.update(batch))
        return batch, update, clock.read()

    learn(few)
    batch, update, spent = learn(work)
    assert update.skipped is None, update.skipped
    save_file({name: p.grad for name, p in trained.items() if p.grad is not None}, asked["gradients"])
    return spent | {
        "tokens_learned": work.learnable_tokens,
        "peak_mb": peak_mb(),
        "advantages": [next(a for a in column if a) for column in batch.advantages],
        **{name: update.metrics[name] for name in ("grad_norm", "entropy")},
    }


def compare(work: Work, dtype: str, rounds: int, peers_python: Path) -> dict[str, Any]:
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as name:
        folder = Path(name)
        files = write_work(folder, work, dtype)
        for number in range(rounds):
            say(f"{dtype}, round {number + 1} of {rounds}")
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                if side == "ours":
                    answers[side].append(run_side(sys.executable, Path(__file__), "--ours", files[side]))
                else:
                    answers[side].append(run_side(peers_python, HERE / "peers" / "trl_grpo.py", files[side]))
        gradients = {side: load_file(folder / f"{side}.safetensors") for side in SIDES}
    figures: dict[str, Any] = {}
    for side in SIDES:
        for name in ("cpu_s", "wall_s", "peak_mb"):
            figures[f"{side}_{name}"] = statistics.median(answer[name] for answer in answers[side])
        figures[f"{side}_tokens_per_cpu_s"] = work.learnable_tokens / figures[f"{side}_cpu_s"]
    for side in ("shipped", "patched"):
        figures[f"{side}_ratio"] = figures["ours_tokens_per_cpu_s"] / figures[f"{side}_tokens_per_cpu_s"]
    figures |= agreement(gradients["shipped"], gradients["ours"])
    figures |= same_lesson(answers["ours"][0], answers["shipped"][0])
    return figures | {"versions": answers["shipped"][0]["versions"], "attention": answers["shipped"][0]["attention"]}


def same_lesson(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    pairs = zip(mine["advantages"], theirs["advantages"], strict=True)
    return {
        "advantage_difference": max(abs(a - b) for a, b in pairs),
        "grad_norm_difference": abs(mine["grad_norm"] / theirs["grad_norm"] - 1.0),
        "entropy_difference": abs(mine["entropy"] - theirs["entropy"]),
    }


def table(size: tuple[int, int], figures: dict[str, dict[str, Any]], rounds: int) -> str:
    """As it stands in the documentation."""
    names = {"ours": "mcprl", "shipped": "TRL as shipped", "patched": "TRL, head on completions only"}
    found = next(iter(figures.values()))["versions"]
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    lines = [
        f"Group of {GROUP}, {size[0]:,} shared + {size[1]} own tokens; median of {rounds}; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end; {versions}.",
        "",
        "| format | learner | CPU s per step | wall s | tokens learned per CPU s | mcprl is faster by | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype, of in figures.items():
        for side in ("shipped", "patched", "ours"):
            ratio = "" if side == "ours" else f"**{of[f'{side}_ratio']:.2f}×**"
            lines.append(
                f"| {dtype} | {names[side]} | {of[f'{side}_cpu_s']:.1f} | {of[f'{side}_wall_s']:.1f} "
                f"| {of[f'{side}_tokens_per_cpu_s']:.1f} | {ratio} | {of[f'{side}_peak_mb'] / 1024:.1f} GiB |"
            )
    for dtype, of in figures.items():
        lines += [
            "",
            f"Gradients in {dtype}, TRL's against ours: cosine {of['gradient_cosine']:.7f}, relative distance "
            f"{of['gradient_difference']:.1e}; norms differ by "
            f"{of['grad_norm_difference']:.1e} of themselves, advantages by {of['advantage_difference']:.1e}, "
            f"entropies by {of['entropy_difference']:.1e}.",
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    parser.add_argument("--rounds", type=int, help="how often each side is measured; without it 3, and 1 with --ci")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="only this number format")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=HERE.parent / ".venv-peers" / "bin" / "python",
        help="of the environment that has TRL",
    )
    parser.add_argument("--write", type=Path, help="page whose table is made anew")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours is not None:
        print(json.dumps(ours(arguments.ours)), flush=True)
        return 0
    size = CI if arguments.ci else FULL
    rounds = arguments.rounds or (1 if arguments.ci else 3)
    both = ("float32",) if arguments.ci else ("float32", "bfloat16")
    dtypes = both if arguments.dtype is None else (arguments.dtype,)
    work = make_work(*size, GROUP)
    figures = {dtype: compare(work, dtype, rounds, arguments.peers_python) for dtype in dtypes}
    missed: list[str] = []
    slow: list[str] = []
    for dtype, of in figures.items():
        missed += [
            f"{dtype}: {sentence}" for sentence in missed_bars(of, SAME_IN_FLOAT32 if dtype == "float32" else {})
        ]
        slow += [f"{dtype}: {sentence}" for sentence in missed_bars(of, {} if arguments.ci else SPEED_BARS)]
    if arguments.write:
        write_between_markers(arguments.write, "against_trl", table(size, figures, rounds))
    print(json.dumps({f"{dtype}_{name}": value for dtype, of in figures.items() for name, value in of.items()}))
    return exit_status(missed, slow)


if __name__ == "__main__":
    sys.exit(main())
