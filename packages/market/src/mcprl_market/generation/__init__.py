"""Tasks about the offline world, each with a checkable answer and a working solution.

Drafts are drawn from the families in turn, and each gets a wording and the offered tools. Easy tasks need one call,
medium ones two or three, hard ones four to six.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from mcprl.errors import BadValueError
from mcprl.records import Difficulty, Task
from mcprl_market.generation.drafts import Draft, Family, Material, split_material
from mcprl_market.generation.families import FAMILIES
from mcprl_market.world import open_market, open_workspace
from mcprl_market.world.draws import Draws

__all__ = ["FAMILIES", "SHARES", "generate"]

TOOLS: tuple[str, ...] = tuple(
    tool
    for tools in (
        "fmp_get_quote fmp_get_company_profile fmp_get_income_statement fmp_get_market_gainers fmp_get_market_losers",
        "fmp_search_ticker fmp_get_stock_news fmp_get_change_percent fmp_get_previous_close",
        "polygon_get_aggs polygon_get_news polygon_get_ticker_details polygon_get_previous_close",
        "polygon_get_market_status tavily_search tavily_qna_search",
        "list_slack_channels send_slack_message get_slack_channel_history",
        "execute_python process_mcp_data analyze_financial_data create_data_pipeline get_execution_context",
        "store_execution_result",
    )
    for tool in tools.split()
)
"""Every tool of the five servers."""

# Web pages and articles contain all kinds of facts: prices, people, results.
_PRESS = "tavily_search tavily_qna_search fmp_get_stock_news polygon_get_news"

SUBSTITUTES: tuple[frozenset[str], ...] = tuple(
    frozenset(tools.split())
    for tools in (
        "fmp_get_quote fmp_get_change_percent fmp_get_previous_close fmp_get_market_gainers fmp_get_market_losers "
        f"polygon_get_aggs polygon_get_previous_close {_PRESS}",
        f"fmp_get_company_profile polygon_get_ticker_details fmp_search_ticker fmp_get_quote {_PRESS}",
        _PRESS,
        f"fmp_get_income_statement {_PRESS}",
        "execute_python process_mcp_data analyze_financial_data create_data_pipeline",
    )
)
"""Tools that return the same facts or compute the same result. If a task needs a tool of a set, the others are not
offered, because a policy that used them would be penalized for correct calls.
"""


def offer(needed: Iterable[str], distractors: int, draws: Draws) -> tuple[str, ...]:
    """Return the needed tools and `distractors` other tools, in random order."""
    wanted = list(dict.fromkeys(needed))
    replaced = {tool for kind in SUBSTITUTES if kind.intersection(wanted) for tool in kind}
    others: Sequence[str] = [tool for tool in TOOLS if tool not in wanted and tool not in replaced]
    return tuple(draws.shuffled(wanted + draws.some(others, distractors)))


SHARES: dict[Difficulty, float] = {Difficulty.EASY: 0.35, Difficulty.MEDIUM: 0.35, Difficulty.HARD: 0.3}
"""The fraction of tasks of each difficulty, in a split with all difficulties."""

# A family counts as exhausted after this many draws in a row without a new draft.
_MAX_FRUITLESS = 100


def generate(
    world: int,
    *,
    train: int = 400,
    validation: int = 100,
    difficulties: Collection[Difficulty] = tuple(SHARES),
    families: Collection[str] | None = None,
    distractors: int = 3,
    seed: int = 0,
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Generate tasks about the offline world of seed `world`. Returns the training tasks and the validation tasks.

    The same arguments give the same tasks. The `difficulties` keep their proportions in SHARES. Only tasks of these
    `families` are generated (None: all families). No question is in both splits, and validation has wordings that
    training never sees. Raises BadValueError if the world has too few questions.
    """
    chosen = _choose(families, difficulties)
    shares = split_material(open_market(world), open_workspace(world), seed)
    splits: list[tuple[Task, ...]] = []
    taken: set[tuple[str, ...]] = set()
    for split, material, count in zip(("train", "validation"), shares, (train, validation), strict=True):
        tasks: list[Task] = []
        for difficulty, number in _numbers(count, difficulties).items():
            of_level = [family for family in chosen if family.difficulty is difficulty]
            for family, serial, draft in _deal_drafts(split, of_level, number, material, seed=seed, taken=taken):
                draws = Draws(seed, "tasks", split, family.name, serial)
                tasks.append(_make_task(split, family, serial, draft, material, draws=draws, distractors=distractors))
        splits.append(tuple(Draws(seed, "tasks", split).shuffled(tasks)))
    return splits[0], splits[1]


def _choose(names: Collection[str] | None, difficulties: Collection[Difficulty]) -> tuple[Family, ...]:
    """Return the families to draw from. Rejects a name that no family of these difficulties has."""
    possible = {family.name: family for family in FAMILIES if family.difficulty in difficulties}
    unknown = sorted(set(names or ()) - set(possible))
    if unknown:
        raise BadValueError(
            f"no {' or '.join(difficulties)} task family is named {unknown[0]}",
            fix=f"choose from {', '.join(sorted(possible))}",
        )
    chosen = tuple(family for name, family in possible.items() if names is None or name in names)
    without = [level for level in difficulties if all(family.difficulty is not level for family in chosen)]
    if without:
        raise BadValueError(
            f"none of the chosen families has {without[0]} tasks",
            fix="choose a difficulty that the chosen families have",
        )
    return chosen


def _numbers(count: int, difficulties: Collection[Difficulty]) -> dict[Difficulty, int]:
    """Return the number of tasks per difficulty. The hardest gets the remainder from rounding."""
    levels = [level for level in SHARES if level in difficulties]
    whole = sum(SHARES[level] for level in levels)
    numbers = {level: round(count * SHARES[level] / whole) for level in levels[:-1]}
    return numbers | {levels[-1]: count - sum(numbers.values())}


def _deal_drafts(
    split: str, families: Sequence[Family], number: int, material: Material, *, seed: int, taken: set[tuple[str, ...]]
) -> Iterator[tuple[Family, int, Draft]]:
    """Yield `number` drafts, taking the families in turn. An exhausted family is skipped."""
    streams = deque(
        (family, enumerate(_drafts(family, material.drawing(Draws(seed, "tasks", split, family.name)), taken)))
        for family in families
    )
    made = 0
    while made < number:
        if not streams:
            raise BadValueError(
                f"the world has only {made} {families[0].difficulty} tasks for {split}, but {number} were requested",
                fix="request fewer tasks",
            )
        family, stream = streams.popleft()
        drawn = next(stream, None)
        if drawn is not None:
            made += 1
            streams.append((family, stream))
            yield family, *drawn


def _drafts(family: Family, material: Material, taken: set[tuple[str, ...]]) -> Iterator[Draft]:
    """Yield every draft that a family finds, without duplicates."""
    fruitless = 0
    while fruitless < _MAX_FRUITLESS:
        draft = family.draw(material)
        if draft is None or not draft.is_clear or (family.name, *draft.entities) in taken:
            fruitless += 1
            continue
        fruitless = 0
        taken.add((family.name, *draft.entities))
        yield draft


def _make_task(
    split: str, family: Family, serial: int, draft: Draft, material: Material, *, draws: Draws, distractors: int
) -> Task:
    # In validation, every second task has a wording that training never sees, so both kinds can be compared.
    unseen = split == "validation" and serial % 2 == 0
    wording = draws.choice(family.held_out if unseen else family.wordings)
    return Task(
        id=f"{split}-{family.name}-{serial:03d}",
        prompt=({"role": "user", "content": wording.format(**draft.slots)},),
        goal=draft.goal,
        tools=offer([*(step.tool for step in draft.steps), *draft.also], distractors, draws),
        difficulty=family.difficulty,
        world=material.market.name,
        solution=draft.solution,
    )
