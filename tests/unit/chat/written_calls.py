"""Turns as models write them: calls in the syntax of each family, and what SmolLM2 wrote when it was asked for some."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CALLS", "SAMPLED", "SPECS", "WRITERS", "Call", "written_turns"]

Call = tuple[str, dict[str, Any]]

# One of each tool that ships with mcprl, and some arguments that are hard to write and to read.
CALLS: tuple[Call, ...] = (
    ("fmp_get_quote", {"symbol": "AAPL"}),
    ("fmp_get_company_profile", {"symbol": "MSFT"}),
    ("fmp_get_income_statement", {"symbol": "NVDA", "period": "quarterly", "limit": 4}),
    ("fmp_get_market_gainers", {"limit": 5}),
    ("fmp_get_market_losers", {}),
    ("fmp_search_ticker", {"query": "Société Générale", "limit": 3}),
    ("fmp_get_stock_news", {"tickers": "AAPL,MSFT", "limit": 10}),
    ("fmp_get_change_percent", {"symbol": "BRK.B"}),
    ("fmp_get_previous_close", {"symbol": "^GSPC"}),
    ("polygon_get_aggs", {"ticker": "TSLA", "start_date": "2026-01-02", "end_date": "2026-02-02"}),
    ("polygon_get_news", {"ticker": "AMD", "limit": 2}),
    ("polygon_get_ticker_details", {"ticker": "X:BTCUSD"}),
    ("polygon_get_previous_close", {"ticker": "GOOG"}),
    ("polygon_get_market_status", {}),
    ("tavily_search", {"query": 'what is "core" inflation? <b>2026</b>', "max_results": 5, "search_depth": "advanced"}),
    ("tavily_qna_search", {"query": "日本の金利 😀"}),
    ("list_slack_channels", {}),
    ("send_slack_message", {"channel": "#trading", "message": "Line one\nline two\tand a \\ backslash"}),
    ("get_slack_channel_history", {"channel_id": "C024BE91L", "limit": 10}),
    ("execute_python", {"code": "print('</tool_call><tool_call>{}')\nx = {'a': [1, 2.5e-3]}", "description": ""}),
    ("process_mcp_data", {"data": [{"close": 1.5}, {"close": None}], "processing_code": "len(data)"}),
    ("analyze_financial_data", {"data": {"a": {"b": [[], {}]}}, "analysis_type": "custom", "custom_code": "1"}),
    ("create_data_pipeline", {"pipeline_steps": [{"name": "s", "code": "a < b > c"}], "input_data": [1, True]}),
    ("get_execution_context", {"context_key": "</think>"}),
    ("store_execution_result", {"context_key": "k", "data": {"π": "\u2028", "n": -0.0, "big": 10**30}}),
)

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}

# The tools of these calls, as the chat sees them.
SPECS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": "",
        "parameters": {"type": "object", "properties": {k: {"type": _TYPES[type(v)]} for k, v in arguments.items()}},
    }
    for name, arguments in CALLS
]

SAMPLED = (
    "According to Apple's official website, the price of a MacBook-Air is approximately $2.99.",
    '<tool_call>\n"""\nurl = \'http://www.amazon.com/us/search/US/2022/market/121222\'\nresponse = requests.get(url)\n'
    'assert "Apple\'s price" in response.content\n',
    '<tool_call>\n"""\n# This tool is available in Swift 11 and later for Apple\n"https://macosx.com/pricing.php"\n"""\n',
    '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n```',
    "<tool_call>\n<name>search</name>\n<description>Searching for news on NVIDIA</description>\n\n<parameters>\n",
    '<tool_call>\n{\n  "target_company_type": "Company"\n}\n\nYou can call this:\n<tool_call>\n{\n  '
    '"target_company_type": "Company"\n}\n</tool_call>\n\nThe difference between AAPL and MSFT is:',
    '<tool_call>\n{\n  "name": "Premium, Inc. (MSFT)",\n  "arguments": {\n    "type": "string",\n    "query_1": '
    '"1280.01.5.0.51",\n    "max_results": 10\n},\n"description_1":',
    '<tool_call>\n{"name": "tavily_search", "arguments": 3}\n"https://www.example.com/inflation\n</tool_call>\n\n'
    'For more details on inflation, you can check the official "Inflation Calculator" here: https://www.moneymattap.com',
)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    """A value as the families write it that have no quotes: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else _json(value)


def _hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_json({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


def _llama(calls: Sequence[Call]) -> str:
    return "; ".join(_json({"name": n, "parameters": a}) for n, a in calls)


def _qwen35(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def _glm(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        pairs = [f"<arg_key>{k}</arg_key>\n<arg_value>{_plain(v)}</arg_value>\n" for k, v in arguments.items()]
        return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"

    return "\n".join(one(*call) for call in calls)


def _hy3(calls: Sequence[Call]) -> str:
    glm = _glm(calls).replace("\n<arg_key>", "<tool_sep>\n<arg_key>", 1)
    for tag in ("tool_call", "arg_key", "arg_value", "tool_sep"):
        glm = glm.replace(f"<{tag}>", f"<{tag}:opensource>").replace(f"</{tag}>", f"</{tag}:opensource>")
    return f"<tool_calls:opensource>\n{glm}\n</tool_calls:opensource>"


def _deepseek(calls: Sequence[Call]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{_json(a)}\n```<｜tool▁call▁end｜>" for n, a in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _deepseek_v4(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "\n".join(
            f'<｜DSML｜parameter name="{k}" string="{_json(isinstance(v, str))}">{_plain(v)}</｜DSML｜parameter>'
            for k, v in arguments.items()
        )
        return f'<｜DSML｜invoke name="{name}">\n{inner}\n</｜DSML｜invoke>'

    return "<｜DSML｜tool_calls>\n" + "\n".join(one(*call) for call in calls) + "\n</｜DSML｜tool_calls>"


def _kimi(calls: Sequence[Call]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{_json(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def _minimax(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = "".join(f'<parameter name="{key}">{_plain(value)}</parameter>\n' for key, value in arguments.items())
        return f'<invoke name="{name}">\n{inner}</invoke>\n'

    return "<minimax:tool_call>\n" + "".join(one(*call) for call in calls) + "</minimax:tool_call>"


def _gemma_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else _json(value)


def _gemma(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{n}{_gemma_value(a)}<tool_call|>" for n, a in calls)


def _inkling(calls: Sequence[Call]) -> str:
    return "<|message_model|>".join(
        f"{n}<|content_invoke_tool_json|>{_json({'name': n, 'args': a})}<|end_message|>" for n, a in calls
    )


WRITERS: Mapping[str, Callable[[Sequence[Call]], str]] = {
    "qwen3": _hermes,
    "llama-3": _llama,
    "qwen3.5": _qwen35,
    "prime-qwen3": _qwen35,
    "nemotron-3": _qwen35,
    "glm-4.5": _glm,
    "laguna-xs.2": _glm,
    "hy3": _hy3,
    "deepseek-v3": _deepseek,
    "deepseek-v4": _deepseek_v4,
    "kimi-k2": _kimi,
    "kimi-k2.5": _kimi,
    "minimax-m2": _minimax,
    "gemma4": _gemma,
    "inkling": _inkling,
}


def written_turns(family: str) -> list[str]:
    """Whole turns as a model of the family writes them: one call, several, with prose and with thinking."""
    write = WRITERS[family]
    turns = [write([call]) for call in CALLS]
    turns += [write(CALLS[start : start + 3]) for start in range(0, len(CALLS), 3)]
    return [*turns, f"Let me see.\n{turns[0]}", f"<think>\nAna, then.\n</think>\n\n{turns[1]}", f"{turns[2]} Done."]
