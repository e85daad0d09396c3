"""Episodes for the benches of workers: every turn is one call of a tool that waits, until the limit of turns.

What is called with which number follows from the seed of the turn, so an episode is the same wherever it is played.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mcprl.config import RunConfig
from mcprl.episodes import RunsEpisodes
from mcprl.episodes.ray_workers import RayWorkers, make_shared_limits
from mcprl.episodes.stage import open_kit
from mcprl.functions import Code
from mcprl.goals import ExpectedCall, Goal
from mcprl.records import Task, Trajectory
from mcprl.samplers import SampleRequest
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.tools import open_toolbox

__all__ = ["arrivals", "by_name", "make_config", "make_tasks", "open_local", "open_workers", "without_times"]

GROUP_SIZE = 4
_HERE = Path(__file__).resolve().parent
_MODEL = _HERE.parents[1] / ".cache" / "models" / "tiny-qwen3"
_CALL = '<tool_call>\n{{"name": "wait", "arguments": {{"number": {number}}}}}\n</tool_call>'


def make_config(
    folder: Path,
    *,
    workers: int,
    at_once: int,
    tool_s: float,
    rate: tuple[int, float] | None = None,
    model: Path = _MODEL,
) -> RunConfig:
    """A run below `folder`, with `at_once` episodes over all workers. `rate` is calls in seconds."""
    server = {"command": sys.executable, "args": [str(_HERE / "waiting_server.py"), str(tool_s), str(folder / "calls")]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"waiting": server}}))
    settings: dict[str, Any] = {"call_deadline_s": 120}
    if rate is not None:
        settings["rate"] = {"calls": rate[0], "per_s": rate[1]}
    return RunConfig.model_validate(
        {
            "name": "workers",
            "seed": 5,
            "engine": "transformers",
            "model": {"path": str(model), "renderer": "chatml", "dtype": "float32", "context_tokens": 4096},
            "tasks": {"train": str(folder / "tasks.jsonl")},
            "servers": {"file": str(folder / "servers.json"), "settings": {"waiting": settings}},
            "sampling": {"max_tokens": 64},
            "episodes": {"group_size": GROUP_SIZE, "max_concurrent": at_once, "deadline_s": 600},
            "workers": {"count": workers},
        }
    )


def make_tasks(episodes: int, turns: int) -> list[Task]:
    """Tasks whose groups have so many episodes together, or a few more where that does not divide."""
    return [
        Task(
            id=f"wait-{number}",
            prompt=({"role": "user", "content": f"Wait for number {number}."},),
            goal=Goal(calls=(ExpectedCall(tool="wait", arguments={}),)),
            max_turns=turns,
        )
        for number in range(-(-episodes // GROUP_SIZE))
    ]


@asynccontextmanager
async def open_local(config: RunConfig, logs: Path) -> AsyncGenerator[RunsEpisodes]:
    """The same episodes, played by this process."""
    async with open_toolbox(config.servers, log_dir=logs) as toolbox, open_kit(config, toolbox, logs=logs) as kit:
        yield kit.runner(ScriptedSampler(_script(config)))


@asynccontextmanager
async def open_workers(config: RunConfig, logs: Path, code: Code | None = None) -> AsyncGenerator[RayWorkers]:
    """Workers on Ray, with the scripted sampler in this process, and the code of the reward functions."""
    limits = make_shared_limits(config)
    async with AsyncExitStack() as stack:
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=logs, limits=limits))
        sampler = ScriptedSampler(_script(config))
        yield await stack.enter_async_context(
            RayWorkers(config, sampler=sampler, limits=limits, toolbox=toolbox, logs=logs, code=code)
        )


def arrivals(folder: Path) -> list[float]:
    """When the servers below `folder` were called, in seconds of the clock, sorted."""
    calls = folder / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return sorted(float(line.split()[0]) for line in lines)


def without_times(trajectory: Trajectory) -> Trajectory:
    """All of an episode that does not depend on the clock."""
    turns = tuple(
        replace(turn, observations=tuple(replace(seen, latency_s=0.0) for seen in turn.observations))
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns, duration_s=0.0)


def by_name(trajectories: Sequence[Trajectory]) -> dict[tuple[int, str, int], Trajectory]:
    """Without times, by step, task and member."""
    return {(t.step, t.task_id, t.member): without_times(t) for t in trajectories}


def _script(config: RunConfig) -> Callable[[SampleRequest], tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(Path(config.model.path) / "tokenizer.json"))

    def script(request: SampleRequest) -> tuple[int, ...]:
        text = _CALL.format(number=request.seed % 10**6)
        return (*tokenizer.encode(text, add_special_tokens=False).ids, request.stop_token_ids[0])

    return script
