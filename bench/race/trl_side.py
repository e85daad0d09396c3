"""TRL's GRPOTrainer on the tasks, servers and rewards of a recipe. Runs where TRL is installed: .venv-peers.

    python trl_side.py WORK.json

The work names the recipe, the adapter to start from, the output folder, the steps, and settings of GRPOConfig. A step
is what mcprl calls one: a group of episodes for each of some tasks, and the optimizer steps on them. All settings that
both trainers have are the recipe's. The trainer is as it is shipped, with two exceptions, which both help it. It gets
the schemas of the tools as the servers publish them: those made from Python signatures would be other prompts than the
adapter has learned. With `head_on_completions`, its own switch for computing logits of the completions only is on,
which it uses with Triton alone.

Each step adds a line to OUTPUT/metrics.jsonl; each `save_every` steps have a checkpoint with the adapter, from which
the same command resumes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from trl.trainer import utils as trl_utils

import mcprl
from mcprl.config import RunConfig
from mcprl.episodes import Action, Environment, succeeded
from mcprl.episodes.environment import tool_specs
from mcprl.episodes.loop import lease_for
from mcprl.records import FinishReason, StopReason, Task, ToolCall
from mcprl.tasks import load_preamble
from mcprl.tools import load_server_specs

T = TypeVar("T")
LOOP = asyncio.new_event_loop()  # of the toolbox: TRL calls tools from other threads
LIFE_S = 3600.0


def wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, LOOP).result()


class Episode:
    """An episode with mcprl's tools and rewards. TRL offers its public methods, which are the tools of its task."""

    _config: RunConfig
    _toolbox: mcprl.Toolbox
    _task: Task
    _leases = AsyncExitStack()

    def reset(self, **row: object) -> None:
        wait(self._open())

    async def _open(self) -> None:
        await self._leases.aclose()
        self._leases, self._lost = AsyncExitStack(), False
        leased = lease_for(self._task, self._toolbox, lives_s=LIFE_S, rewards=self._config.rewards)
        access = await self._leases.enter_async_context(leased)
        turns = self._config.episodes.turn_limit(self._task)
        self._play = Environment(self._task, access, preamble=(), max_turns=turns, rewards=self._config.rewards)

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        call = ToolCall(name=tool, arguments=arguments)
        try:
            seen = wait(self._play.call(call, turn=len(self._play.turns), index=0))
        except mcprl.InfrastructureError as error:
            self._lost = True
            return str(error)
        self._play.note(_action("", calls=(call,)), (seen,))
        return seen.text

    async def _score(self, completion: Sequence[Mapping[str, Any]], *, ended: bool) -> float | None:
        """Return the episode's reward; None, which TRL leaves out, if a server failed."""
        last = completion[-1]
        try:
            if last["role"] == "assistant" and not last.get("tool_calls"):
                finish = FinishReason.STOP if ended else FinishReason.LENGTH
                await self._play.step(_action(str(last.get("content") or ""), finish=finish))
            elif self._play.turns:
                await self._play.end(StopReason.TURN_LIMIT)
        except mcprl.InfrastructureError:
            self._lost = True
        await self._leases.aclose()
        return None if self._lost else self._play.reward


def _action(text: str, *, calls: tuple[ToolCall, ...] = (), finish: FinishReason = FinishReason.STOP) -> Action:
    return Action(text=text, prose=text, calls=calls, sampled_ids=(), finish=finish, weights_version=0)


def episode_class(task: Task, config: RunConfig, toolbox: mcprl.Toolbox) -> type[Episode]:
    def method(name: str) -> Any:
        def call(self: Episode, **arguments: Any) -> str:
            return self._call(name, arguments)

        call.__name__ = name
        return call

    tools = {name: method(name) for name in task.tools or toolbox.catalog.names}
    return type("TaskEpisode", (Episode,), {"_config": config, "_toolbox": toolbox, "_task": task, **tools})


class Rewards:
    """The reward of each episode, and the figures of the episodes since the last row."""

    def __init__(self, eos: Sequence[int]) -> None:
        self._eos = frozenset(eos)
        self._rewards: list[float] = []
        self._successes: list[bool] = []
        self.__name__ = "mcprl"

    def __call__(
        self, completions: Any, completion_ids: Any, environments: Sequence[Episode], **_: Any
    ) -> list[float | None]:
        ends = [bool(ids) and ids[-1] in self._eos for ids in completion_ids]
        scored = zip(environments, completions, ends, strict=True)
        found = [wait(one._score(completion, ended=ended)) for one, completion, ended in scored]
        self._rewards += [reward for reward in found if reward is not None]
        self._successes += [succeeded(one._play.parts) for one in environments if not one._lost]
        return found

    def take(self) -> dict[str, float]:
        rewards, successes, self._rewards, self._successes = self._rewards, self._successes, [], []
        count = max(1, len(rewards))
        return {
            "reward": sum(rewards) / count,
            "success_rate": sum(successes) / count,
            "episodes": len(rewards),
        }


class Rows(TrainerCallback):
    """Writes a row per step, as `mcprl train` does."""

    def __init__(self, file: Path, rewards: Rewards, updates_per_step: int) -> None:
        self._file, self._rewards, self._updates = file, rewards, updates_per_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._updates == 0:
            row = {"step": state.global_step // self._updates - 1, **self._rewards.take()}
            with self._file.open("a") as file:
                file.write(json.dumps(row) + "\n")


def make_config(work: Mapping[str, Any], config: RunConfig) -> GRPOConfig:
    """What the recipe says, in TRL's settings."""
    algorithm, learner = config.algorithm, config.learner
    episodes = config.training.tasks_per_step * config.episodes.group_size
    per_update = episodes // algorithm.minibatches
    given: dict[str, Any] = {
        "output_dir": work["output"],
        "use_cpu": True,
        "bf16": False,
        "seed": config.seed,
        "per_device_train_batch_size": work["rows"],
        "gradient_accumulation_steps": per_update // work["rows"],
        "steps_per_generation": episodes // work["rows"],
        "num_generations": config.episodes.group_size,
        "num_iterations": algorithm.epochs,
        "max_steps": work["steps"] * algorithm.minibatches,
        "max_completion_length": work["max_completion_tokens"],
        "max_tool_calling_iterations": max(config.episodes.max_turns.values()) - 1,
        "temperature": config.sampling.temperature,
        "beta": 0.0,
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "loss_type": "dapo",  # all tokens of the batch weigh the same
        "scale_rewards": "group",
        "gradient_checkpointing": learner.checkpointing,
        "learning_rate": learner.learning_rate,
        "lr_scheduler_type": learner.schedule,
        "warmup_steps": learner.warmup_steps,
        "weight_decay": 0.0,
        "max_grad_norm": learner.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": work["save_every"] * algorithm.minibatches,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
    }
    return GRPOConfig(**given | work["grpo_config"])


def make_trainer(work: Mapping[str, Any], config: RunConfig, toolbox: mcprl.Toolbox) -> GRPOTrainer:
    tasks = mcprl.load_tasks(config.tasks.train)
    preamble = [dict(message) for message in load_preamble(config.tasks.preamble)]
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, padding_side="left")
    tokenizer.response_template = qwen3_template  # of calls between <tool_call> and </tool_call>
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    if work["adapter"] is not None:
        model = PeftModel.from_pretrained(model, work["adapter"], is_trainable=True)
    rewards = Rewards([tokenizer.eos_token_id])
    rows = [{"prompt": [*preamble, *map(dict, task.prompt)], "environment": task.id, "task": task.id} for task in tasks]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=make_config(work, config),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Rows(Path(work["output"]) / "metrics.jsonl", rewards, config.algorithm.minibatches)],
        environment_factory={task.id: episode_class(task, config, toolbox) for task in tasks},
    )
    for task in tasks:
        specs = tool_specs(toolbox.catalog[name] for name in task.tools or toolbox.catalog.names)
        trainer._env_tools[task.id] = [{"type": "function", "function": spec} for spec in specs]
    return trainer


def newest_checkpoint(output: Path, rows: Path, updates_per_step: int) -> str | None:
    """The checkpoint to resume from. Removes the rows after it."""
    found = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    found = [folder for folder in found if (folder / "trainer_state.json").exists()]
    steps = int(found[-1].name.rpartition("-")[2]) // updates_per_step if found else 0
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:steps]) if rows.exists() else "")
    return str(found[-1]) if found else None


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text())
    output = Path(work["output"])
    output.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.WARNING)
    if work["head_on_completions"]:
        trl_utils._use_triton = lambda device: True
    config = mcprl.load_recipe(Path(work["recipe"]), work["settings"])
    checkpoint = newest_checkpoint(output, output / "metrics.jsonl", config.algorithm.minibatches)
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    specs = load_server_specs(config.servers.file, config.servers.settings)
    toolbox = mcprl.Toolbox(specs, log_dir=output / "logs")
    wait(toolbox.__aenter__())
    try:
        trainer = make_trainer(work, config, toolbox)
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        wait(toolbox.__aexit__(None, None, None))
    trainer.save_model(str(output / "adapter"))
    (output / "log_history.json").write_text(json.dumps(trainer.state.log_history, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main()
