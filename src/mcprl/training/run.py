"""A run, put together from its configuration: cheap checks first, then servers, then the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import Collector, EpisodeRunner, Judge, require_scorable, require_tools, require_worlds
from mcprl.learners import TorchLearner
from mcprl.records import Task, Weights
from mcprl.samplers import Sampler
from mcprl.tasks import Dealer, load_preamble, load_tasks, make_order
from mcprl.tools import Toolbox, open_toolbox
from mcprl.tools.keys import load_keys
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
    order: Dealer
    toolbox: Toolbox
    collector: Collector
    sampler: Sampler
    learner: TorchLearner
    weights: Weights


@asynccontextmanager
async def open_run(config: RunConfig, watcher: Watcher) -> AsyncGenerator[Run]:
    """Everything started and checked, in a folder of its own; everything ended on leaving."""
    tasks = load_tasks(config.tasks.train)
    order = make_order(tasks, config)
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
    require_scorable(tasks, config.rewards)
    preamble = load_preamble(config.tasks.preamble)
    async with AsyncExitStack() as stack:
        watcher.stage("starting the tool servers")
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=logs))
        require_tools(tasks, toolbox.catalog)
        require_worlds(tasks, toolbox)
        watcher.stage(f"starting the sampler ({config.sampling.engine})")
        chat = await asyncio.to_thread(load_chat, config.model.path, config.model.renderer)
        sampler = await stack.enter_async_context(make_sampler(config, logs))
        judge = None
        if config.rewards.judge is not None:
            judge = await stack.enter_async_context(Judge(config.rewards.judge, load_keys(config.servers.env_file)))
        runner = EpisodeRunner(config, chat=chat, sampler=sampler, leases=toolbox, preamble=preamble, judge=judge)
        yield Stage(toolbox=toolbox, sampler=sampler, runner=runner)


def make_sampler(config: RunConfig, logs: Path) -> Sampler:
    """The sampler of the configured engine. Its library is imported only here."""
    if config.sampling.engine == "transformers":
        from mcprl.samplers.transformers import TransformersSampler

        return TransformersSampler(config.model)
    from mcprl.samplers.vllm import VllmSampler

    return VllmSampler(config.model, config.sampling, config.learner, log=logs / "vllm.log")
