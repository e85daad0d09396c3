"""What the benches of the learner share: the model, a group of trajectories of real text, processes that are measured.

Processor seconds on one thread are the measure. Wall seconds on cores that others use too are up to three times off.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from mcprl.config import AlgorithmConfig, LearnerConfig, ModelConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.learning.models import load_policy
from mcprl.learning.packing import Policy
from mcprl.records import Group, Trajectory
from servers.harness import say

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "unit" / "learning"))

from made_trajectories import make_groups, make_trajectory, randomise_adapter  # noqa: E402

__all__ = [
    "MODEL",
    "Clock",
    "Work",
    "agreement",
    "load_policy_with_adapter",
    "make_config",
    "make_work",
    "peak_mb",
    "run_side",
]

MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
PAGES = ("README.md", "docs/design.md", "docs/tools.md", "docs/rewards.md")
# Between the beginnings of two completions: more than the longest of them.
STRIDE = 300
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A group: one prompt, and what each member answered it.

    Work(prompt_ids=[1, 2, 3], completion_ids=[[7, 8], [9, 8]])     # group of 2, 3 shared + 2 own tokens
    """

    prompt_ids: list[int]
    completion_ids: list[list[int]]

    @property
    def rewards(self) -> list[float]:
        return [float(member % 2) for member in range(len(self.completion_ids))]

    @property
    def learnable_tokens(self) -> int:
        return sum(len(ids) for ids in self.completion_ids)

    @property
    def token_ceiling(self) -> float:
        """How many times fewer tokens go through the model where the prompt does so once: G(P + L) / (P + GL)."""
        shared, own, size = len(self.prompt_ids), self.learnable_tokens, len(self.completion_ids)
        return (size * shared + own) / (shared + own)

    def trajectories(self) -> list[Trajectory]:
        kinds = [len(self.prompt_ids) * "c" + len(ids) * "s" for ids in self.completion_ids]
        return [
            make_trajectory(self.prompt_ids + ids, kind, reward=reward)
            for ids, kind, reward in zip(self.completion_ids, kinds, self.rewards, strict=True)
        ]

    def group(self, logprobs: Sequence[tuple[float, ...]]) -> Group:
        """The group as if it had been sampled with these logprobs."""
        sampled = zip(self.trajectories(), logprobs, strict=True)
        return make_groups([replace(trajectory, logprobs=own) for trajectory, own in sampled])[0]


def make_work(shared: int, own: int, size: int, *, ragged: bool = False) -> Work:
    """Tokens of the documentation: on random ids gradients in 16 bits are noise. `ragged`: no two of one length."""
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    ids = AutoTokenizer.from_pretrained(MODEL)(text)["input_ids"]
    completions: list[list[int]] = []
    for member in range(size):
        first = shared + member * STRIDE
        completions.append(ids[first : first + own + (7 * member if ragged else 0)])
    if len(completions[-1]) < own or max(len(c) for c in completions) > STRIDE:
        raise ValueError("the documentation has too few tokens for a group of this size")
    return Work(prompt_ids=ids[:shared], completion_ids=completions)


def make_config(dtype: str, *, share_prefix: bool = True) -> RunConfig:
    """One pass, one optimiser step, the whole group in one forward pass."""
    return RunConfig(
        name="bench",
        model=ModelConfig(path=str(MODEL), renderer="chatml", dtype=dtype),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        algorithm=AlgorithmConfig(minibatches=1),
        learner=LearnerConfig(
            tokens_per_pack=1 << 20, share_prefix=share_prefix, checkpointing=False, learning_rate=1e-6
        ),
    )


def load_policy_with_adapter(config: RunConfig) -> Policy:
    """The policy with an adapter that does something: a new one is the identity, and half of its gradient is 0."""
    policy = load_policy(config, torch.device("cpu"))
    randomise_adapter(policy.model, scale=0.02)
    return policy


class Clock:
    """Processor and wall seconds since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        return {"cpu_s": time.process_time() - self._cpu, "wall_s": time.perf_counter() - self._wall}


def peak_mb() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_side(python: Path | str, script: Path, *arguments: str | Path) -> dict[str, Any]:
    """One side of a comparison in a process of its own, on one thread: the JSON of its last line."""
    command = [str(python), str(script), *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    name = " ".join([script.stem, *(Path(argument).stem for argument in arguments)])
    say(f"{name}: {answer['cpu_s']:.1f} CPU s" if "cpu_s" in answer else name)
    return answer


def agreement(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """Of two gradients, by the names of their parameters: the angle between them, and how far they are apart."""
    if one.keys() != other.keys():
        raise ValueError(f"these gradients are of other parameters: {sorted(one.keys() ^ other.keys())[:4]}")
    first = torch.cat([one[name].double().flatten() for name in sorted(one)])
    second = torch.cat([other[name].double().flatten() for name in sorted(one)])
    return {
        "gradient_cosine": float(torch.nn.functional.cosine_similarity(first, second, dim=0)),
        "gradient_difference": float((first - second).norm() / first.norm()),
    }
