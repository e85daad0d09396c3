"""One learner step of TRL's GRPOTrainer on given tokens, for bench/against_trl.py. Runs where TRL is installed.

    python trl_grpo.py WORK.json

The work names the model, the token ids, the rewards, the weights that the adapter starts with and the number format.
What TRL does before it learns, sampling and scoring, is taken out: `rollout_func` returns the given ids, and the time
of `_generate_and_score_completions` is subtracted. What is left is a whole step: forward, backward, clipping, AdamW. A
first step on a few tokens is not counted; the adapter starts again after it. The last line of stdout is JSON.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import accelerate
import peft
import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils as trl_utils

WARM_UP_TOKENS = 8


class Clock:
    """Processor and wall seconds so far."""

    def __init__(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def since(self, earlier: Clock) -> tuple[float, float]:
        return self.cpu - earlier.cpu, self.wall - earlier.wall


class TimedTrainer(GRPOTrainer):
    """Knows how long its last preparation took: what comes before learning."""

    preparation: tuple[float, float] = (0.0, 0.0)
    advantages: list[float]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = Clock()
        prepared = super()._generate_and_score_completions(inputs)
        self.preparation = Clock().since(started)
        self.advantages = prepared["advantages"].tolist()
        return prepared


class Watch(TrainerCallback):
    """Times each step and keeps the gradients of the last one."""

    def __init__(self, start: dict[str, torch.Tensor]) -> None:
        self._start = start
        self.trainer: TimedTrainer | None = None
        self.times: list[tuple[float, float]] = []
        self.gradients: dict[str, torch.Tensor] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        put(self.trainer.model, self._start)  # what the warm-up moved is moved back
        self._began = Clock()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        named = model.named_parameters()
        self.gradients = {plain(name): p.grad.detach().clone() for name, p in named if p.grad is not None}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        spent = Clock().since(self._began)
        self.times.append(tuple(s - p for s, p in zip(spent, self.trainer.preparation, strict=True)))
        print(f"TRL: step {len(self.times)}: {self.times[-1][0]:.1f} CPU s", file=sys.stderr, flush=True)


def plain(name: str) -> str:
    return name.removeprefix("module.")


@torch.no_grad()
def put(model: Any, weights: dict[str, torch.Tensor]) -> None:
    trained = {plain(name): p for name, p in model.named_parameters() if p.requires_grad}
    if trained.keys() != weights.keys():
        raise ValueError(f"TRL trains other weights: {sorted(trained.keys() ^ weights.keys())[:4]}")
    for name, parameter in trained.items():
        parameter.copy_(weights[name])


def make_trainer(work: dict[str, Any], watch: Watch, output: str) -> TimedTrainer:
    group = len(work["completion_ids"])
    calls = iter([WARM_UP_TOKENS, None])

    def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        most = next(calls)
        return {
            "prompt_ids": [work["prompt_ids"][:most]] * group,
            "completion_ids": [ids[:most] for ids in work["completion_ids"]],
            "logprobs": [[0.0] * len(ids[:most]) for ids in work["completion_ids"]],
        }

    config = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=work["dtype"] == "bfloat16",
        model_init_kwargs={"dtype": work["dtype"]},
        per_device_train_batch_size=work["rows"],
        gradient_accumulation_steps=group // work["rows"],
        num_generations=group,
        num_iterations=1,
        max_completion_length=max(len(ids) for ids in work["completion_ids"]),
        max_steps=2,
        beta=0.0,
        loss_type="dapo",  # all tokens of the batch weigh the same
        scale_rewards="group",
        gradient_checkpointing=False,
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    return TimedTrainer(
        model=work["model"],
        reward_funcs=lambda completions, **_: work["rewards"],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * 2),
        processing_class=AutoTokenizer.from_pretrained(work["model"], padding_side="left"),
        callbacks=[watch],
        peft_config=LoraConfig(
            r=work["lora_rank"],
            lora_alpha=work["lora_alpha"],
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        rollout_func=rollout,
    )


def main() -> None:
    torch.set_num_threads(1)
    work = json.loads(Path(sys.argv[1]).read_text())
    logging.disable(logging.WARNING)
    if work["head_on_completions"]:
        # Off Triton, TRL's head scores every position; this is its own switch for scoring the completions only.
        trl_utils._use_triton = lambda device: True
    watch = Watch(load_file(work["start"]))
    trainer = make_trainer(work, watch, str(Path(sys.argv[1]).parent / "trl"))
    watch.trainer = trainer
    trainer.train()
    save_file({name: g.contiguous() for name, g in watch.gradients.items()}, work["gradients"])
    logged = trainer.state.log_history
    cpu_s, wall_s = watch.times[1]
    answer = {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "tokens_learned": sum(len(ids) for ids in work["completion_ids"]),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "advantages": trainer.advantages,
        "grad_norm": logged[1]["grad_norm"],
        "entropy": logged[1]["entropy"],
        "versions": {m.__name__: m.__version__ for m in (trl, transformers, torch, peft, accelerate)},
        "threads": torch.get_num_threads(),
        "attention": trainer.model.config._attn_implementation,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main()
