"""Play invented conversations on the offline servers, and record them as an agent's log: recorded/conversations.jsonl.

    python examples/record_conversations.py

`mcprl tasks import examples/recorded/conversations.jsonl --out quotes` makes a project of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from mcprl.records import ToolCall
from mcprl.servers import make_server
from mcprl.tools import ServerSpec, Toolbox

OUT = Path(__file__).parent / "recorded" / "conversations.jsonl"
SERVERS = ("fmp", "polygon", "slack")
POST = "send_slack_message"

# Question, calls, answer. `{0}` is the first capture of the pattern of the first call, `{1}` of the second, … An answer
# of None: the log ends on the result of the last call. `ticker` is what the agent called `symbol`.
Step = tuple[str, dict[str, Any], str]
PRICE, CLOSE, CAP, GAINER = r"Price: \$([\d,.]+)", r"Close: \$([\d,.]+)", r"Market Cap: (\$[\d,.]+\w*)", r"\n(\w{4}):"
CONVERSATIONS: list[tuple[str, list[Step], str | None]] = [
    (
        "What is the price of DRNT? Post it to #general.",
        [
            ("fmp_get_quote", {"symbol": "DRNT"}, PRICE),
            (POST, {"channel": "general", "message": "DRNT is at ${0}."}, r"(sent)"),
        ],
        "DRNT trades at ${0}. I posted it to #general.",
    ),
    (
        "What did FRXR close at on the last trading day?",
        [("polygon_get_previous_close", {"ticker": "FRXR"}, CLOSE)],
        "FRXR closed at ${0}.",
    ),
    (
        "Which sector is FXNR in, and who runs it?",
        [("fmp_get_company_profile", {"symbol": "FXNR"}, r"Sector: (.+)")],
        "FXNR is in the sector {0}. Its CEO is {CEO: (.+)}.",
    ),
    (
        "List today's top 2 gainers.",
        [("fmp_get_market_gainers", {"limit": 2}, GAINER)],
        "The top gainer is {0}, up {\\+([\\d.]+)%}%; then comes {\\n\\w{4}:.*\\n(\\w{4}):}.",
    ),
    (
        "Compare the market caps of DRNT and FXNR. Share the larger one in #research.",
        [
            ("fmp_get_quote", {"ticker": "DRNT"}, PRICE),
            ("fmp_get_quote", {"symbol": "DRNT"}, CAP),
            ("fmp_get_quote", {"symbol": "FXNR"}, CAP),
            (POST, {"channel": "research", "message": "Market caps: DRNT {1}, FXNR {2}."}, r"(sent)"),
        ],
        "DRNT has a market cap of {1}, FXNR of {2}.",
    ),
    (
        "Is the market open? Let #trading-desk know the price of FXNR, too.",
        [
            ("polygon_get_market_status", {}, r"Market: (\w+)"),
            ("fmp_get_quote", {"symbol": "FXNR"}, PRICE),
            (POST, {"channel": "trading-desk", "message": "The market is {0}; FXNR is at ${1}."}, r"(sent)"),
        ],
        "The market is {0}. FXNR is at ${1}, and #trading-desk knows.",
    ),
    (
        "How far is BLKF above its previous close?",
        [
            ("fmp_get_quote", {"symbol": "BLKF"}, PRICE),
            ("polygon_get_previous_close", {"ticker": "BLKF"}, CLOSE),
        ],
        "BLKF is at ${0}, after a close of ${1}.",
    ),
    ("What is the price of FRXR?", [("fmp_get_quote", {"symbol": "FRXR"}, PRICE)], None),
    (
        "What is the price of XQZZ?",
        [("fmp_get_quote", {"symbol": "XQZZ"}, "(no stock)"), ("fmp_get_quote", {"symbol": "XQZ"}, "(no stock)")],
        "It is about $40.",
    ),
]


async def main() -> None:
    specs = [ServerSpec(name=name, make=partial(make_server, name, world=7)) for name in SERVERS]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as logs:
        async with Toolbox(specs, log_dir=Path(logs)) as toolbox:
            tools = [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in toolbox.catalog
            ]
            for question, steps, answer in CONVERSATIONS:
                messages = await play(toolbox, question, steps, answer)
                rows.append({"messages": messages, "tools": [{"type": "function", "function": t} for t in tools]})
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


async def play(toolbox: Toolbox, question: str, steps: list[Step], answer: str | None) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    found: list[str] = []
    text = ""
    async with toolbox.lease(None) as lease:
        for number, (tool, arguments, pattern) in enumerate(steps):
            given = {name: filled(value, found, text) for name, value in arguments.items()}
            seen = await lease.call(ToolCall(name=tool, arguments=given))
            text = seen.text
            match = re.search(pattern, text)
            found.append(match[1].rstrip(".") if match else "")
            call = {"id": f"call_{number}", "type": "function"}
            call["function"] = {"name": tool, "arguments": json.dumps(given, ensure_ascii=False)}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    if answer is not None:
        messages.append({"role": "assistant", "content": filled(answer, found, text)})
    return messages


def filled(value: Any, found: list[str], text: str) -> Any:
    """Replace {0} by what was found in the first result, and {PATTERN} by its capture in the last."""

    def one(match: re.Match[str]) -> str:
        inner = match[1]
        return found[int(inner)] if inner.isdigit() else re.search(inner, text)[1]  # type: ignore[index]

    return re.sub(r"\{((?:[^{}]|\{\d+\})*)\}", one, value) if isinstance(value, str) else value


if __name__ == "__main__":
    asyncio.run(main())
