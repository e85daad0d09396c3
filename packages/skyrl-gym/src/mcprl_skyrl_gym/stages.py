"""The state that all environments of a recipe share in a process: the tool servers, the chat format, the judge.

The first environment that needs a stage opens it. It stays open until the process ends.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal
from jinja2.exceptions import TemplateError

from mcprl.chat import Chat, load_chat
from mcprl.chat.parsing import JSON_FAMILIES, read_text
from mcprl.chat.rendering import ControlText
from mcprl.config import RunConfig
from mcprl.episodes import Judge, require_scorable, require_tools, require_worlds
from mcprl.episodes.environment import (
    Action,
    Environment,
    Functions,
    StepResult,
    ToolAccess,
    require_users,
    tool_specs,
)
from mcprl.episodes.loop import Leases, end_at_deadline, lease_for, longest_life_s
from mcprl.episodes.reward_functions import code_of
from mcprl.episodes.stage import open_graders
from mcprl.errors import BadValueError, EpisodeDeadlineError
from mcprl.files import canonical_json
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Message, Observation, StopReason, Task, ToolCall
from mcprl.tasks import load_preamble, load_tasks
from mcprl.tasks.formats import line_of
from mcprl.tools import Toolbox, open_toolbox

T = TypeVar("T")


class Held(Generic[T]):
    """Enters and leaves a context in one asyncio task of its own, because timeouts inside the context require that."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._leaving = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        """Enter the context and return its value. If the caller is cancelled meanwhile, leave the context again."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holder = holder = asyncio.create_task(self._hold(entered))
        try:
            await asyncio.wait({holder, entered}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            raise
        if not entered.done():
            holder.result()  # raises, because the task ended before it entered the context
        return entered.result()

    def let_go(self) -> None:
        """Leave the context soon, without waiting."""
        self._leaving.set()

    async def leave(self) -> None:
        """Leave the context and wait until that is done. A second call does nothing."""
        self._leaving.set()
        if self._holder is not None:
            holder, self._holder = self._holder, None
            await holder

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._context as value:
            entered.set_result(value)
            await self._leaving.wait()


ToolSpec = Mapping[str, Any]

_PLACE = "TheSystemMessage"
_BASE: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."}]
_RESULTS = tuple(Observation(tool="look", server=None, text=text) for text in ("Seen.", "Heard."))
_TOOL: ToolSpec = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")
_FIX = "set model.renderer to template, or use a model of the family qwen3, qwen3-vl or chatml"


class Wording:
    """Converts conversations and tool results to messages for one model, and parses its turns."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._stops = [chat.decode([token_id]) for token_id in chat.stop_token_ids]
        self._require_readable()
        # Texts of tool servers must not close a turn or open another one: the template encodes text that looks like a
        # control token as that token.
        tags = set(_TAG.findall(self._template(_BASE) or ""))
        self._control_text = ControlText(chat.tokenizer, tags)
        self._results_are_spoken_by_user = self._who_speaks_results()

    def conversation(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
        """Return the messages with a system message that describes the tools as mcprl's own prompt does."""
        wanted = self._chat.decode(self._chat.open(messages, tools))
        has_system = bool(messages) and messages[0]["role"] == "system"
        rest = list(messages[1:] if has_system else messages)
        before, place, after = (self._template([_said("system", _PLACE), *rest]) or "").partition(_PLACE)
        end = wanted.rfind(after)
        if place and wanted.startswith(before) and end >= len(before):
            found = [_said("system", wanted[len(before) : end]), *rest]
            if wanted.startswith(self._template(found) or place):
                return found
        raise BadValueError(
            f"the tokenizer's chat template cannot render messages that model.renderer={self._chat.family} can render",
            fix=_FIX,
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of the first turn's prompt, as in mcprl's own trainer."""
        return self._chat.open(messages, tools)

    def results(self, observations: Sequence[Observation], follow_up: Sequence[Message] = ()) -> list[Message]:
        """Return the messages after a turn: the results of its calls, or the user's next messages."""
        said = [_said(message["role"], str(self._control_text.defused(message["content"]))) for message in follow_up]
        return [*self._as_messages(observations, by_user=self._results_are_spoken_by_user), *said]

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Parse a turn into text and calls. A call that cannot be parsed has a `problem`."""
        for stop in self._stops:
            text = text.removesuffix(stop)
        return read_text(text, self._chat.family, self._chat.thinking)

    def _as_messages(self, observations: Sequence[Observation], *, by_user: bool) -> list[Message]:
        shown = [(seen.tool, str(self._control_text.defused(seen.text))) for seen in observations]
        if not by_user:
            return [{"role": "tool", "name": tool, "content": text} for tool, text in shown]
        framed = [f"<tool_response>\n{text}\n</tool_response>" for _, text in shown]
        return [_said("user", "\n\n".join(framed))] if framed else []

    def _who_speaks_results(self) -> bool:
        """Return True if results must be user messages to give the text that mcprl's own chat writes after a turn."""
        prompt_ids = self._chat.open(_BASE[1:], [_TOOL])
        word_ids = self._chat.tokenizer.encode("Word", add_special_tokens=False)
        shown: list[Message] = [{"role": "tool", "name": seen.tool, "content": seen.text} for seen in _RESULTS]
        wanted = self._chat.decode(self._chat.extend(prompt_ids, word_ids, shown, [_TOOL]))
        for by_user in (False, True):
            # As in SkyRL: render after a fixed conversation, then cut off the text of that conversation.
            base, whole = self._template(_BASE), self._template([*_BASE, *self._as_messages(_RESULTS, by_user=by_user)])
            if base and whole and whole.startswith(base) and whole.removeprefix(base).strip() in wanted:
                return by_user
        raise BadValueError(
            f"the tokenizer's chat template renders tool results differently from model.renderer={self._chat.family}",
            fix=_FIX,
        )

    def _require_readable(self) -> None:
        written = JSON_FAMILIES.get(self._chat.family)
        if written is not None:
            opening = written.opening or ""
            ids = self._chat.tokenizer.encode(opening, add_special_tokens=False)
            if opening in str(cast("Any", self._chat.tokenizer).decode(ids, skip_special_tokens=True)):
                return
        raise BadValueError(
            f"SkyRL passes turns as text without control tokens, but the call format of {self._chat.family} models "
            "needs such tokens",
            fix=_FIX,
        )

    def _template(self, messages: Sequence[Message]) -> str | None:
        """Render the messages with the template; None if it rejects their roles."""
        tokenizer = cast("Any", self._chat.tokenizer)
        try:
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=False))
        except (TemplateError, TypeError, KeyError, IndexError):
            return None


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


class LiveEpisode:
    """An episode on one event loop, from leasing its tools to releasing them."""

    def __init__(
        self, task: Task, config: RunConfig, leases: Leases, make_environment: Callable[..., Environment]
    ) -> None:
        self._task = task
        self._config = config
        self._leases = leases
        self._make_environment = make_environment
        self._held: Held[ToolAccess] | None = None
        self._end_of_life: asyncio.TimerHandle | None = None
        self._environment: Environment | None = None
        self._started = 0.0
        self._played_s = 0.0  # time until the end of the last turn

    @property
    def environment(self) -> Environment:
        if self._environment is None:
            raise RuntimeError("the episode is not open")
        return self._environment

    async def open(self) -> None:
        """Lease the task's tools. They are released automatically after the longest time that an episode can take."""
        self._started = time.monotonic()
        lives_s = longest_life_s(self._config.episodes.deadline_s)
        self._held = Held(lease_for(self._task, self._leases, lives_s=lives_s, rewards=self._config.rewards))
        try:
            async with asyncio.timeout(self._config.episodes.deadline_s):
                access = await self._held.enter()
        except TimeoutError as error:
            raise self._late() from error
        self._end_of_life = asyncio.get_running_loop().call_later(lives_s, self._held.let_go)
        max_turns = self._config.episodes.turn_limit(self._task)
        self._environment = self._make_environment(self._task, access, max_turns=max_turns)

    async def step(self, text: str, prose: str, calls: tuple[ToolCall, ...]) -> StepResult:
        """Execute one turn. Raises an InfrastructureError if the infrastructure fails."""
        left_s = self._config.episodes.deadline_s - self._age_s()
        if left_s <= 0:
            return await self._end_late()
        # SkyRL's trainer keeps the sampled tokens and the reason why the turn ended.
        action = Action(
            text=text, prose=prose, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0
        )
        try:
            async with asyncio.timeout(left_s):
                result = await self.environment.step(action)
        except TimeoutError:
            return await self._end_late()
        self._played_s = self._age_s()
        return result

    async def close(self) -> None:
        """Release the leased tools. A second call does nothing."""
        if self._end_of_life is not None:
            self._end_of_life.cancel()
        if self._held is not None:
            await self._held.leave()

    async def _end_late(self) -> StepResult:
        """End the episode at the deadline, as mcprl's own loop does."""
        environment, before = self.environment, self.environment.reward
        deadline_s = self._config.episodes.deadline_s
        await end_at_deadline(environment, played_s=self._played_s, deadline_s=deadline_s, late=self._late())
        return StepResult(
            observations=(), reward=environment.reward - before, stop=StopReason.DEADLINE, parts=environment.parts
        )

    def _late(self) -> EpisodeDeadlineError:
        deadline_s = self._config.episodes.deadline_s
        return EpisodeDeadlineError(
            f"an episode of task {self._task.id} took longer than {deadline_s:g} s, and spent "
            f"{self._age_s() - self._played_s:.3g} s waiting for the trainer's engine or a tool server",
            fix="find out whether a tool server or the trainer's engine is slow, or raise episodes.deadline_s",
        )

    def _age_s(self) -> float:
        return time.monotonic() - self._started


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKey:
    """Identifies a stage of this process: StageKey(recipe=Path("/…/recipe.yaml"), overrides=("seed=3",))"""

    recipe: Path
    overrides: tuple[str, ...] = ()


class Stage:
    """The tools and chat format of a recipe, shared by concurrent episodes, which run in the event loop of `portal`."""

    def __init__(
        self,
        config: RunConfig,
        portal: BlockingPortal,
        *,
        toolbox: Toolbox,
        wording: Wording,
        judge: Judge | None,
        functions: Functions | None,
    ) -> None:
        self.config = config
        self.portal = portal
        self.toolbox = toolbox
        self.wording = wording
        self._preamble = load_preamble(config.tasks.preamble)
        self._make_environment = partial(
            Environment, preamble=self._preamble, rewards=config.rewards, judge=judge, functions=functions
        )
        self._conversations: dict[str, tuple[Message, ...]] = {}

    def conversation(self, task: Task) -> list[Message]:
        """Return the initial conversation. Raises a ConfigurationError if the task cannot run or be scored here."""
        key = canonical_json(line_of(task))
        if key not in self._conversations:
            require_scorable([task], self.config.rewards)
            require_users([task], self.config.tasks)
            require_tools([task], self.toolbox.catalog)
            require_worlds([task], self.toolbox)
            self._conversations[key] = tuple(self.wording.conversation(*self._opening(task)))
        # Copied, because SkyRL appends to the list and keeps the messages.
        return [message.copy() for message in self._conversations[key]]

    def prompt_ids(self, task: Task) -> tuple[int, ...]:
        """Return the tokens of the first prompt, as in mcprl's own trainer."""
        return self.wording.prompt_ids(*self._opening(task))

    def episode(self, task: Task) -> LiveEpisode:
        """Create an episode. It is not open yet."""
        return LiveEpisode(task, self.config, self.toolbox, self._make_environment)

    def _opening(self, task: Task) -> tuple[list[Message], list[dict[str, Any]]]:
        later = {name for follow_up in task.follow_ups for name in follow_up.tools}
        tools = tool_specs(tool for tool in self.toolbox.catalog.select(task.tools) if tool.name not in later)
        return [*self._preamble, *task.prompt], tools


def load_config(key: StageKey) -> RunConfig:
    """Load the recipe. Raises a ConfigurationError if it needs something that SkyRL's trainer cannot do."""
    config = load_recipe(key.recipe, key.overrides)
    for holds, what, override in (
        (config.sampling.constrain != "off", "turns constrained by a grammar", "sampling.constrain=off"),
        (config.episodes.injected_errors > 0, "injected errors", "episodes.injected_errors=0"),
    ):
        if holds:
            raise BadValueError(
                f"{key.recipe} uses {what}, which SkyRL's trainer does not support",
                fix=f"change the recipe, or use the override {override}",
            )
    return config


@asynccontextmanager
async def _open_stage(config: RunConfig, portal: BlockingPortal) -> AsyncGenerator[Stage]:
    async with AsyncExitStack() as stack:
        model = config.model
        chat = await asyncio.to_thread(load_chat, model.path, model.renderer, thinking=model.thinking)
        logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcprl-skyrl-gym-"))
        wording = Wording(chat)
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=Path(logs)))
        files = [file for file in (config.tasks.train, config.tasks.validation) if file is not None]
        code = code_of(config.rewards, [task for file in files for task in load_tasks(file)])
        judge, functions = await stack.enter_async_context(open_graders(config, toolbox, Path(logs), code))
        if functions is not None and functions.of_groups:
            raise BadValueError(
                f"the reward function {functions.of_groups[0]} scores whole groups, but SkyRL runs single episodes",
                fix="remove it from rewards.functions, or replace it with a function that scores single episodes",
            )
        yield Stage(config, portal, toolbox=toolbox, wording=wording, judge=judge, functions=functions)


class _Stages:
    """The stages of this process, and the event loop they run in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exits = ExitStack()
        self._portal: BlockingPortal | None = None
        self._open: dict[StageKey, Stage] = {}
        self._closes_at_exit = False

    def get(self, key: StageKey) -> Stage:
        with self._lock:
            if key not in self._open:
                config = load_config(key)
                portal = self._portal = self._portal or self._start_portal()
                opening = portal.wrap_async_context_manager(_open_stage(config, portal))
                self._open[key] = self._exits.enter_context(opening)
            return self._open[key]

    def close(self) -> None:
        with self._lock:
            self._portal = None
            self._open.clear()
            self._exits.close()

    def _start_portal(self) -> BlockingPortal:
        portal = self._exits.enter_context(start_blocking_portal(name="mcprl-tools"))
        self._exits.callback(portal.call, portal.stop, True)  # runs after the stages close; cancels the rest
        if not self._closes_at_exit:
            # `atexit` runs too late: no thread can be started then, and stopping a server needs one. The executors of
            # the standard library are shut down in the same way.
            register: Any = vars(threading)["_register_atexit"]
            register(self.close)
            self._closes_at_exit = True
        return portal


_STAGES = _Stages()


def stage_of(key: StageKey) -> Stage:
    """Return the stage of a recipe in this process. The first call waits until its servers are up.

    If opening it fails, the error is raised, and the next call tries again.
    """
    return _STAGES.get(key)


def close_stages() -> None:
    """Stop all tool servers of this process now, instead of when it ends. Running episodes lose their tools."""
    _STAGES.close()
