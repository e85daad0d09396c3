"""An episode as a conversation in the terminal."""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

from mcprl.monitoring.printable import printable
from mcprl.records import Task, Trajectory

__all__ = ["print_transcript"]

_LABEL_WIDTH = 18
_MIN_WIDTH = 20


def print_transcript(
    task: Task, trajectory: Trajectory, console: Console | None = None, *, timings: bool = True
) -> None:
    """Print the task, then each turn with its calls and observations, then what it was worth and why.

    Without timings, the same episode prints the same text.
    """
    console = console or Console(highlight=False)
    title = Text(printable(f"task {task.id}, episode {trajectory.member}"))
    console.rule(title, align="left", style="dim")
    for message in task.prompt:
        _say(console, message["role"], message["content"], "bold")
    for turn in trajectory.turns:
        _say(console, "model", turn.text.strip(), "cyan")
        for seen in turn.observations:
            took = f", {1000 * seen.latency_s:.0f} ms" if timings else ""
            style = "green" if seen.worked else "red"
            _say(console, f"{seen.server or 'mcprl'}{took}", seen.text, style)
    parts = {name: round(value, 3) for name, value in trajectory.reward_parts.items()}
    console.print(
        Text.assemble(
            ("reward ", "dim"),
            (f"{trajectory.reward:+.3f}", "bold"),
            (f"  {trajectory.stop.value}  {json.dumps(parts)}", "dim"),
            (f"  {sum(trajectory.sampled)} sampled of {len(trajectory.token_ids)} tokens", "dim"),
        )
    )
    console.print()


def _say(console: Console, who: str, text: str, style: str) -> None:
    # Text objects, never markup: what models and tools write must not be read as formatting.
    body = Text(printable(text), style=style)
    label = printable(who)
    for line in body.wrap(console, max(_MIN_WIDTH, console.width - _LABEL_WIDTH - 3)) or [body]:
        console.print(Text.assemble((f"{label:>{_LABEL_WIDTH}} │ ", "dim"), line))
        label = ""
