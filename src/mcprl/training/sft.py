"""Supervised fine-tuning: reads the conversations to imitate, divides them into batches, and stops early.

Every conversation becomes a trajectory in the policy's tokens. It comes from one of four kinds of sources:

    solutions         the solutions of the tasks, run as episodes on the run's servers
    demonstrations    recorded chats of tasks, {"task": …, "messages": […]}; their calls are made again
    runs              episodes of earlier runs, with the tokens that were sampled
    chats             {"messages": […], "tools": […]}, rendered without any check

From the first three, only episodes that passed their task's checks are used. Conversations that are left out are listed
with the reason. The others are stored in the run's folder, so a resumed run imitates the same ones, even if the
servers would now return other results.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from mcprl.concurrency import run_all
from mcprl.config import SOLUTIONS, RunConfig
from mcprl.episodes import Demonstrator, succeeded
from mcprl.episodes.chats import read_chat, render_chat
from mcprl.episodes.demonstrations import script_of
from mcprl.episodes.stage import Stage
from mcprl.errors import BadValueError, ConfigurationError, NoRunError, TaskFileError
from mcprl.files import write_file
from mcprl.learning.algorithms import learnable_tokens
from mcprl.progress import Watcher
from mcprl.recipe import load_recipe
from mcprl.records import Columns, Task, Trajectory
from mcprl.runs.trajectories import read_trajectories, write_trajectories
from mcprl.seeds import derive_seed
from mcprl.tasks.files import Row, read_rows

PATIENCE: Final = 3
"""A run stops early after this many validations without a lower loss."""
_MOST_TASKS: Final = 32  # number of episodes per validation
_VALIDATION_SHARE: Final = 0.1  # of the conversations of other tasks than the validation tasks
_SHOWN: Final = 3

Found = Trajectory | str
"""A trajectory, or the reason why it was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The conversations to imitate, those held out for the validation loss, and the validation tasks."""

    train: tuple[Trajectory, ...]
    validation: tuple[Trajectory, ...]
    tasks: tuple[Task, ...]
    batch_size: int
    seed: int

    def batch(self, step: int) -> tuple[Trajectory, ...]:
        """Return the conversations of a step. Each epoch has a different order, which depends on the seed."""
        count = len(self.train)
        size = min(self.batch_size, count)
        places = range(step * size, (step + 1) * size)
        orders: dict[int, list[int]] = {}
        for epoch in {place // count for place in places}:
            orders[epoch] = list(range(count))
            random.Random(derive_seed(self.seed, "sft", epoch)).shuffle(orders[epoch])
        return tuple(self.train[orders[place // count][place % count]] for place in places)


def best_step(steps: Sequence[Mapping[str, float]]) -> int | None:
    """Return the number of steps after which the validation loss was lowest; None if it was never measured."""
    losses = {number: step["validation_loss"] for number, step in enumerate(steps, 1) if "validation_loss" in step}
    return min(losses, key=losses.__getitem__) if losses else None


def has_stopped_improving(steps: Sequence[Mapping[str, float]]) -> bool:
    """Return True if the last `PATIENCE` validations were not better than the best one before them."""
    losses = [step["validation_loss"] for step in steps if "validation_loss" in step]
    return bool(losses) and len(losses) - losses.index(min(losses)) > PATIENCE


def mean_loss(trajectories: Sequence[Trajectory], logprobs: Columns, config: RunConfig) -> float:
    """Return the mean of −logprob over the learnable tokens, which is also the loss of an update."""
    learned = [
        logprob
        for t, column in zip(trajectories, logprobs, strict=True)
        for logprob, learns in zip(column, learnable_tokens(t, config.algorithm.masks), strict=True)
        if learns
    ]
    return -fmean(learned)


async def open_examples(
    config: RunConfig, folder: Path, stage: Stage, tasks: Sequence[Task], held_out: Sequence[Task], watcher: Watcher
) -> Examples:
    """Return the run's conversations: from `folder`, or, if the run is new, from its sources.

    `held_out` are the validation tasks. Raises BadValueError if no conversation is left to imitate.
    """
    sft = config.sft
    assert sft is not None
    files = {side: folder / f"{side}.parquet" for side in ("validation", "train")}  # this file is written last
    if not files["train"].exists():
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        watcher.stage("collecting conversations to imitate")
        found = await _Sources(config, stage, [*tasks, *held_out], watcher).collect(sft.data, folder / "left_out.jsonl")
        for side, examples in _split(found, {task.id for task in held_out}, config.seed).items():
            await asyncio.to_thread(write_trajectories, files[side], examples)
    read = {side: tuple(read_trajectories(file)) for side, file in files.items()}
    chosen = sorted(held_out, key=lambda task: derive_seed(config.seed, "sft", "task", task.id))[:_MOST_TASKS]
    tokens = sum(sum(t.sampled) for t in read["train"])
    watcher.stage(
        f"imitating {len(read['train'])} conversations ({tokens:,} assistant tokens); validation: "
        f"{len(read['validation'])} conversations, {len(chosen)} tasks"
    )
    return Examples(tasks=tuple(chosen), batch_size=sft.batch_size, seed=config.seed, **read)


def _split(found: Sequence[Trajectory], held_out: set[str], seed: int) -> dict[str, list[Trajectory]]:
    """Split trajectories into a training and a validation set. All trajectories of a task are in the same set."""
    free = {t.task_id for t in found} - held_out
    count = max(1, round(_VALIDATION_SHARE * len(free))) if len(free) > 1 else 0
    drawn = sorted(free, key=lambda name: derive_seed(seed, "sft", "validation", name))[:count]
    apart = held_out | set(drawn)
    split = {
        "validation": [t for t in found if t.task_id in apart],
        "train": [t for t in found if t.task_id not in apart],
    }
    if not split["train"]:
        raise BadValueError(
            f"sft.data has no conversations to imitate: {len(found)} are usable"
            + (", and all of them are held out for validation" if found else ""),
            fix="see sft/left_out.jsonl in the run's folder for the reasons, or add sources to sft.data",
        )
    return split


class _Sources:
    """Reads the conversations of a run from its sources, one source after the other."""

    def __init__(self, config: RunConfig, stage: Stage, tasks: Sequence[Task], watcher: Watcher) -> None:
        assert stage.demonstrator is not None
        self._config = config
        self._chat = stage.chat
        self._demonstrator: Demonstrator = stage.demonstrator
        self._tasks = {task.id: task for task in tasks}
        self._watcher = watcher

    async def collect(self, sources: Sequence[str], left_out: Path) -> list[Trajectory]:
        """Return the usable trajectories, without duplicates. Write to `left_out` why the others cannot be used."""
        usable: dict[tuple[int, ...], Trajectory] = {}
        refused: list[dict[str, str]] = []
        for source in sources:
            found = await self._read(source)
            reasons = [reason for reason in found if isinstance(reason, str)]
            refused += [{"source": source, "why": reason} for reason in reasons]
            for trajectory in found:
                if not isinstance(trajectory, str):
                    usable.setdefault(trajectory.token_ids, trajectory)
            self._watcher.stage(f"{source}: {len(found) - len(reasons)} usable, {len(reasons)} omitted")
            for reason in reasons[:_SHOWN]:
                self._watcher.stage(f"omitted: {reason}")
        write_file(left_out, "".join(json.dumps(entry) + "\n" for entry in refused).encode())
        return list(usable.values())

    async def _read(self, source: str) -> list[Found]:
        if source == SOLUTIONS:
            played = (
                self._demonstrator.demonstrate(task, script_of(task), f"the solution of task {task.id}")
                for task in self._tasks.values()
                if task.solution is not None
            )
            return await _all_found(played)
        if await asyncio.to_thread(Path(source).is_dir):
            return await asyncio.to_thread(lambda: list(self._episodes(Path(source))))
        return await _all_found(map(self._conversation, list(read_rows(Path(source)))))

    async def _conversation(self, row: Row) -> Trajectory:
        value: object = row.value
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else dict[str, Any]()
        task_id: object = fields.get("task")
        messages, tools = _objects(fields.get("messages")), _objects(fields.get("tools") or [])
        if messages is None or tools is None:
            raise TaskFileError(
                f"{row.place}: not a conversation: `messages` and `tools` must be lists of objects",
                fix='write {"messages": […], "tools": […]}, with "task" for a demonstration',
            )
        constrain = self._config.sampling.constrain
        writer = self._demonstrator.writer
        try:
            recorded = read_chat(messages, joins_calls=writer.joins_calls, with_text=constrain != "act")
            if task_id is None and self._config.episodes.agent is not None:
                raise BadValueError(
                    "without a `task`, the agent cannot write its prompts", fix="add its `task`, or remove the chat"
                )
            if task_id is None:
                name = f"{row.file.name}:{row.number}"
                return render_chat(recorded, tools, name=name, chat=self._chat, writer=writer, config=self._config)
        except ConfigurationError as error:
            raise BadValueError(f"{row.place}: {error.what}", fix=error.fix) from error
        if not isinstance(task_id, str) or task_id not in self._tasks:
            raise BadValueError(f"{row.place}: there is no task {task_id!r}", fix="add the task to tasks.train")
        script = [(exchange.text, exchange.calls) for exchange in recorded.exchanges]
        return await self._demonstrator.demonstrate(self._tasks[task_id], script, f"{row.place}, of task {task_id},")

    def _episodes(self, folder: Path) -> Iterable[Found]:
        """Yield each episode of an earlier run, or the reason why it cannot be used."""
        _require_same_tokens(folder, self._config)
        model, temperature = self._config.model, self._config.sampling.temperature
        for file in sorted((folder / "trajectories").glob("step-*.parquet")):
            for t in read_trajectories(file):
                name = f"{folder.name}, step {t.step}: episode {t.member} of task {t.task_id}"
                if not succeeded(t.reward_parts):
                    yield f"{name} did not pass its checks"
                elif len(t.token_ids) > model.context_tokens:
                    yield f"{name} has {len(t.token_ids)} tokens, but model.context_tokens is {model.context_tokens}"
                elif self._config.sampling.constrain == "off":
                    nowhere = (False,) * len(t.token_ids)
                    t = replace(t, grammar=None, later_grammars=(), forced=nowhere, fixed=nowhere)
                    yield replace(t, temperature=temperature)
                else:
                    yield replace(t, temperature=temperature)


async def _all_found(played: Iterable[Awaitable[Trajectory]]) -> list[Found]:
    async def found(one: Awaitable[Trajectory]) -> Found:
        try:
            return await one
        except ConfigurationError as error:
            return error.what

    return list(await run_all(found(one) for one in played))


def _objects(value: object) -> list[Mapping[str, Any]] | None:
    """Return a value as a list of objects, or None if it is something else."""
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in cast("list[object]", value)):
        return cast("list[Mapping[str, Any]]", value)
    return None


def _require_same_tokens(folder: Path, config: RunConfig) -> None:
    """Raise unless the run in `folder` rendered its episodes as this run does: same tokenizer, same renderer."""
    if not (folder / "config.yaml").is_file():
        raise NoRunError(
            f"{folder} in sft.data is not the folder of a run: it has no config.yaml", fix="use the folder of a run"
        )
    other, own = load_recipe(folder / "config.yaml").model, config.model
    tokenizers = [Path(model.path) / "tokenizer.json" for model in (other, own)]
    same = other.path == own.path or (
        all(file.is_file() for file in tokenizers) and len({file.read_bytes() for file in tokenizers}) == 1
    )
    if not same or (other.renderer, other.thinking) != (own.renderer, own.thinking):
        raise BadValueError(
            f"the episodes in {folder} have different token ids, because model.path, model.renderer or model.thinking "
            "differs between that run and this one",
            fix="use runs of the same model, or of a model with the same tokenizer and renderer",
        )
