"""`mcprl play`: a person acts as the model, with the same prompt, tools and rewards."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.cli.options import Overrides

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from mcprl.cli.typed_calls import Typed
    from mcprl.config import RewardsConfig, ServersConfig
    from mcprl.episodes import Action, Environment
    from mcprl.episodes.environment import ToolAccess
    from mcprl.monitoring.playing import PlayConsole
    from mcprl.records import Task
    from mcprl.tools import Tool

__all__ = ["command"]

_A_DAY_S = 86400.0


def command(
    task: Annotated[str, typer.Argument(help="Id of the task; the first one if left out.")] = "",
    recipe: Annotated[
        Path | None,
        typer.Option(help="Recipe with the tasks, servers and rewards; default: the market that comes with mcprl."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Play a task yourself: see what the model sees, type calls, see what they give back and what they are worth."""
    from mcprl.cli.task_choice import choose_task
    from mcprl.config import EpisodesConfig, RewardsConfig, ServersConfig, TasksConfig
    from mcprl.episodes import Environment
    from mcprl.errors import BadValueError
    from mcprl.monitoring.playing import PlayConsole
    from mcprl.recipe import load_recipe
    from mcprl.tasks import load_preamble

    if recipe is None:
        if overrides:
            raise BadValueError("--set changes a recipe, and there is none", fix="name one with --recipe")
        tasks = TasksConfig.model_validate({"train": "mcprl:market/train.jsonl"})
        servers = ServersConfig.model_validate({"file": "mcprl:market/servers.json"})
        episodes, rewards = EpisodesConfig(), RewardsConfig()
    else:
        config = load_recipe(recipe, overrides or [])
        tasks, servers, episodes, rewards = config.tasks, config.servers, config.episodes, config.rewards
    with suppress(ImportError):  # not part of every Python
        import_module("readline")  # lets `input` edit lines and remember them
    chosen = choose_task(tasks.train, task)
    preamble = load_preamble(tasks.preamble)
    max_turns = episodes.turn_limit(chosen)
    with _open_lease(chosen, servers, lives_s=_A_DAY_S) as (portal, access, tools):
        environment = Environment(chosen, access, preamble=preamble, max_turns=max_turns, rewards=rewards)
        game = _Game(chosen, tools, environment, PlayConsole(), portal)
        game.play(max_turns)
        game.tell_result(rewards)


@contextmanager
def _open_lease(
    task: Task, servers: ServersConfig, *, lives_s: float
) -> Generator[tuple[BlockingPortal, ToolAccess, tuple[Tool, ...]]]:
    """The task's tools, on an event loop in a thread of its own: this one belongs to whoever types."""
    from anyio.from_thread import start_blocking_portal
    from rich.console import Console

    from mcprl.episodes import require_tools, require_worlds
    from mcprl.episodes.loop import lease_for
    from mcprl.tools import open_toolbox

    with ExitStack() as stack:
        logs = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcprl-play-"))
        portal = stack.enter_context(start_blocking_portal())
        with Console(stderr=True).status("starting the tool servers"):
            opening = open_toolbox(servers, log_dir=Path(logs))
            toolbox = stack.enter_context(portal.wrap_async_context_manager(opening))
            require_tools([task], toolbox.catalog)
            require_worlds([task], toolbox)
            access = stack.enter_context(portal.wrap_async_context_manager(lease_for(task, toolbox, lives_s=lives_s)))
            tools = [toolbox.catalog[face.name] for face in access.tools]
        yield portal, access, tuple(sorted(tools, key=lambda tool: tool.server))


class _Game:
    """One task, one person."""

    def __init__(
        self,
        task: Task,
        tools: tuple[Tool, ...],
        environment: Environment,
        console: PlayConsole,
        portal: BlockingPortal,
    ) -> None:
        self._task = task
        self._tools = {tool.name: tool for tool in tools}
        self._environment = environment
        self._console = console
        self._portal = portal

    def play(self, max_turns: int) -> None:
        """Until the episode stops, or the person does."""
        self._console.task(self._task, self._environment.messages, tuple(self._tools.values()), max_turns)
        while (typed := self._next_action(max_turns)) is not None:
            result = self._portal.call(self._environment.step, _action(typed))
            self._console.step(result, self._environment.reward)
            if result.stop is not None:
                self._console.note(f"the episode is over: {result.stop.value.replace('_', ' ')}", style="bold")
                return

    def tell_result(self, rewards: RewardsConfig) -> None:
        """The parts of the reward, whether or not the episode came to its end."""
        from mcprl.episodes import succeeded

        parts = self._environment.parts
        self._console.breakdown(parts, rewards, self._environment.reward, solved=succeeded(parts))

    def _next_action(self, max_turns: int) -> Typed | None:
        """What was typed next, after the lines that are no action; None where the person leaves."""
        from mcprl.cli.typed_calls import TypingError, read_typed

        schemas = {name: tool.parameters for name, tool in self._tools.items()}
        while True:
            try:
                line = input(f"turn {len(self._environment.turns) + 1} of {max_turns}> ")
                if line.strip() == "quit":
                    return None
                if not self._is_question(line.split()):
                    return read_typed(line, schemas, input)
            except EOFError:
                return None
            except TypingError as error:
                self._console.note(str(error))

    def _is_question(self, words: list[str]) -> bool:
        """Whether the line only asks for something, which is then shown."""
        match words:
            case ["tools"]:
                self._console.tools(tuple(self._tools.values()))
            case ["schema", name] if name in self._tools:
                (spec,) = (spec for spec in self._environment.tool_specs if spec["name"] == name)
                self._console.schema(spec)
            case ["solution"]:
                self._console.solution(self._task)
            case _:
                return False
        return True


def _action(typed: Typed) -> Action:
    from mcprl.episodes import Action
    from mcprl.records import FinishReason

    said = typed.answer or ""
    # Nothing was sampled: these turns are never learnt from.
    return Action(text=said, prose=said, calls=typed.calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)
