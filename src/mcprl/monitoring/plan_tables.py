"""What `mcprl plan` shows: a step and the run, the parts and how busy they are, growth, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mcprl.monitoring.printable import printable
from mcprl.planning import Growth, Plan

__all__ = ["PlanTables"]

_GAP = (0, 2, 0, 0)
_COUNTS = {
    "episodes": "episodes",
    "turns": "turns",
    "calls": "calls of tools",
    "prompt_tokens": "prompt tokens, new",
    "read_tokens": "prompt tokens, of all turns",
    "sampled_tokens": "sampled tokens",
    "learned_tokens": "learned tokens",
}
_BYTES = {
    "trajectory_bytes": "trajectories",
    "relayed_bytes": "turns relayed by the driver",
    "weights_bytes": "weights published",
}


class PlanTables:
    """A plan for a person. Print with `crop=False`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._blocks()

    def _blocks(self) -> Iterator[RenderableType]:
        plan = self._plan
        yield _words(plan.name, "bold") + Text(f"  {self._hardware()}")
        yield Text()
        yield self._amounts()
        yield Text()
        yield self._parts()
        worst = plan.step.bottleneck
        yield Text()
        yield Text("Bottleneck: ", style="bold") + _words(f"{worst.name}. What moves it: {worst.setting}.")
        yield Text()
        yield self._growth()
        yield Text()
        yield self._figures()
        for warning in plan.warnings:
            yield _words(f"Caution: {warning}.", "yellow")
        yield Text(f"Constants of driver and workers: {plan.machine}. A model, not a promise: see docs/scaling.md.")

    def _hardware(self) -> str:
        cluster, model = self._plan.cluster, self._plan.model
        gpus = f"{cluster.gpus} GPUs" if cluster.gpus else "no GPU"
        workers = "no workers" if cluster.workers is None else f"{cluster.workers} workers"
        size = "size not known"
        if model.parameters is not None:
            size = f"{model.parameters / 1e6:,.0f}M parameters ({model.source})"
        return f"engine {self._plan.engine}, {gpus}, {workers}, {size}"

    def _amounts(self) -> Table:
        plan, step = self._plan, self._plan.step
        table = _table("", right=("a step", f"{plan.workload.steps:,} steps"))
        table.add_row("time", _duration(step.step_s), _duration(plan.run_s))
        parts = f"{_duration(step.collect_s)} + {_duration(step.update_s)}"
        table.add_row("  collected + learned from", parts, "")
        for name, title in _COUNTS.items():
            table.add_row(title, *(f"{getattr(counts, name):,.0f}" for counts in (step.counts, plan.run)))
        for name, title in _BYTES.items():
            table.add_row(title, *(_bytes(getattr(counts, name)) for counts in (step.counts, plan.run)))
        table.add_row("money for tools", *(f"{counts.usd:,.2f} USD" for counts in (step.counts, plan.run)))
        table.add_row("memory of the driver", _bytes(step.driver_bytes), "")
        if step.worker_bytes is not None:
            table.add_row("memory of all workers", _bytes(step.worker_bytes), "")
        return table

    def _parts(self) -> Table:
        plan = self._plan
        table = _table("part", right=("units", "carry episodes/s", "busy a step", "of it"))
        table.add_column("what moves it", overflow="fold")
        for load in sorted(plan.step.loads, key=lambda load: -load.busy_s):
            part = load.part
            table.add_row(
                _words(part.name),
                f"{part.units:,.0f}",
                "–" if part.carries is None else f"{part.carries:,.3g}",
                _duration(load.busy_s),
                f"{load.share:.0%}",
                _words(part.setting),
                style="bold" if part == plan.step.bottleneck else "",
            )
        return table

    def _growth(self) -> Table:
        table = _table("episodes", right=("a step",))
        for title in ("waits for", "what moves it", "a step as short as now takes"):
            table.add_column(title, overflow="fold")
        for growth in self._plan.growth:
            table.add_row(
                f"{growth.factor:,}×",
                _duration(growth.step_s),
                _words(growth.bottleneck),
                _words(growth.setting),
                _words(_needs(growth)),
            )
        return table

    def _figures(self) -> Table:
        table = _table("figure", right=("value",))
        table.add_column("where it comes from", overflow="fold")
        for name, known in self._plan.known:
            table.add_row(_words(name), f"{known.value:,.4g}", _words(known.source))
        for assumed in self._plan.assumptions:
            table.add_row(_words(assumed.name), f"{assumed.value:,.4g}", _words(f"assumed: {assumed.why}"))
        return table


def _needs(growth: Growth) -> str:
    words = [f"{need.units:,} {need.part}" + ("" if need.possible else " (cannot be had)") for need in growth.needs]
    return ", ".join(words) or "nothing more"


def _table(first: str, *, right: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=_GAP)
    table.add_column(first, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _words(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _bytes(count: float | None) -> str:
    return "–" if count is None else decimal(round(count))


def _duration(seconds: float) -> str:
    """Seconds while they are few, then hours and minutes: 12.3 s, 1:02:03, 3 days, 4:05:06."""
    return f"{seconds:,.3g} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))
