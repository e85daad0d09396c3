"""The generator: families drawn in turn, a wording for each draft, and the tools on offer.

Easy tasks take one call, medium ones two or three, hard ones four to six.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mcprl.errors import BadValueError
from mcprl.records import Difficulty, Task
from mcprl_market.generation.drafts import Draft, Family, Material, split_material
from mcprl_market.generation.families import FAMILIES
from mcprl_market.world import open_market, open_workspace
from mcprl_market.world.draws import Draws

__all__ = ["SHARES", "SUBSTITUTES", "TOOLS", "generate", "offer"]


TOOLS: tuple[str, ...] = (
    "fmp_get_quote",
    "fmp_get_company_profile",
    "fmp_get_income_statement",
    "fmp_get_market_gainers",
    "fmp_get_market_losers",
    "fmp_search_ticker",
    "fmp_get_stock_news",
    "fmp_get_change_percent",
    "fmp_get_previous_close",
    "polygon_get_aggs",
    "polygon_get_news",
    "polygon_get_ticker_details",
    "polygon_get_previous_close",
    "polygon_get_market_status",
    "tavily_search",
    "tavily_qna_search",
    "list_slack_channels",
    "send_slack_message",
    "get_slack_channel_history",
    "execute_python",
    "process_mcp_data",
    "analyze_financial_data",
    "create_data_pipeline",
    "get_execution_context",
    "store_execution_result",
)
"""Every tool of the five servers."""

# Web pages and articles tell a bit of everything: prices, people, results.
_PRESS = ("tavily_search", "tavily_qna_search", "fmp_get_stock_news", "polygon_get_news")

SUBSTITUTES: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "fmp_get_quote",
            "fmp_get_change_percent",
            "fmp_get_previous_close",
            "fmp_get_market_gainers",
            "fmp_get_market_losers",
            "polygon_get_aggs",
            "polygon_get_previous_close",
            *_PRESS,
        }
    ),
    frozenset(
        {
            "fmp_get_company_profile",
            "polygon_get_ticker_details",
            "fmp_search_ticker",
            "fmp_get_quote",
            *_PRESS,
        }
    ),
    frozenset(_PRESS),
    frozenset({"fmp_get_income_statement", *_PRESS}),
    frozenset({"execute_python", "process_mcp_data", "analyze_financial_data", "create_data_pipeline"}),
)
"""Tools that tell the same facts, or compute the same. One who takes another road than the one a task checks would be
punished for being right; so where a task needs one of a set, the others of that set are not on offer."""


def offer(needed: Iterable[str], distractors: int, draws: Draws) -> tuple[str, ...]:
    """The needed tools and so many others, in a random order."""
    wanted = list(dict.fromkeys(needed))
    others: Sequence[str] = [tool for tool in TOOLS if tool not in wanted and not _replaces(tool, wanted)]
    return tuple(draws.shuffled(wanted + draws.some(others, distractors)))


def _replaces(tool: str, needed: Sequence[str]) -> bool:
    return any(tool in kind and kind.intersection(needed) for kind in SUBSTITUTES)


SHARES: dict[Difficulty, float] = {Difficulty.EASY: 0.35, Difficulty.MEDIUM: 0.35, Difficulty.HARD: 0.3}
"""How large a part of each split a difficulty makes up where all are wanted."""

# After so many draws in a row that gave nothing new, a family has nothing more to ask.
_DRAWS = 100


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
    """Tasks whose answers are true of the offline world of that seed: those to train on and those to validate on.

    The same arguments give the same tasks. `difficulties` keep their proportion to each other; of each, only tasks of
    these `families` are made (None: of all). No task of one split asks for what one of the other asks for, and
    validation has wordings that training never sees. Raises BadValueError where the world has not enough to ask.
    """
    chosen = _choose(families, difficulties)
    market, workspace = open_market(world), open_workspace(world)
    shares = split_material(market, workspace, seed)
    splits: list[tuple[Task, ...]] = []
    taken: set[tuple[str, ...]] = set()
    for split, material, count in zip(("train", "validation"), shares, (train, validation), strict=True):
        wanted = _numbers(count, difficulties)
        splits.append(_make_split(split, material, chosen, wanted, distractors=distractors, seed=seed, taken=taken))
    return splits[0], splits[1]


def _choose(names: Collection[str] | None, difficulties: Collection[Difficulty]) -> tuple[Family, ...]:
    """The families to draw from. A name that no family of the difficulties has is refused."""
    possible = {family.name: family for family in FAMILIES if family.difficulty in difficulties}
    strange = sorted(set(names or ()) - set(possible))
    if strange:
        raise BadValueError(
            f"there is no family {strange[0]} of tasks that are {' or '.join(difficulties)}",
            fix=f"choose of {', '.join(sorted(possible))}",
        )
    chosen = tuple(family for name, family in possible.items() if names is None or name in names)
    without = [level for level in difficulties if all(family.difficulty is not level for family in chosen)]
    if without:
        raise BadValueError(
            f"none of the chosen families has tasks that are {without[0]}",
            fix="ask for the difficulty of the families that you choose",
        )
    return chosen


def _numbers(count: int, difficulties: Collection[Difficulty]) -> dict[Difficulty, int]:
    """How many tasks of each difficulty; what rounding leaves over is of the hardest."""
    levels = [level for level in SHARES if level in difficulties]
    whole = sum(SHARES[level] for level in levels)
    numbers = {level: round(count * SHARES[level] / whole) for level in levels[:-1]}
    return numbers | {levels[-1]: count - sum(numbers.values())}


def _make_split(
    split: str,
    material: Material,
    chosen: Sequence[Family],
    wanted: Mapping[Difficulty, int],
    *,
    distractors: int,
    seed: int,
    taken: set[tuple[str, ...]],
) -> tuple[Task, ...]:
    tasks: list[Task] = []
    for difficulty, number in wanted.items():
        families = [family for family in chosen if family.difficulty is difficulty]
        for family, serial, draft in _deal_drafts(split, families, number, material, seed=seed, taken=taken):
            draws = Draws(seed, "tasks", split, family.name, serial)
            tasks.append(_make_task(split, family, serial, draft, material, draws=draws, distractors=distractors))
    return tuple(Draws(seed, "tasks", split).shuffled(tasks))


def _deal_drafts(
    split: str,
    families: Sequence[Family],
    number: int,
    material: Material,
    *,
    seed: int,
    taken: set[tuple[str, ...]],
) -> Iterator[tuple[Family, int, Draft]]:
    """So many drafts, the families in turn; one that has nothing more to ask leaves its turns to the others."""
    streams = deque(
        (family, enumerate(_drafts(family, material.drawing(Draws(seed, "tasks", split, family.name)), taken)))
        for family in families
    )
    made = 0
    while made < number:
        if not streams:
            raise BadValueError(
                f"the world has only {made} {families[0].difficulty} tasks for {split}; {number} are asked for",
                fix="ask for fewer tasks",
            )
        family, stream = streams.popleft()
        drawn = next(stream, None)
        if drawn is not None:
            made += 1
            streams.append((family, stream))
            yield family, *drawn


def _drafts(family: Family, material: Material, taken: set[tuple[str, ...]]) -> Iterator[Draft]:
    """All that a family finds to ask, each thing once."""
    fruitless = 0
    while fruitless < _DRAWS:
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
    # In validation every second task has a wording that training never sees: both kinds can be compared.
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
