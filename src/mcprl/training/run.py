"""A run, put together from its configuration: cheap checks first, then servers, then the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcprl.chat import Chat, load_chat
from mcprl.chat.turn_grammars import TurnGrammars
from mcprl.config import RunConfig
from mcprl.episodes import (
    Collector,
    Demonstrator,
    EpisodeRunner,
    Judge,
    require_grammar,
    require_scorable,
    require_tools,
    require_worlds,
)
from mcprl.learners import Learner, open_learner
from mcprl.records import Task, Weights
from mcprl.samplers import Sampler
from mcprl.tasks import Dealer, load_preamble, load_tasks, make_order
from mcprl.tools import Catalog, Toolbox, open_toolbox
from mcprl.tools.keys import load_keys
from mcprl.training.journal import RunFolder
from mcprl.training.watching import Watcher

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars

__all__ = ["Run", "Stage", "open_run", "open_stage"]


@dataclass(slots=True)
class Stage:
    """All that episodes need: tools and a sampler. `mcprl try` plays on it; training adds a learner.

    `grammars` is None where nothing is held to a grammar, `demonstrator` where nothing is to be imitated.
    """

    toolbox: Toolbox
    chat: Chat
    grammars: Grammars | None
    sampler: Sampler
    runner: EpisodeRunner
    demonstrator: Demonstrator | None


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
    learner: Learner
    weights: Weights
    demonstrator: Demonstrator | None
    kl_coefficient: float


@asynccontextmanager
async def open_run(config: RunConfig, watcher: Watcher) -> AsyncGenerator[Run]:
    """Everything started and checked, in a folder of its own; everything ended on leaving."""
    tasks = load_tasks(config.tasks.train)
    order = make_order(tasks, config)
    folder = RunFolder.create(config)
    async with open_stage(config, tasks, watcher, logs=folder.logs) as stage:
        watcher.stage("loading the learner")
        async with open_learner(config, folder=folder.weights, grammars=stage.grammars) as learner:
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
                demonstrator=stage.demonstrator,
                kl_coefficient=config.algorithm.kl.coefficient,
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
        chat = await asyncio.to_thread(
            load_chat, config.model.path, config.model.renderer, thinking=config.model.thinking
        )
        grammars, turn_grammars = None, None
        if config.sampling.constrain != "off":
            watcher.stage("compiling the grammar of the tools")
            grammars, turn_grammars = await asyncio.to_thread(make_grammars, config, chat, tasks, toolbox.catalog)
        judge = None
        if config.rewards.judge is not None:
            judge = await stack.enter_async_context(Judge(config.rewards.judge, load_keys(config.servers.env_file)))
        demonstrator = None
        if config.algorithm.warm_start.weight > 0:
            demonstrator = Demonstrator(
                config, chat=chat, leases=toolbox, preamble=preamble, grammars=turn_grammars, judge=judge
            )
            demonstrator.require_solutions(tasks)
        watcher.stage(f"starting the sampler ({config.sampling.engine})")
        sampler = await stack.enter_async_context(make_sampler(config, logs, grammars))
        runner = EpisodeRunner(
            config,
            chat=chat,
            sampler=sampler,
            leases=toolbox,
            preamble=preamble,
            judge=judge,
            grammars=turn_grammars,
        )
        yield Stage(
            toolbox=toolbox,
            chat=chat,
            grammars=grammars,
            sampler=sampler,
            runner=runner,
            demonstrator=demonstrator,
        )


def make_grammars(
    config: RunConfig, chat: Chat, tasks: Sequence[Task], catalog: Catalog
) -> tuple[Grammars, TurnGrammars]:
    """What holds calls to the schemas of their tools; every tool that a task offers is tried before a step is spent."""
    from mcprl.chat.grammars import load_grammars

    catalog.require(config.sampling.loose_tools, wanted_by="sampling.loose_tools")
    grammars = load_grammars(config.model.path)
    turn_grammars = TurnGrammars(chat, grammars, config.sampling)
    require_grammar(tasks, catalog, turn_grammars)
    return grammars, turn_grammars


def make_sampler(config: RunConfig, logs: Path, grammars: Grammars | None) -> Sampler:
    """The sampler of the configured engine. Its library is imported only here."""
    if config.sampling.engine == "transformers":
        from mcprl.samplers.transformers import TransformersSampler

        return TransformersSampler(config.model, grammars)
    from mcprl.samplers.vllm import VllmSampler

    return VllmSampler(config.model, config.sampling, config.learner, log=logs / "vllm.log")
