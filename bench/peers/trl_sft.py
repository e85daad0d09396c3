"""One step of TRL's SFTTrainer with packing on given tokens, for bench/sft_throughput.py. Runs where TRL is installed.

    python trl_sft.py WORK.json

The work names the model, the token ids with the mask of the assistant's, the number format and the weights that the
adapter starts with. All conversations are one optimiser step. TRL packs them by its default, best fit decreasing, into
rows of `max_length`, one row per forward pass. What is timed is the step: forward, backward, clipping, AdamW, without
packing. A forward and backward pass over a few tokens comes before it. The last line of stdout is JSON.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

WARM_UP_TOKENS = 8


class Watch(TrainerCallback):
    """Times the step and keeps its gradients."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.gradients: dict[str, torch.Tensor] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began = time.process_time(), time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        named = model.named_parameters()
        self.gradients = {
            name.removeprefix("module."): p.grad.detach().clone() for name, p in named if p.grad is not None
        }

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.cpu_s, self.wall_s = time.process_time() - self._began[0], time.perf_counter() - self._began[1]


def make_trainer(work: dict[str, Any], watch: Watch, output: str) -> tuple[SFTTrainer, int]:
    rows = [
        {"input_ids": ids, "labels": [token if own else -100 for token, own in zip(ids, mask, strict=True)]}
        for ids, mask in zip(work["token_ids"], work["masks"], strict=True)
    ]
    packed = trl.pack_dataset(Dataset.from_list(rows), work["max_length"], "bfd")
    config = SFTConfig(
        output_dir=output,
        use_cpu=True,
        bf16=work["dtype"] == "bfloat16",
        model_init_kwargs={"dtype": work["dtype"]},
        packing=True,
        max_length=work["max_length"],
        per_device_train_batch_size=1,
        gradient_accumulation_steps=len(packed),
        max_steps=1,
        gradient_checkpointing=False,
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    trainer = SFTTrainer(
        model=work["model"],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        callbacks=[watch],
        peft_config=LoraConfig(
            r=work["lora_rank"],
            lora_alpha=work["lora_alpha"],
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    return trainer, len(packed)


def main() -> None:
    torch.set_num_threads(1)
    work = json.loads(Path(sys.argv[1]).read_text())
    logging.disable(logging.WARNING)
    watch = Watch()
    trainer, packs = make_trainer(work, watch, str(Path(sys.argv[1]).parent / "trl"))
    start = load_file(work["start"])
    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    if trained.keys() != start.keys():
        raise ValueError(f"TRL trains other weights: {sorted(trained.keys() ^ start.keys())[:4]}")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(start[name])
    few = torch.tensor([work["token_ids"][0][:WARM_UP_TOKENS]])
    trainer.model(input_ids=few, labels=few).loss.backward()
    trainer.model.zero_grad()
    trainer.train()
    save_file({name: g.contiguous() for name, g in watch.gradients.items()}, work["gradients"])
    answer = {
        "cpu_s": watch.cpu_s,
        "wall_s": watch.wall_s,
        "loss": trainer.state.log_history[0]["loss"],
        "packs": packs,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "versions": {m.__name__: m.__version__ for m in (trl, transformers, torch, peft)},
        "attention": trainer.model.config._attn_implementation,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
