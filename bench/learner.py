"""What sharing prefixes saves the learner, and what the learner adds around the model. SmolLM2-135M, one CPU thread.

A group of 8 with 1,024 shared tokens and 128 own ones each, LoRA of rank 16, text of the documentation as tokens.

Sharing: forward and backward of the group as padded rows through bare transformers and PEFT, with the head on the
completions only, against the same through the policy with a tree of prefixes. Each side runs in a process of its own,
in turns. Both are warmed up on a group of unequal lengths, and their gradients there are compared as well.

  padded_cpu_s, tree_cpu_s       median; _wall_s beside them
  sharing                        padded ÷ tree
  token_ceiling, of_ceiling      padded ÷ tree in tokens, and the share of it that is reached in time
  padded_peak_mb, tree_peak_mb   the most memory that each process held; padded has `rows` rows in a forward pass
  logprob_difference, gradient_difference, gradient_cosine   largest |Δlogprob|; relative distance; angle
  ragged_…                       the same for unequal lengths

Overhead: all that an update adds (making the batch, masks, packing, the way back, loss, checks, clipping, AdamW,
diagnostics; not saving weights), against bare forward and backward of the same pack. One process, in turns.

  bare_cpu_s, update_cpu_s       median
  overhead                       update ÷ bare − 1, median of the pairs
  around_model                   the same from within: seconds of an update outside of forward and backward ÷ inside

    python bench/learner.py [--ci] [--dtype DTYPE] [--rounds N] [--rows N] [--write PAGE]

`--write` puts the table between the markers <!-- learner_DTYPE --> and <!-- /learner_DTYPE --> of a page.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner_workload import (
    Clock,
    Work,
    agreement,
    load_policy_with_adapter,
    make_config,
    make_work,
    peak_mb,
    run_side,
)
from mcprl.config import RunConfig
from mcprl.learning.algorithms import make_batch
from mcprl.learning.optimizer import Optimisation
from mcprl.learning.packing import Pack, Packer, Policy, Replayer, plain_examples
from mcprl.learning.process_group import ProcessGroup
from mcprl.learning.update import make_update
from mcprl.records import Group
from pages import write_between_markers
from servers.harness import exit_status, missed_bars, say

GROUP = 8
FULL, CI, RAGGED = (1024, 128), (384, 48), (101, 23)
SPEED_BARS = {"sharing": (">=", 3.0), "around_model": ("<=", 0.10), "overhead": ("<=", 0.10)}
CPU = torch.device("cpu")
Learn = Callable[[Work], Tensor]


def token_weights(work: Work) -> list[Tensor]:
    """A weight for each learnable token, member by member: without any pattern that could hide an exchange."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(len(ids), generator=generator) for ids in work.completion_ids]


def padded_rows(policy: Policy, rows: int) -> Learn:
    """Bare transformers and PEFT: rows padded on the right, the head on the states before completions only."""
    base = policy.model.get_base_model()

    def learn(work: Work) -> Tensor:
        found: list[Tensor] = []
        shared, weights = len(work.prompt_ids), token_weights(work)
        for first in range(0, len(work.completion_ids), rows):
            own = work.completion_ids[first : first + rows]
            token_id_BT = torch.zeros(len(own), shared + max(map(len, own)), dtype=torch.long)
            for row, ids in enumerate(own):
                token_id_BT[row, : shared + len(ids)] = torch.tensor(work.prompt_ids + ids)
            with torch.autocast("cpu", torch.bfloat16, enabled=policy.autocast is not None):
                hidden_BTD = base.model(input_ids=token_id_BT, use_cache=False).last_hidden_state
            before = [hidden_BTD[row, shared - 1 : shared - 1 + len(ids)] for row, ids in enumerate(own)]
            logit_NV = base.lm_head(torch.cat(before)).float()
            token_id_N = torch.tensor([token for ids in own for token in ids])
            logprob_N = torch.log_softmax(logit_NV, dim=-1).gather(1, token_id_N[:, None]).squeeze(1)
            (logprob_N * torch.cat(weights[first : first + rows])).sum().backward()
            found.append(logprob_N.detach())
        return torch.cat(found)

    return learn


def packer_of(config: RunConfig) -> Packer:
    learner = config.learner
    return Packer(Replayer(None), CPU, tokens=learner.tokens_per_pack, share_prefix=learner.share_prefix)


def group_pack(config: RunConfig, work: Work) -> Pack:
    trajectories = work.trajectories()
    examples = plain_examples(trajectories, [t.sampled for t in trajectories])
    return packer_of(config).pack(examples)


def shared_tree(config: RunConfig, policy: Policy) -> Learn:
    def learn(work: Work) -> Tensor:
        logprob_N = policy(group_pack(config, work)).logprob_N
        (logprob_N * torch.cat(token_weights(work))).sum().backward()
        return logprob_N.detach()

    return learn


def run_one_side(side: str, size: tuple[int, int], dtype: str, rows: int, results: Path) -> dict[str, float]:
    config = make_config(dtype, share_prefix=side == "tree")
    policy = load_policy_with_adapter(config)
    learn = shared_tree(config, policy) if side == "tree" else padded_rows(policy, rows)
    found: dict[str, Any] = {}
    spent: dict[str, float] = {}
    for name, work in {"ragged": make_work(*RAGGED, GROUP, ragged=True), "equal": make_work(*size, GROUP)}.items():
        policy.zero_grad(set_to_none=True)
        clock = Clock()
        logprob_N = learn(work)
        spent = clock.read()
        gradients = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
        found[name] = {"logprobs": logprob_N, "gradients": gradients}
    torch.save(found, results)
    return spent | {"peak_mb": peak_mb()}


def sharing(size: tuple[int, int], dtype: str, rounds: int, rows: int) -> dict[str, float]:
    answers: dict[str, list[dict[str, float]]] = {"padded": [], "tree": []}
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        results = {side: Path(folder, f"{side}.pt") for side in answers}
        asked = [*map(str, size), dtype, str(rows)]
        for number in range(rounds):
            for side in answers if number % 2 == 0 else reversed(answers):
                run = run_side(sys.executable, Path(__file__), "--side", side, *asked, results[side])
                answers[side].append(run)
        padded, tree = (torch.load(results[side]) for side in answers)
    figures: dict[str, float] = {"rows": rows}
    for side, runs in answers.items():
        for name in ("cpu_s", "wall_s", "peak_mb"):
            figures[f"{side}_{name}"] = statistics.median(run[name] for run in runs)
    ceiling = make_work(*size, GROUP).token_ceiling
    figures["sharing"] = figures["padded_cpu_s"] / figures["tree_cpu_s"]
    figures |= {"token_ceiling": ceiling, "of_ceiling": figures["sharing"] / ceiling}
    for name, prefix in (("equal", ""), ("ragged", "ragged_")):
        one, other = padded[name], tree[name]
        figures[f"{prefix}logprob_difference"] = float((one["logprobs"] - other["logprobs"]).abs().max())
        same = agreement(one["gradients"], other["gradients"])
        figures |= {prefix + what: value for what, value in same.items()}
    return figures


class ModelClock(ProcessGroup):
    """A processes of one that counts the processor seconds of forward and backward."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.spent_s = 0.0
        self._clock = Clock()
        policy.register_forward_pre_hook(lambda *_: self._start())
        policy.register_forward_hook(lambda *_: self._stop())

    def backward(self, loss: Tensor) -> None:
        self._start()
        super().backward(loss)
        self._stop()

    def _start(self) -> None:
        self._clock = Clock()

    def _stop(self) -> None:
        self.spent_s += self._clock.read()["cpu_s"]


class Overhead:
    """Updates and bare passes through the same policy."""

    def __init__(self, dtype: str) -> None:
        self.config = make_config(dtype)
        self.policy = load_policy_with_adapter(self.config)
        self.optimisation = Optimisation(self.policy, self.config)
        self.packer = packer_of(self.config)
        self.processes = ModelClock(self.policy)

    def bare(self, pack: Pack) -> Tensor:
        self.policy.zero_grad(set_to_none=True)
        logprob_N = self.policy(pack).logprob_N
        logprob_N.sum().backward()
        return logprob_N.detach()

    def update(self, group: Group) -> None:
        batch = make_batch(0, [group], self.config.algorithm)
        parts = (self.policy, self.optimisation, self.packer, self.processes)
        tally = make_update(batch, self.config, *parts, version=0)
        tally.metrics(self.config.algorithm)

    def pair(self, work: Work) -> dict[str, float]:
        """Processor seconds of a bare pass, of an update right after it, and of forward and backward in that."""
        pack = group_pack(self.config, work)
        clock = Clock()
        logprob_N = self.bare(pack)
        bare_s = clock.read()["cpu_s"]
        sampled = iter(logprob_N.tolist())
        masks = [t.sampled for t in work.trajectories()]
        group = work.group([tuple(next(sampled) if own else 0.0 for own in mask) for mask in masks])
        self.processes.spent_s = 0.0
        clock = Clock()
        self.update(group)
        update_s = clock.read()["cpu_s"]
        say(f"bare {bare_s:.2f} CPU s, update {update_s:.2f}, forward and backward in it {self.processes.spent_s:.2f}")
        return {"bare": bare_s, "update": update_s, "inside": self.processes.spent_s}


def overhead(size: tuple[int, int], dtype: str, count: int) -> dict[str, float]:
    measured = Overhead(dtype)
    measured.pair(make_work(*size, GROUP))  # the first pass of a size is slower: the memory for it is new
    pairs = [measured.pair(make_work(*size, GROUP)) for _ in range(count)]
    return {
        "bare_cpu_s": statistics.median(pair["bare"] for pair in pairs),
        "update_cpu_s": statistics.median(pair["update"] for pair in pairs),
        "overhead": statistics.median(pair["update"] / pair["bare"] - 1.0 for pair in pairs),
        "around_model": statistics.median(pair["update"] / pair["inside"] - 1.0 for pair in pairs),
    }


def bars(dtype: str) -> dict[str, tuple[str, float]]:
    """What must be the same on both sides."""
    found: dict[str, tuple[str, float]] = {}
    for prefix in ("", "ragged_"):
        if dtype == "float32":
            found |= {f"{prefix}logprob_difference": ("<=", 1e-4), f"{prefix}gradient_difference": ("<=", 1e-4)}
        else:
            found[f"{prefix}gradient_cosine"] = (">=", 0.99)
    return found


def table(size: tuple[int, int], dtype: str, rounds: int, of: dict[str, float]) -> str:
    """As it stands in the documentation."""
    return "\n".join(
        [
            f"Group of {GROUP}, {size[0]:,} shared + {size[1]} own tokens, {dtype}; median of {rounds}; load "
            f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end.",
            "",
            "| | CPU s | wall s | peak memory |",
            "|---|---|---|---|",
            f"| padded rows, {of['rows']:.0f} in a pass | {of['padded_cpu_s']:.1f} | {of['padded_wall_s']:.1f} "
            f"| {of['padded_peak_mb'] / 1024:.1f} GiB |",
            f"| tree of prefixes | {of['tree_cpu_s']:.1f} | {of['tree_wall_s']:.1f} "
            f"| {of['tree_peak_mb'] / 1024:.1f} GiB |",
            f"| bare forward and backward of the tree | {of['bare_cpu_s']:.2f} | | |",
            f"| a whole update of the tree | {of['update_cpu_s']:.2f} | | |",
            "",
            f"Sharing is **{of['sharing']:.2f}×** faster, {of['of_ceiling']:.0%} of the {of['token_ceiling']:.2f}× "
            f"fewer tokens. A whole update takes **{1.0 + of['overhead']:.2f}×** the time of the bare passes, median "
            f"of the pairs; counted from within, what is not the model adds {of['around_model']:.1%}.",
            "",
            f"Padded against tree: |Δlogprob| ≤ {of['logprob_difference']:.1e}, gradients apart by "
            f"{of['gradient_difference']:.1e} (cosine {of['gradient_cosine']:.7f}); with unequal lengths "
            f"{of['ragged_logprob_difference']:.1e} and {of['ragged_gradient_difference']:.1e} "
            f"({of['ragged_gradient_cosine']:.7f}).",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, help="of sharing; without it 3, and 1 with --ci")
    parser.add_argument("--rows", type=int, default=2, help="padded rows in one forward pass")
    parser.add_argument("--write", type=Path, help="page whose table is made anew")
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        torch.set_num_threads(1)
        side, shared, own, dtype, number, *results = arguments.side
        size = (int(shared), int(own))
        if side == "overhead":
            answer = overhead(size, dtype, int(number))
        else:
            answer = run_one_side(side, size, dtype, int(number), Path(results[0]))
        print(json.dumps(answer), flush=True)
        return 0
    size = CI if arguments.ci else FULL
    rounds = arguments.rounds or (1 if arguments.ci else 3)
    figures = sharing(size, arguments.dtype, rounds, arguments.rows)
    asked = [*map(str, size), arguments.dtype, "1" if arguments.ci else "5"]
    figures |= run_side(sys.executable, Path(__file__), "--side", "overhead", *asked)
    missed = missed_bars(figures, bars(arguments.dtype))
    slow = [] if arguments.ci else missed_bars(figures, SPEED_BARS)
    if arguments.write:
        text = table(size, arguments.dtype, rounds, figures)
        write_between_markers(arguments.write, f"learner_{arguments.dtype}", text)
    print(json.dumps(figures), flush=True)
    return exit_status(missed, slow)


if __name__ == "__main__":
    sys.exit(main())
