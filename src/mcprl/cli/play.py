"""`mcprl play`: attempt a task by hand, with the model's prompt, tools and rewards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from mcprl.cli.options import Overrides, temporary_logs, typed_value
from mcprl.cli.printing import plain_table, printable, words
from mcprl.cli.tools import print_tools
from mcprl.errors import did_you_mean

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from mcprl.config import RewardsConfig, ServersConfig, UserConfig
    from mcprl.episodes import Action, Environment
    from mcprl.episodes.environment import ToolAccess
    from mcprl.episodes.reward_functions import RewardFunctions
    from mcprl.records import Task, ToolCall
    from mcprl.tools import Tool

_HOW = (
    "Type a call:   {example}\n"
    "or as JSON:    {json}\n"
    "several lines: TOOL ARGUMENT=<<            (then the lines, and a single . to end)\n"
    "finish with:   answer YOUR ANSWER          (also: tools, schema TOOL, solution, quit)"
)
_ANSWER = "answer"
_BLOCK = "<<"
_END_OF_BLOCK = "."
_LIVES_S = 86400.0


class TypingError(ValueError):
    """A line is neither a call nor an answer. The message says what to type instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A parsed line: calls, or an answer.

    Typed(calls=(ToolCall(name="fmp_get_quote", arguments={"symbol": "VLKN"}),), answer=None)
    """

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None


def read_typed(line: str, tools: Mapping[str, Mapping[str, Any]], next_line: Callable[[], str]) -> Typed:
    """Parse a typed line. `tools` maps tool names to schemas; `next_line` returns the next line of a block."""
    from mcprl.records import ToolCall

    text = line.strip()
    word, _, rest = text.partition(" ")
    if word == _ANSWER:
        return Typed(answer=rest.strip())
    if text.startswith(("{", "[")):
        return Typed(calls=_calls_of_json(text))
    if word not in tools:
        raise TypingError(f"there is no tool {word!r}{did_you_mean(word, tools)}; finish with: {_ANSWER} YOUR ANSWER")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise TypingError(f"a quotation mark is missing ({error})") from error
    return Typed(calls=(ToolCall(name=word, arguments=_arguments(words, tools[word], next_line)),))


def _arguments(words: Sequence[str], schema: Mapping[str, Any], next_line: Callable[[], str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise TypingError(f"{word!r} is not name=value: write {name}=…, or quote a value with spaces: message='…'")
        arguments[name] = _block(next_line) if value == _BLOCK else typed_value(schema, name, value)
    return arguments


def _block(next_line: Callable[[], str]) -> str:
    lines: list[str] = []
    while (line := next_line()) != _END_OF_BLOCK:
        lines.append(line)
    return "\n".join(lines)


def _calls_of_json(text: str) -> tuple[ToolCall, ...]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TypingError(f"the line is not valid JSON: {error}") from error
    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
    return tuple(_call_of(entry) for entry in entries)


def _call_of(entry: Any) -> ToolCall:
    from mcprl.records import ToolCall

    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypingError('write a call as {"name": "…", "arguments": {…}}')
    return ToolCall(name=name, arguments=cast("dict[str, Any]", arguments))


def command(
    task: Annotated[str, typer.Argument(help="Id of the task; default: the first one.")] = "",
    recipe: Annotated[
        Path | None,
        typer.Option(help="Recipe with the tasks, servers and rewards; default: mcprl's offline market."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Attempt a task yourself: see what the model sees, type calls, see the results and the reward."""
    from mcprl.cli.options import choose_task
    from mcprl.config import EpisodesConfig, RewardsConfig, ServersConfig, TasksConfig
    from mcprl.episodes import Environment
    from mcprl.episodes.environment import require_users
    from mcprl.errors import BadValueError
    from mcprl.recipe import load_recipe
    from mcprl.tasks import load_preamble

    if recipe is None:
        if overrides:
            raise BadValueError(
                "--set changes settings of a recipe, but no recipe is given", fix="name the recipe with --recipe"
            )
        tasks = TasksConfig.model_validate({"train": "mcprl:market/train.jsonl"})
        servers = ServersConfig.model_validate({"file": "mcprl:market/servers.json"})
        episodes, rewards = EpisodesConfig(), RewardsConfig()
    else:
        config = load_recipe(recipe, overrides or [])
        tasks, servers, episodes, rewards = config.tasks, config.servers, config.episodes, config.rewards
    with suppress(ImportError):  # not available in every Python
        import_module("readline")  # makes `input` support line editing and history
    chosen = choose_task(tasks.train, task)
    require_users([chosen], tasks)
    preamble = load_preamble(tasks.preamble)
    max_turns = episodes.turn_limit(chosen)
    with _open_lease(chosen, servers, rewards, tasks.user) as (portal, access, tools, functions):
        if functions is not None:
            rewards = functions.leave_out_groups(rewards)
        environment = Environment(
            chosen, access, preamble=preamble, max_turns=max_turns, rewards=rewards, functions=functions
        )
        game = _Game(chosen, tools, environment, portal)
        game.play(max_turns)
        game.print_reward(rewards)


@contextmanager
def _open_lease(
    task: Task, servers: ServersConfig, rewards: RewardsConfig, user: UserConfig | None
) -> Generator[tuple[BlockingPortal, ToolAccess, tuple[Tool, ...], RewardFunctions | None]]:
    """Lease the task's tools and open the reward functions on an event loop in another thread.

    The calling thread waits for input.
    """
    from anyio.from_thread import start_blocking_portal

    from mcprl.episodes import require_tools, require_worlds
    from mcprl.episodes.loop import lease_for
    from mcprl.episodes.reward_functions import code_of, open_functions
    from mcprl.tools import open_toolbox

    with ExitStack() as stack:
        logs = stack.enter_context(temporary_logs())
        portal = stack.enter_context(start_blocking_portal())
        with Console(stderr=True).status("starting the tool servers"):
            opening = open_toolbox(servers, log_dir=logs)
            toolbox = stack.enter_context(portal.wrap_async_context_manager(opening))
            require_tools([task], toolbox.catalog)
            require_worlds([task], toolbox)
            code = code_of(rewards, [task])
            opening = open_functions(rewards, toolbox.catalog, logs=logs, code=code, user=user)
            functions = stack.enter_context(portal.wrap_async_context_manager(opening))
            leasing = lease_for(task, toolbox, lives_s=_LIVES_S, rewards=rewards)
            access = stack.enter_context(portal.wrap_async_context_manager(leasing))
            tools = [toolbox.catalog[face.name] for face in access.tools]
        yield portal, access, tuple(sorted(tools, key=lambda tool: tool.server)), functions


class _Game:
    """One task played by one person. Text from tools and tasks is never interpreted as formatting."""

    def __init__(self, task: Task, tools: tuple[Tool, ...], environment: Environment, portal: BlockingPortal) -> None:
        self._task = task
        self._all_tools = tools
        self._environment = environment
        self._portal = portal
        self._console = Console(highlight=False)

    @property
    def _tools(self) -> dict[str, Tool]:
        """The tools that the task offers now. A follow-up message may add more."""
        offered = {spec["name"] for spec in self._environment.tool_specs}
        return {tool.name: tool for tool in self._all_tools if tool.name in offered}

    def play(self, max_turns: int) -> None:
        """Ask for actions until the episode stops or the person quits."""
        self._print_task(max_turns)
        while (typed := self._next_action(max_turns)) is not None:
            result = self._portal.call(self._environment.step, _action(typed))
            for seen in result.observations:
                style = "green" if seen.worked else "red"
                self._say(f"{seen.server or 'mcprl'}, {1000 * seen.latency_s:.0f} ms", seen.text, style)
            reward = f"reward for this turn {result.reward:+.3f}, so far {self._environment.reward:+.3f}"
            self._console.print(Text(reward, style="dim"))
            for message in result.follow_up:
                self._say(message["role"], message["content"], "bold")
            if result.stop is not None:
                stop = result.stop.value.replace("_", " ")
                self._console.print(Text(f"the episode is over: {stop}", style="bold"))
                return

    def print_reward(self, rewards: RewardsConfig) -> None:
        """Print each part of the reward: its value, its weight, and the product."""
        from mcprl.episodes import succeeded
        from mcprl.episodes.rewards import PENALTIES

        parts = self._environment.parts
        table = plain_table("part", right=("value", "weight", "reward"))
        gained = [name for name in parts if name not in PENALTIES]
        total = sum(map(rewards.weight_of, gained))
        for name in gained:
            share = rewards.weight_of(name) / total
            table.add_row(name, f"{parts[name]:.3f}", f"{share:.3f}", f"{share * parts[name]:+.3f}")
        for name in PENALTIES:
            cost = 0.0 - rewards.penalty * parts[name]
            table.add_row(name, f"{parts[name]:g}", f"{-rewards.penalty:.3f}", f"{cost:+.3f}")
        table.add_row("total", "", "", f"{self._environment.reward:+.3f}", style="bold")
        self._console.print(table)
        solved = succeeded(parts)
        self._console.print(Text("solved" if solved else "not solved", style="bold green" if solved else "bold red"))

    def _print_task(self, max_turns: int) -> None:
        """Print the conversation before the first turn, the available tools, and the input syntax."""
        title = f"task {self._task.id}, {self._task.difficulty.value}, at most {max_turns} turns"
        self._console.print(Rule(words(title), align="left", style="dim"))
        for message in self._environment.messages:
            calls = (json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ()))
            text = "\n".join(part for part in (message["content"], *calls) if part)
            self._say(message["role"], text, "bold" if message["role"] == "user" else "")
        self._console.print()
        print_tools(self._console, self._tools.values())
        example = next(iter(self._tools.values()))
        required: Sequence[str] = example.parameters.get("required", ())
        call = " ".join([example.name, *(f"{name}=…" for name in required)])
        as_json = _as_json(example.name, dict.fromkeys(required, "…"))
        self._console.print(words(f"\n{_HOW.format(example=call, json=as_json)}", "dim"))

    def _next_action(self, max_turns: int) -> Typed | None:
        """Return the next action, or None if the person quits."""
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
                self._console.print(words(str(error), "yellow"))

    def _is_question(self, typed: list[str]) -> bool:
        """If the line asks for information, print the information and return True."""
        match typed:
            case ["tools"]:
                print_tools(self._console, self._tools.values())
            case ["schema", name] if name in self._tools:
                (spec,) = (spec for spec in self._environment.tool_specs if spec["name"] == name)
                self._console.print(words(json.dumps(spec, indent=2, ensure_ascii=False)))
            case ["solution"] if self._task.solution is not None:
                for solution in self._task.solutions:
                    calls = [_as_json(call.name, call.arguments) for call in solution.calls]
                    self._console.print(words("\n".join([*calls, f"answer {solution.answer}"]), "yellow"))
            case ["solution"]:
                self._console.print(Text("the task file contains no solution for this task", "yellow"))
            case _:
                return False
        return True

    def _say(self, who: str, text: str, style: str) -> None:
        self._console.print(Text.assemble((f"{printable(who)}: ", "dim"), (printable(text), style)))


def _as_json(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def _action(typed: Typed) -> Action:
    from mcprl.episodes import Action
    from mcprl.records import FinishReason

    said = typed.answer or ""
    # Nothing was sampled, so there is nothing to learn from these turns.
    return Action(text=said, prose=said, calls=typed.calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)
