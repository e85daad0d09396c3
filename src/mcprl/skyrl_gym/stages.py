"""What all environments of a recipe share in a process: the tool servers, the model's wording, the judge.

A stage is opened by the first environment that needs it and stays open until the process ends.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl.canonical import canonical_json
from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import Judge, require_scorable, require_tools, require_worlds
from mcprl.episodes.environment import tool_specs
from mcprl.errors import BadValueError
from mcprl.recipe import load_recipe
from mcprl.records import Message, Task
from mcprl.skyrl_gym.background import BackgroundLoop, Held
from mcprl.skyrl_gym.episode import LiveEpisode
from mcprl.skyrl_gym.wording import Wording
from mcprl.tasks import load_preamble
from mcprl.tasks.lines import line_of
from mcprl.tools import Toolbox, open_toolbox
from mcprl.tools.keys import load_keys

__all__ = ["Stage", "StageKey", "close_stages", "load_config", "stage_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKey:
    """Which recipe, as a process may have several. StageKey(recipe=Path("/…/recipe.yaml"), overrides=("seed=3",))"""

    recipe: Path
    overrides: tuple[str, ...] = ()


class Stage:
    """A recipe's tools and wording, open, for any number of episodes at once."""

    def __init__(
        self, config: RunConfig, loop: BackgroundLoop, *, toolbox: Toolbox, wording: Wording, judge: Judge | None
    ) -> None:
        self.config = config
        self.loop = loop
        self.toolbox = toolbox
        self.wording = wording
        self._judge = judge
        self._preamble = load_preamble(config.tasks.preamble)
        self._conversations: dict[str, tuple[Message, ...]] = {}

    def conversation(self, task: Task) -> list[Message]:
        """What the policy sees first. Raises a ConfigurationError where the task cannot be played or scored here."""
        key = canonical_json(line_of(task))
        if key not in self._conversations:
            require_scorable([task], self.config.rewards)
            require_tools([task], self.toolbox.catalog)
            require_worlds([task], self.toolbox)
            self._conversations[key] = tuple(self.wording.conversation(*self._opening(task)))
        # SkyRL appends to the list and keeps the messages.
        return [message.copy() for message in self._conversations[key]]

    def prompt_ids(self, task: Task) -> tuple[int, ...]:
        """The same in tokens, as mcprl's own trainer has it."""
        return self.wording.prompt_ids(*self._opening(task))

    def episode(self, task: Task) -> LiveEpisode:
        """An episode that has not begun."""
        return LiveEpisode(task, self.config, leases=self.toolbox, preamble=self._preamble, judge=self._judge)

    def _opening(self, task: Task) -> tuple[list[Message], list[dict[str, Any]]]:
        tools = tool_specs(self.toolbox.catalog.select(task.tools))
        return [*self._preamble, *task.prompt], tools


def load_config(key: StageKey) -> RunConfig:
    """The recipe's configuration. Raises a ConfigurationError where it asks for what SkyRL's trainer cannot do."""
    config = load_recipe(key.recipe, key.overrides)
    for holds, what, override in (
        (config.sampling.constrain != "off", "turns held to a grammar", "sampling.constrain=off"),
        (config.episodes.injected_errors > 0, "failures on purpose", "episodes.injected_errors=0"),
    ):
        if holds:
            raise BadValueError(
                f"{key.recipe} asks for {what}, which there is not in SkyRL's trainer",
                fix=f"change the recipe, or give the override {override}",
            )
    return config


@asynccontextmanager
async def _open_stage(config: RunConfig, loop: BackgroundLoop) -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        model = config.model
        chat = await asyncio.to_thread(load_chat, model.path, model.renderer, thinking=model.thinking)
        wording = Wording(chat)
        logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcprl-skyrl-gym-"))
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=Path(logs)))
        judge = None
        if config.rewards.judge is not None:
            judge = await stack.enter_async_context(Judge(config.rewards.judge, load_keys(config.servers.env_file)))
        yield Stage(config, loop, toolbox=toolbox, wording=wording, judge=judge)


class _Stages:
    """The stages of this process, and the loop they live on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: BackgroundLoop | None = None
        self._open: dict[StageKey, tuple[Held[Stage], Stage]] = {}
        self._closes_at_exit = False

    def get(self, key: StageKey) -> Stage:
        with self._lock:
            if key not in self._open:
                config = load_config(key)
                loop = self._loop = self._loop or BackgroundLoop()
                self._close_at_exit()
                self._open[key] = loop.run(self._enter(config, loop))
            return self._open[key][1]

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            stages, self._open = self._open, {}
            for held, _ in stages.values():
                loop.run(held.leave())
            loop.close()

    @staticmethod
    async def _enter(config: RunConfig, loop: BackgroundLoop) -> tuple[Held[Stage], Stage]:
        held = Held(_open_stage(config, loop))
        return held, await held.enter()

    def _close_at_exit(self) -> None:
        if not self._closes_at_exit:
            # What `atexit` runs comes too late: no thread can be started any more, and ending a server takes one. This
            # is how the executors of the standard library end theirs.
            register: Any = vars(threading)["_register_atexit"]
            register(self.close)
            self._closes_at_exit = True


_STAGES = _Stages()


def stage_of(key: StageKey) -> Stage:
    """The stage of a recipe in this process; the first to ask waits until its servers are up.

    Raises what is wrong with the recipe or its servers; whoever asks again has it opened again.
    """
    return _STAGES.get(key)


def close_stages() -> None:
    """End all tool servers of this process now, and not only when it ends. Episodes under way lose their tools."""
    _STAGES.close()
