"""What `mcprl play` shows: the task, the tools with their schemas, what calls gave back, and what it all was worth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mcprl.config import RewardsConfig
from mcprl.episodes.environment import StepResult
from mcprl.episodes.rewards import PARTS, PENALTIES
from mcprl.monitoring.printable import printable
from mcprl.monitoring.tool_tables import ToolList
from mcprl.records import Message, Task
from mcprl.tools import Tool

__all__ = ["PlayConsole"]

_HOW = (
    "Type a call:   {example}\n"
    "or as JSON:    {json}\n"
    "several lines: TOOL ARGUMENT=<<            (then the lines, and a single . to end)\n"
    "finish with:   answer YOUR ANSWER          (also: tools, schema TOOL, solution, quit)"
)


class PlayConsole:
    """Prints to the terminal. What tools and tasks wrote is never read as formatting."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def task(self, task: Task, messages: Sequence[Message], tools: Sequence[Tool], max_turns: int) -> None:
        """The conversation before the first turn, the tools on offer, and how to type."""
        title = f"task {task.id}, {task.difficulty.value}, {max_turns} turns at most"
        self.console.print(Rule(Text(printable(title)), align="left", style="dim"))
        for message in messages:
            self._say(message["role"], _written(message), "bold" if message["role"] == "user" else "")
        self.console.print()
        self.tools(tools)
        self.console.print()
        example = tools[0]
        required: Sequence[str] = example.parameters.get("required", ())
        arguments = dict.fromkeys(required, "…")
        call = " ".join([example.name, *(f"{name}=…" for name in required)])
        as_json = json.dumps({"name": example.name, "arguments": arguments}, ensure_ascii=False)
        self.console.print(Text(printable(_HOW.format(example=call, json=as_json)), style="dim"))

    def step(self, result: StepResult, reward: float) -> None:
        """What a turn gave back, and the reward that it moved."""
        for seen in result.observations:
            style = "green" if seen.worked else "red"
            self._say(f"{seen.server or 'mcprl'}, {1000 * seen.latency_s:.0f} ms", seen.text, style)
        self.console.print(Text(f"reward of this turn {result.reward:+.3f}, so far {reward:+.3f}", style="dim"))

    def breakdown(self, parts: Mapping[str, float], weights: RewardsConfig, reward: float, *, solved: bool) -> None:
        """Each part of the reward: what was reached, what it counts, what it brought."""
        table = Table("part", "reached", "weight", "brought", box=None, header_style="bold", pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        total = sum(getattr(weights, name) for name in PARTS if name in parts)
        for name in (name for name in PARTS if name in parts):
            share = getattr(weights, name) / total
            table.add_row(name, f"{parts[name]:.3f}", f"{share:.3f}", f"{share * parts[name]:+.3f}")
        for name in PENALTIES:
            weight = getattr(weights, name)
            table.add_row(name, f"{parts[name]:g}", f"{-weight:.3f}", f"{0.0 - weight * parts[name]:+.3f}")
        table.add_section()
        table.add_row("reward", "", "", f"{reward:+.3f}", style="bold")
        self.console.print(table)
        verdict = "solved" if solved else "not solved"
        self.console.print(Text(verdict, style="bold green" if solved else "bold red"))

    def note(self, text: str, style: str = "yellow") -> None:
        self.console.print(Text(printable(text), style=style))

    def tools(self, tools: Sequence[Tool]) -> None:
        self.console.print(ToolList(tools))

    def solution(self, task: Task) -> None:
        """A known way to solve the task, where it has one."""
        if task.solution is None:
            self.note("this task comes without a solution")
            return
        for call in task.solution.calls:
            self.note(json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False))
        self.note(f"answer {task.solution.answer}")

    def schema(self, spec: Mapping[str, Any]) -> None:
        """All that the model is told about a tool."""
        self.console.print(Text(printable(json.dumps(spec, indent=2, ensure_ascii=False))))

    def _say(self, who: str, text: str, style: str) -> None:
        self.console.print(Text.assemble((f"{printable(who)}: ", "dim"), (printable(text), style)))


def _written(message: Message) -> str:
    """The text of a message, and its calls as one would type them."""
    calls = (json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ()))
    return "\n".join(part for part in (message["content"], *calls) if part)
