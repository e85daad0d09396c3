"""Writes tasks/train.jsonl and tasks/validation.jsonl: questions about the stock room, each with its solution."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server import STOCK

TASKS = Path(__file__).resolve().parent / "tasks"
HELD_BACK = "cards"  # Training never mentions these items, so no training task reveals a validation answer.
SOLD, DELIVERED, FULL = 7, 12, 100

Call = tuple[str, dict[str, Any]]


def make_tasks(item: str) -> Iterator[dict[str, Any]]:
    """Yield all tasks about one item."""
    there = STOCK[item]
    count: Call = ("count_stock", {"item": item})
    take: Call = ("take_out", {"item": item, "count": SOLD})
    put: Call = ("put_in", {"item": item, "count": DELIVERED})
    fill: Call = ("put_in", {"item": item, "count": FULL - there})

    yield task(f"count-{item}", "easy", f"How many {item} do we have in stock?", [count], there)
    sold = f"We sold {SOLD} {item}. Take them out of the stock and tell me how many are left."
    yield task(f"sell-{item}", "easy", sold, [take], there - SOLD, left=(item, there - SOLD))
    came = f"{DELIVERED} {item} were delivered. Put them into the stock and tell me how many we have now."
    yield task(f"deliver-{item}", "easy", came, [put], there + DELIVERED, left=(item, there + DELIVERED))
    fewer = f"Put in as many {item} as it takes to have {FULL} in stock, and tell me how many you put in."
    yield task(f"fill-{item}", "medium", fewer, [count, fill], FULL - there, left=(item, FULL))


def task(
    name: str, difficulty: str, prompt: str, calls: list[Call], answer: int, left: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Return one line of a task file; `mcprl tasks schema` lists the other fields."""
    line: dict[str, Any] = {"id": name, "prompt": prompt, "difficulty": difficulty, "answer": {"number": answer}}
    line["calls"] = [{"tool": tool, "arguments": arguments} for tool, arguments in calls]
    if left is not None:  # the state after the episode: mcprl itself asks the server
        item, number = left
        line["state"] = [{"tool": "count_stock", "arguments": {"item": item}, "texts": [{"number": number}]}]
    played = [{"name": tool, "arguments": arguments} for tool, arguments in calls]
    return line | {"solution": {"calls": played, "answer": f"{answer}."}}


def task_files() -> dict[str, str]:
    """Return the text of both files, by file name."""
    files = {"train.jsonl": [item for item in STOCK if item != HELD_BACK], "validation.jsonl": [HELD_BACK]}
    return {
        name: "".join(f"{json.dumps(line)}\n" for item in items for line in make_tasks(item))
        for name, items in files.items()
    }


if __name__ == "__main__":
    TASKS.mkdir(exist_ok=True)
    for name, text in task_files().items():
        (TASKS / name).write_text(text)
        print(f"tasks/{name}: {len(text.splitlines())} tasks")
