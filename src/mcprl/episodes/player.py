"""What episodes are played with, besides tools and a sampler: chat, preamble, grammars and judge, once a process.

A run that plays its episodes itself makes one kit; with workers, each of them makes one from the same configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcprl.chat import Chat, load_chat
from mcprl.chat.turn_grammars import TurnGrammars
from mcprl.config import RunConfig
from mcprl.episodes.demonstrations import Demonstrator
from mcprl.episodes.judge import Judge
from mcprl.episodes.loop import EpisodeRunner, Leases
from mcprl.episodes.requirements import require_grammar
from mcprl.records import Message, Task
from mcprl.samplers import Sampler
from mcprl.tasks import load_preamble
from mcprl.tools import Catalog, Toolbox
from mcprl.tools.keys import load_keys

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars

__all__ = ["PlayerKit", "open_kit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerKit:
    """All that the episodes of a process share. Both kinds of grammars are None where nothing is held to one."""

    config: RunConfig
    leases: Leases
    chat: Chat
    preamble: tuple[Message, ...]
    grammars: Grammars | None
    turn_grammars: TurnGrammars | None
    judge: Judge | None

    def runner(self, sampler: Sampler) -> EpisodeRunner:
        """Who runs episodes whose turns come from `sampler`."""
        return EpisodeRunner(
            self.config,
            chat=self.chat,
            sampler=sampler,
            leases=self.leases,
            preamble=self.preamble,
            judge=self.judge,
            grammars=self.turn_grammars,
        )

    def demonstrator(self) -> Demonstrator | None:
        """Plays the solutions of tasks; None if nothing is to be imitated."""
        if self.config.algorithm.warm_start.weight <= 0:
            return None
        return Demonstrator(
            self.config,
            chat=self.chat,
            leases=self.leases,
            preamble=self.preamble,
            grammars=self.turn_grammars,
            judge=self.judge,
        )


@asynccontextmanager
async def open_kit(
    config: RunConfig, toolbox: Toolbox, *, tasks: Sequence[Task] = (), tell: Callable[[str], None] | None = None
) -> AsyncGenerator[PlayerKit]:
    """The kit of `config` over an open toolbox. The grammar of every tool that `tasks` offer is tried.

    `tell` hears what takes long.
    """
    preamble = load_preamble(config.tasks.preamble)
    async with AsyncExitStack() as stack:
        chat = await asyncio.to_thread(
            load_chat, config.model.path, config.model.renderer, thinking=config.model.thinking
        )
        grammars, turn_grammars = None, None
        if config.sampling.constrain != "off":
            if tell is not None:
                tell("compiling the grammar of the tools")
            grammars, turn_grammars = await asyncio.to_thread(_make_grammars, config, chat, tasks, toolbox.catalog)
        judge = None
        if config.rewards.judge is not None:
            judge = await stack.enter_async_context(Judge(config.rewards.judge, load_keys(config.servers.env_file)))
        yield PlayerKit(
            config=config,
            leases=toolbox,
            chat=chat,
            preamble=tuple(preamble),
            grammars=grammars,
            turn_grammars=turn_grammars,
            judge=judge,
        )


def _make_grammars(
    config: RunConfig, chat: Chat, tasks: Sequence[Task], catalog: Catalog
) -> tuple[Grammars, TurnGrammars]:
    """What holds calls to the schemas of their tools; every tool that a task offers is tried before a step is spent."""
    from mcprl.chat.grammars import load_grammars

    catalog.require(config.sampling.loose_tools, wanted_by="sampling.loose_tools")
    grammars = load_grammars(config.model.path)
    turn_grammars = TurnGrammars(chat, grammars, config.sampling)
    require_grammar(tasks, catalog, turn_grammars)
    return grammars, turn_grammars
