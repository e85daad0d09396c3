"""The whole synthesis, from servers to verified tasks, and the files that it writes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from mcprl.errors import NoReachableToolError
from mcprl.seeds import derive_seed
from mcprl.tasks import write_tasks
from mcprl_synthesis.compose import Composer, Effect, Plan
from mcprl_synthesis.explore import Exploration, explore, unreached
from mcprl_synthesis.page import graph_svg, page
from mcprl_synthesis.reading import words
from mcprl_synthesis.verify import Draft, Verifier, field_names
from mcprl_synthesis.world import World
from mcprl_synthesis.writer import Writer, reword
from mcprl_synthesis.writes import draw_write, find_effects

__all__ = ["Synthesis", "call_limit", "synthesize"]

_SHARES: Final = {"single": 0.2, "chain": 0.4, "linked join": 0.12, "join": 0.1, "compare": 0.1, "write": 0.08}
_ROUNDS = 30
_DRAWS_PER_TASK = 20
_SAMPLES = 10
_SHOWN = 160


def entities_for(count: int) -> int:
    """Return how many values of each argument to explore for this number of tasks."""
    return min(48, max(10, count // 8))


def call_limit(count: int) -> int:
    """Return how often each tool may be called while exploring and composing."""
    return 60 + 12 * entities_for(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """The outcome of a synthesis: the verified tasks, and the exploration."""

    world: World
    found: Exploration
    verifier: Verifier
    drafts: tuple[Draft, ...]

    def write(self, out: Path) -> dict[str, Any]:
        """Write the task files and the report, and return the report's figures."""
        for held, name in ((False, "train.jsonl"), (True, "validation.jsonl")):
            if tasks := [draft.task for draft in self.drafts if draft.held == held]:
                write_tasks(tasks, out / name)
        figures = self.figures()
        (out / "report.json").write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        text = "\n".join(self.report(figures)) + "\n"
        (out / "report.md").write_text(text, encoding="utf-8")
        (out / "report.html").write_text(page(text, self._graph()), encoding="utf-8")
        return figures

    def figures(self) -> dict[str, Any]:
        drafts, number = self.drafts, max(1, len(self.drafts))
        linked = sum(draft.plan.is_linked for draft in drafts)
        apart = sum(len(draft.task.metadata["servers"]) > 1 for draft in drafts)
        return {
            "tasks": len(drafts),
            "train": sum(not draft.held for draft in drafts),
            "validation": sum(draft.held for draft in drafts),
            "linked_share": round(linked / number, 3),
            "several_servers_share": round(apart / number, 3),
            "writes_share": round(sum(draft.plan.op == "write" for draft in drafts) / number, 3),
            "by_calls": dict(sorted(Counter(str(len(draft.outcome.calls)) for draft in drafts).items())),
            "by_shape": dict(sorted(Counter(draft.plan.shape for draft in drafts).items())),
            "families": len({draft.plan.family for draft in drafts}),
            "rejected": dict(self.verifier.rejected.most_common()),
            "wordings": dict(self.verifier.wordings.most_common()),
            "volatile": sorted(self.verifier.volatile),
            "clock_a_day_ahead": self.world.ahead,
            "links": sum(map(len, self.found.links.values())),
            "tools_reached": sum(bool(known) for known in self.found.known.values()),
            "unreached": unreached(self.world, self.found),
        }

    def report(self, figures: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of report.md."""
        yield f"# {figures['tasks']} synthesized tasks\n"
        yield f"{figures['train']} for training, {figures['validation']} for validation; {figures['families']} kinds."
        yield f"{figures['linked_share']:.0%} pass a value from one call to another,"
        yield f"{figures['several_servers_share']:.0%} use several servers, {figures['writes_share']:.0%} write.\n"
        yield from _table("tasks by shape", figures["by_shape"])
        yield from _table("tasks by number of calls", figures["by_calls"])
        yield from _table("reason for rejection", figures["rejected"])
        if figures["wordings"]:
            yield from _table("outcome of rewording", figures["wordings"])
        yield from self._tools()
        yield "## Links\n\nAn arrow points to a tool that accepts values of the named field, but not similar junk.\n"
        yield "```mermaid\ngraph LR"
        yield from (f'  {one} -->|"{label}"| {two}' for one, two, label in self._links())
        yield "```\n"
        ahead = ", ".join(figures["clock_a_day_ahead"]) or "none"
        yield f"Servers on which the solutions were also played with the clock a day ahead: {ahead}.\n"
        if figures["volatile"]:
            yield "Fields that change over time, so no task asks for them: " + ", ".join(figures["volatile"]) + ".\n"
        if figures["unreached"]:
            yield "## Tools that need hints\n\nAdd values to this file, and pass it with `--hints`:\n\n```yaml\nvalues:"
            for tool, names in figures["unreached"].items():
                yield from (f"  {tool}.{name}: []" for name in names)
            yield "```\n"
        yield "## Samples\n"
        for draft in self.drafts[:: max(1, len(self.drafts) // _SAMPLES)][:_SAMPLES]:
            yield f"**{draft.task.id}** {draft.task.prompt[0]['content']}\n"
            for call in draft.outcome.calls:
                yield f"- `{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})`"
            yield f"- answer: `{draft.outcome.answer}`\n"

    def _tools(self) -> Iterator[str]:
        used = Counter(call.name for draft in self.drafts for call in draft.outcome.calls)
        yield "## Tools\n\n| tool | server | | calls to explore and verify | calls that worked | calls in solutions |"
        yield "|---|---|---|---|---|---|"
        for tool in self.world.catalog:
            state = "writes" if self.world.may_call(tool) else "not called: not read-only"
            stopped = shorten(self.world.noted("stopped", tool.name, None), _SHOWN).replace("|", "/")
            state = stopped or ("read-only" if tool.read_only else state)
            known = len(self.found.known.get(tool.name, ()))
            asked = self.world.cost.asked[tool.name]
            yield f"| `{tool.name}` | {tool.server} | {state} | {asked} | {known} | {used[tool.name]} |"
        yield ""

    def _links(self) -> Iterator[tuple[str, str, str]]:
        """Yield the links between tools, each once, as (tool, tool, what is passed)."""
        links: dict[tuple[str, str, str], None] = {}
        for (tool, name), sources in self.found.links.items():
            for source, kind in sources:
                if source and kind[0] != "word":
                    links.setdefault((source, tool, f"{words(' '.join(kind))} as {name}"))
        yield from links

    def _graph(self) -> str:
        tools: dict[str, list[str]] = {}
        for tool in self.world.catalog:
            if self.found.known.get(tool.name):
                tools.setdefault(tool.server, []).append(tool.name)
        edges: dict[tuple[str, str], list[str]] = {}
        for one, two, label in self._links():
            edges.setdefault((one, two), []).append(label)
        return graph_svg(tools, {pair: labels for pair, labels in edges.items() if pair[0] != pair[1]})


def _table(title: str, figures: Mapping[str, int]) -> Iterator[str]:
    yield f"| {title} | |\n|---|---|"
    yield from (f"| {name.replace('|', '/')} | {number} |" for name, number in figures.items())
    yield ""


async def synthesize(
    world: World,
    *,
    count: int,
    seed: int,
    hints: Mapping[str, Sequence[Any]],
    distractors: int = 3,
    writer: Writer | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Synthesis:
    """Explore, compose and verify until there are `count` tasks, or until nothing new is found."""
    world.limit_per_tool = call_limit(count)
    progress("exploring")
    propose = None if writer is None else writer.propose
    found = await explore(world, hints, seed=seed, entities=entities_for(count), propose=propose)
    if not any(found.known.values()):
        raise _no_tool(world, found)
    effects = await find_effects(world, found, seed)
    composer = Composer(found, world.catalog, seed)
    verifier = Verifier(world, composer, seed, distractors)
    await _Filler(verifier, effects, count, seed).fill(progress)
    drafts = [draft for draft in verifier.drafts if not set(field_names(draft.plan)) & verifier.volatile]
    if not verifier.rejected and not drafts:
        reached = ", ".join(tool for tool, known in found.known.items() if known)
        raise NoReachableToolError(
            f"no question can be made from the results of {reached}",
            fix="pass more values with --hints, five for each argument; results must be JSON, `Label: value` lines or "
            "simple lists",
        )
    if not drafts:
        raise NoReachableToolError(
            f"of {verifier.rejected.total()} candidate tasks, none could be verified ("
            + ", ".join(f"{reason}: {number}" for reason, number in verifier.rejected.most_common(3))
            + ")",
            fix="use --hints to give values for more arguments; each argument needs several valid ones",
        )
    drafts = _share(drafts, count)
    if writer is not None:
        progress("rewording")
        drafts = await reword(drafts, verifier, writer)
    return Synthesis(world=world, found=found, verifier=verifier, drafts=tuple(drafts))


def _no_tool(world: World, found: Exploration) -> NoReachableToolError:
    lacking = "; ".join(
        f"{tool} needs {', '.join(names)}" + (f" ({why})" if (why := _refusal(world, tool)) else "")
        for tool, names in unreached(world, found).items()
    )
    if not lacking:
        names = ", ".join(tool.name for tool in world.catalog)
        return NoReachableToolError(
            f"none of the tools is declared read-only: {names}",
            fix="declare read-only tools in a YAML file for --hints: `settings: {SERVER: {read_only: [TOOL, …]}}`",
        )
    return NoReachableToolError(
        f"no tool can be called with the values known so far; missing: {lacking}",
        fix="write values into a YAML file, `values: {ARGUMENT: [VALUE, …]}`, and pass it with --hints",
    )


def _refusal(world: World, tool: str) -> str:
    """Return why a tool is no longer called, or else its response to a call that failed."""
    answer = world.cost.refused.get(tool)
    return shorten(world.noted("stopped", tool, None) or (f"it answered: {answer}" if answer else ""), _SHOWN)


def _share(drafts: Sequence[Draft], count: int) -> tuple[Draft, ...]:
    """Return `count` tasks, in their order, so that each shape keeps its share."""
    seen: Counter[str] = Counter()
    ranks: list[tuple[float, int]] = []
    for place, draft in enumerate(drafts):
        shape = next(shape for shape in _SHARES if draft.plan.shape.startswith(shape))
        ranks.append((seen[shape] / _SHARES[shape], place))
        seen[shape] += 1
    return tuple(drafts[place] for place in sorted(place for _, place in sorted(ranks)[:count]))


@dataclass(slots=True)
class _Filler:
    """Draws and verifies plans, by shape, until there are enough. Other shapes replace a shape that yields nothing."""

    verifier: Verifier
    effects: Sequence[Effect]
    count: int
    seed: int
    drawn: set[str] = field(default_factory=set[str])
    families: Counter[str] = field(default_factory=Counter[str])

    async def fill(self, progress: Callable[[str], None]) -> None:
        verifier = self.verifier
        shares = {shape: share for shape, share in _SHARES.items() if shape != "write" or self.effects}
        for number in range(_ROUNDS):
            batch: list[Plan] = []
            missing = self.count - len(verifier.drafts)
            if missing <= 0 or not shares:
                return
            for shape, share in list(shares.items()):
                made = sum(draft.plan.shape.split(" ")[:1] == shape.split(" ")[:1] for draft in verifier.drafts)
                quota = max(1, round(self.count * share / sum(_SHARES.values())) - made)
                plans = self._draw(shape, min(quota if number < _ROUNDS // 2 else missing, missing), number)
                if not plans:
                    del shares[shape]
                batch += plans
            kept = await verifier.admit(batch)
            self.families.update(draft.plan.family for draft in kept)
            progress(f"{len(verifier.drafts)} of {self.count} tasks, {verifier.rejected.total()} candidates rejected")

    def _draw(self, shape: str, wanted: int, number: int) -> list[Plan]:
        """Draw new plans of a shape. Kinds of questions that already have their share of tasks are skipped."""
        stream = random.Random(derive_seed(self.seed, "draw", shape, number))
        plans: list[Plan] = []
        here: Counter[str] = Counter()
        composer = self.verifier.composer
        for _ in range(_DRAWS_PER_TASK * (wanted + 1)):
            if len(plans) >= wanted:
                break
            plan = draw_write(composer, self.effects, stream) if shape == "write" else composer.draw(shape, stream)
            if plan is None or repr(plan) in self.drawn:
                continue
            if self.families[plan.family] + here[plan.family] >= max(4, self.count // 8):
                continue
            self.drawn.add(repr(plan))
            here[plan.family] += 1
            plans.append(plan)
        return plans
