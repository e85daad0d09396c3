"""What the servers of market data share: which symbols can be, and how figures are written."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcp.server.mcpserver.exceptions import ToolError

__all__ = [
    "checked_symbol",
    "labelled",
    "money",
    "percent",
    "shortened",
    "unknown_symbol",
    "whole",
]

_SYMBOL = re.compile(r"[A-Z0-9^][A-Z0-9.:=^-]{0,19}")
_MAX_DESCRIPTION_CHARS = 300


def checked_symbol(text: str) -> str:
    """One ticker symbol in capitals. It can stand in the path of a URL."""
    symbol = text.strip().upper()
    if not _SYMBOL.fullmatch(symbol):
        raise ToolError(f"{text!r} is not a ticker symbol. Give exactly one, without spaces or commas.")
    return symbol


def unknown_symbol(symbol: str) -> ToolError:
    return ToolError(f"There is no stock with the symbol {symbol!r}. Search for the company to find its symbol.")


def labelled(title: str, fields: Mapping[str, str]) -> str:
    """A title and a line for each field that is known."""
    lines = [f"{label}: {value}" for label, value in fields.items() if value]
    return "\n".join([f"**{title}**", *lines])


def money(amount: float) -> str:
    """Dollars, with as many decimals as are known, between two and four: $213.88, $0.0685, $-0.24."""
    return f"${_decimals(amount)}"


def percent(share: float) -> str:
    """A change in per cent: 1.50%, -0.1381%."""
    return f"{_decimals(share)}%"


def whole(number: int) -> str:
    return f"{number:,}"


def shortened(text: str) -> str:
    """The beginning of a long description, which costs the policy's context."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_DESCRIPTION_CHARS else f"{text[:_MAX_DESCRIPTION_CHARS].rstrip()}..."


def _decimals(number: float) -> str:
    text = f"{number:.4f}"
    while text.endswith("0") and text[-3] != ".":
        text = text[:-1]
    return "0.00" if text == "-0.00" else text
