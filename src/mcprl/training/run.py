"""A run, put together from its configuration: cheap checks first, then servers, then the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import Collector, EpisodeRunner
from mcprl.learners import TorchLearner
from mcprl.records import Task, Weights
from mcprl.samplers import Sampler
from mcprl.tasks import TaskOrder, load_preamble, load_tasks
from mcprl.tools import Catalog, Toolbox, open_toolbox
from mcprl.training.journal import RunFolder
from mcprl.training.watching import Watcher

__all__ = ["Run", "Stage", "open_run", "open_stage"]


@dataclass(slots=True)
class Stage:
    """All that episodes need: tools and a sampler. `mcprl try` plays on it; training adds a learner."""

    toolbox: Toolbox
    sampler: Sampler
    runner: EpisodeRunner


@dataclass(slots=True)
class Run:
    """A training run, open: everything the loop needs."""

    config: RunConfig
    folder: RunFolder
    watcher: Watcher
    order: TaskOrder
    toolbox: Toolbox
    collector: Collector
    sampler: Sampler
    learner: TorchLearner
    weights: Weights


@asynccontextmanager
async def open_run(config: RunConfig, watcher: Watcher) -> AsyncGenerator[Run]:
    """Everything started and checked, in a folder of its own; everything ended on leaving."""
    tasks = load_tasks(config.tasks.train)
    order = TaskOrder(tasks, per_step=config.training.tasks_per_step, seed=config.seed)
    folder = RunFolder.create(config)
    async with open_stage(config, tasks, watcher, logs=folder.logs) as stage:
        watcher.stage("loading the learner")
        learner = await asyncio.to_thread(TorchLearner, config, adapters=folder.adapters)
        yield Run(
            config=config,
            folder=folder,
            watcher=watcher,
            order=order,
            toolbox=stage.toolbox,
            collector=Collector(stage.runner, config.episodes),
            sampler=stage.sampler,
            learner=learner,
            weights=Weights(version=0),
        )


@asynccontextmanager
async def open_stage(
    config: RunConfig, tasks: Sequence[Task], watcher: Watcher, *, logs: Path
) -> AsyncGenerator[Stage]:
    """Servers started, every tool that a task names found, and only then the model loaded."""
    preamble = load_preamble(config.tasks.preamble)
    async with AsyncExitStack() as stack:
        watcher.stage("starting the tool servers")
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=logs))
        require_tools(tasks, toolbox.catalog)
        watcher.stage(f"starting the sampler ({config.sampling.engine})")
        chat = await asyncio.to_thread(load_chat, config.model.path, config.model.renderer)
        sampler = await stack.enter_async_context(make_sampler(config, logs))
        runner = EpisodeRunner(config, chat=chat, sampler=sampler, leases=toolbox, preamble=preamble)
        yield Stage(toolbox=toolbox, sampler=sampler, runner=runner)


def require_tools(tasks: Sequence[Task], catalog: Catalog) -> None:
    """Stop here, before a step is spent, where a task offers or needs a tool that no server lists."""
    for task in tasks:
        needed = [call.tool for call in task.goal.calls]
        catalog.require([*(task.tools or ()), *needed], wanted_by=f"task {task.id}")


def make_sampler(config: RunConfig, logs: Path) -> Sampler:
    """The sampler of the configured engine. Its library is imported only here."""
    if config.sampling.engine == "transformers":
        from mcprl.samplers.transformers import TransformersSampler

        return TransformersSampler(config.model)
    from mcprl.samplers.vllm import VllmSampler

    return VllmSampler(config.model, config.sampling, config.learner, log=logs / "vllm.log")
