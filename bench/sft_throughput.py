"""Supervised fine-tuning against TRL's SFTTrainer with packing: the same model, adapter, conversations and step.

SmolLM2-135M with LoRA of rank 16 on all linear layers, on one thread of a CPU, float32. Conversations are solutions of
market tasks, played by the shipped servers and rendered without a grammar; all of them are one optimiser step. In the
first kind each conversation offers the same tools, as those of one agent do; in the second each offers its own. Each
side runs in a process of its own, warmed up on a few tokens, the sides in turns; figures are medians of processor
seconds. Ours include making the batch, keeping what an update may undo, and saving the adapter; TRL's do not include
packing.

  ratio              tokens learned a processor second, ours ÷ TRL's, one set of tools
  own_tools_ratio    the same, where each conversation has its own tools
  KIND_ours_cpu_s, KIND_trl_cpu_s, KIND_ours_peak_mb, KIND_trl_peak_mb     kinds: agent, own
  KIND_tokens, KIND_learned      of all conversations; of the assistant
  KIND_gradient_cosine, KIND_loss_difference       between the two sides

TRL's side takes up to 10 GB of memory. --out keeps what was measured, so that a run that was stopped continues.

    python bench/sft_throughput.py [--ci] [--rounds N] [--out FOLDER] [--peers-python FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import mcprl_market
from learner_workload import MODEL, Clock, agreement, load_policy_with_adapter, make_config, peak_mb, run_side
from mcprl.chat import load_chat
from mcprl.config import RunConfig, SamplingConfig, ServerSettings
from mcprl.episodes import Demonstrator
from mcprl.learning import TorchLearner
from mcprl.records import Batch, Task, Trajectory
from mcprl.runs.trajectories import read_trajectories, write_trajectories
from mcprl.servers import make_server
from mcprl.tasks import load_preamble, load_tasks
from mcprl.tools import ServerSpec, Toolbox
from servers.harness import exit_status, missed_bars, say

HERE = Path(__file__).resolve().parent
DATA = Path(mcprl_market.__file__).parent / "data"
MAX_LENGTH = 2048
FULL, CI = 16, 4  # conversations
SERVERS = ("fmp", "polygon", "tavily", "slack")  # not python, whose tools run in processes
SHARED_TOOLS = 6
KINDS = ("agent", "own")
SPEED_BARS = {"ratio": (">=", 1.5)}
SAME = {f"{kind}_gradient_cosine": (">=", 0.999) for kind in KINDS} | {
    f"{kind}_loss_difference": ("<=", 1e-3) for kind in KINDS
}


def choose_tasks(kind: str, count: int) -> list[Task]:
    """Tasks with solutions of one to three calls, without Python; for an agent, those that its tools solve."""
    tasks = [
        task
        for task in load_tasks(DATA / "train.jsonl")
        if task.solution is not None
        and 0 < len(task.solution.calls) <= 3
        and all(any(server in name for server in SERVERS) for name in task.tools or ())
    ]
    used = {task.id: {call.name for call in task.solution.calls} for task in tasks if task.solution is not None}
    if kind == "own":
        return tasks[:count]
    names = [name for task in tasks for name in sorted(used[task.id])]
    offered = tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))[:SHARED_TOOLS]
    return [replace(task, tools=offered) for task in tasks if used[task.id] <= set(offered)][:count]


async def play(tasks: list[Task], folder: Path) -> tuple[Trajectory, ...]:
    patient = ServerSettings(call_deadline_s=600.0)  # on a busy machine
    specs = [ServerSpec(name=name, make=partial(make_server, name, world=7), settings=patient) for name in SERVERS]
    config = bench_config()
    chat, preamble = load_chat(str(MODEL), "chatml"), load_preamble(DATA / "preamble.json")
    async with Toolbox(specs, log_dir=folder) as toolbox:
        demonstrator = Demonstrator(config, chat=chat, leases=toolbox, preamble=preamble, grammars=None)
        return await demonstrator.play(tasks, 0)


def bench_config() -> RunConfig:
    """The settings of our side: as many tokens in a forward pass as a row of TRL's has."""
    config = make_config("float32")
    model = config.model.model_copy(update={"context_tokens": MAX_LENGTH})
    learner = config.learner.model_copy(update={"tokens_per_pack": MAX_LENGTH})
    return config.model_copy(update={"model": model, "learner": learner, "sampling": SamplingConfig(max_tokens=512)})


def ours(file: Path) -> dict[str, Any]:
    """The side of mcprl: one update from demonstrations."""
    torch.set_num_threads(1)
    work = json.loads(file.read_text())
    trajectories = read_trajectories(Path(work["trajectories"]))
    weights = Path(tempfile.mkdtemp(prefix="weights-", dir=file.parent))
    learner = TorchLearner(bench_config(), folder=weights, grammars=None)
    trained = {name: p for name, p in learner.policy.model.named_parameters() if p.requires_grad}
    start = load_file(work["start"])

    def learn(some: list[Trajectory]) -> tuple[dict[str, float], dict[str, float]]:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(start[name])
        clock, shown = Clock(), tuple(some)
        batch = Batch(step=0, groups=(), learnable=(), advantages=(), demonstrations=shown, demonstration_weight=1.0)
        update = asyncio.run(learner.update(batch))
        assert update.skipped is None, update.skipped
        return dict(update.metrics), clock.read()

    learn(trajectories[:1])
    metrics, spent = learn(trajectories)
    save_file({name: p.grad for name, p in trained.items() if p.grad is not None}, work["gradients"])
    return spent | {"loss": metrics["imitation_loss"], "peak_mb": peak_mb()}


def write_work(folder: Path, trajectories: tuple[Trajectory, ...]) -> dict[str, Path]:
    config = bench_config()
    policy = load_policy_with_adapter(config)
    save_file(
        {name: p.detach().clone() for name, p in policy.model.named_parameters() if p.requires_grad},
        folder / "start.safetensors",
    )
    write_trajectories(folder / "conversations.parquet", trajectories)
    work = {
        "token_ids": [t.token_ids for t in trajectories],
        "masks": [t.sampled for t in trajectories],
        "trajectories": str(folder / "conversations.parquet"),
        "model": str(MODEL),
        "dtype": "float32",
        "max_length": MAX_LENGTH,
        "start": str(folder / "start.safetensors"),
        "learning_rate": config.learner.learning_rate,
        "lora_rank": config.learner.lora_rank,
        "lora_alpha": config.learner.lora_alpha,
    }
    files = {side: folder / f"{side}.json" for side in ("ours", "trl")}
    for side, file in files.items():
        file.write_text(json.dumps(work | {"gradients": str(folder / f"{side}.safetensors")}))
    return files


def compare(kind: str, count: int, rounds: int, out: Path, peers_python: Path) -> dict[str, Any]:
    answers: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    folder = out / f"{kind}-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    trajectories = asyncio.run(play(choose_tasks(kind, count), folder))
    tokens, learned = sum(len(t.token_ids) for t in trajectories), sum(sum(t.sampled) for t in trajectories)
    say(f"{kind}: {len(trajectories)} conversations, {tokens} tokens, {learned} of the assistant")
    files = write_work(folder, trajectories)
    for number in range(rounds):
        for side in ("ours", "trl") if number % 2 == 0 else ("trl", "ours"):
            kept = folder / f"{side}-{number}.json"
            if not kept.exists():
                if side == "ours":
                    answer = run_side(sys.executable, Path(__file__), "--ours", files[side])
                else:
                    answer = run_side(peers_python, HERE / "peers" / "trl_sft.py", files[side])
                kept.write_text(json.dumps(answer))
            answers[side].append(json.loads(kept.read_text()))
    gradients = {side: load_file(folder / f"{side}.safetensors") for side in answers}
    figures: dict[str, Any] = {"tokens": tokens, "learned": learned, "packs": answers["trl"][0]["packs"]}
    for side, own in answers.items():
        for name in ("cpu_s", "wall_s", "peak_mb"):
            figures[f"{side}_{name}"] = statistics.median(answer[name] for answer in own)
    figures |= agreement(gradients["trl"], gradients["ours"])
    figures["loss_difference"] = abs(answers["ours"][0]["loss"] - answers["trl"][0]["loss"])
    return {f"{kind}_{name}": value for name, value in figures.items()} | {"versions": answers["trl"][0]["versions"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="few conversations")
    parser.add_argument("--rounds", type=int, help="how often each side is measured; without it 3, and 1 with --ci")
    parser.add_argument("--out", type=Path, help="the folder that keeps what was measured; default: a temporary one")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=HERE.parent / ".venv-peers" / "bin" / "python",
        help="of the environment that has TRL",
    )
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours is not None:
        print(json.dumps(ours(arguments.ours)), flush=True)
        return 0
    rounds = arguments.rounds or (1 if arguments.ci else 3)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as temporary:
        out = arguments.out or Path(temporary)
        for kind in KINDS:
            figures |= compare(kind, CI if arguments.ci else FULL, rounds, out, arguments.peers_python)
    figures["ratio"] = figures["agent_trl_cpu_s"] / figures["agent_ours_cpu_s"]
    figures["own_tools_ratio"] = figures["own_trl_cpu_s"] / figures["own_ours_cpu_s"]
    missed, slow = missed_bars(figures, SAME), missed_bars(figures, SPEED_BARS)
    print(json.dumps(figures), flush=True)
    return exit_status(missed, [] if arguments.ci else slow)


if __name__ == "__main__":
    sys.exit(main())
