"""Which tools a task offers besides those it needs: others of the same servers that cannot solve it by another road."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcprl.world.draws import Draws

__all__ = ["SUBSTITUTES", "TOOLS", "offer"]

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
