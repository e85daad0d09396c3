"""A million damaged turns: reading them never fails, and takes time in proportion to their length.

The turns are those of tests/unit/chat/written_calls.py (calls of the shipped tools in the syntax of each family, and
what SmolLM2 wrote), damaged as tests/unit/chat/mutations.py does. Most are read as text, by the two parsers of our own
and with thinking open, possible or off; one in twenty is a list of ids, read by the family's own reader. Then the
texts of tests/unit/chat/slow_texts.py, made to be slow, are timed from 64 KB to 1 MB.

  inputs               turns that were read, `inputs_as_ids` of them as ids
  exceptions           readings that raised
  unrecordable         turns with a call that could not be written down as JSON, or with a problem not on the list
  usable, problems     calls that could be made, and how often each kind of problem kept one from it
  per_s                turns read as text in a second of processor time, damaging them left out
  worst_ms             processor time for the slowest text of 256 KB, `worst_ms_shape`
  plain_growth         time that Python's own decoder takes for twice a flat list of empty lists over its time for the
                       list: 2, and a little more where the objects no longer fit into the processor's caches
  worst_growth         time for twice a text over time for the text, the mean of four doublings, at worst,
                       `worst_growth_shape`; as a part of `plain_growth`, times 2, so that 2 is linear on any machine
  read_ids_ms          reading 256 KB of ids of calls, with `decode_ms` of it in the tokenizer
  load                 what else the machine did at the start

    python bench/parser_fuzz.py [--ci]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mcprl.chat.parsing import JSON_FAMILIES, Problem, Thinking, read_text
from mcprl.records import ToolCall
from servers.harness import run_bench, say

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "chat")]

from family_readers import FamilyReader, load_family_readers  # noqa: E402
from mutations import PIECES, Fuzz, assert_recordable  # noqa: E402
from slow_texts import BARE, TAGGED, cpu_ms, growth  # noqa: E402
from written_calls import CALLS, SAMPLED, SPECS, WRITERS, written_turns  # noqa: E402

SEED = 20_261_114
SIZE = 1 << 18
BARS = {
    "exceptions": ("==", 0),
    "unrecordable": ("==", 0),
}
SPEED_BARS = {
    "worst_ms": ("<=", 50),
    "worst_growth": ("<=", 2.2),
}


class UpdateMetrics:
    """What came of the turns."""

    def __init__(self) -> None:
        self.inputs = self.exceptions = self.unrecordable = self.usable = 0
        self.problems: Counter[str] = Counter()
        self.cpu_s = 0.0

    def read(self, read: Callable[[Any], Sequence[ToolCall]], turn: Any) -> None:
        self.inputs += 1
        started = time.thread_time()
        try:
            calls = read(turn)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            self.exceptions += 1
            say(f"RAISED {error!r}: {turn!r}")
            return
        self.cpu_s += time.thread_time() - started
        try:
            assert_recordable(calls)
        except (AssertionError, ValueError, RecursionError, StopIteration) as error:
            self.unrecordable += 1
            say(f"UNRECORDABLE {error!r}: {turn!r}")
            return
        for call in calls:
            if call.problem is None:
                self.usable += 1
            else:
                self.problems[Problem.of(call.problem).name] += 1


def read_texts(count: int) -> UpdateMetrics:
    fuzz = Fuzz(SEED, [*SAMPLED, *(turn for family in WRITERS for turn in written_turns(family))])
    ways = [(family, thinking) for family in ("chatml", "llama-3") for thinking in Thinking]
    tally = UpdateMetrics()
    for number in range(count):
        family, thinking = ways[number % len(ways)]
        tally.read(lambda text, f=family, t=thinking: read_text(text, f, t)[1], fuzz.next())
        if (number + 1) % 100_000 == 0:
            say(f"{number + 1} texts, {tally.usable} calls usable")
    return tally


def read_ids(readers: dict[str, FamilyReader], count: int) -> UpdateMetrics:
    tally = UpdateMetrics()
    for family, it in readers.items():
        turns = [it.encode(turn) for turn in written_turns(family)]
        markers = {token_id for turn in turns for token_id in turn} & set(it.tokenizer.added_tokens_decoder)
        # The long pieces are for texts: one family's parser takes seconds for a turn of thousands of ids.
        pieces = [it.encode(piece) for piece in PIECES if len(piece) < 200 and piece.isprintable()]
        fuzz = Fuzz(SEED, turns, [*pieces, *([marker] for marker in markers for _ in range(3))])
        for number in range(count // len(readers)):
            prompt, tools = it.prompt_ids if number % 2 else [], SPECS if number % 3 else []
            tally.read(lambda ids, i=it, p=prompt, t=tools: i.reader.read(p, ids, t).calls, fuzz.next())
        say(f"{tally.inputs} turns as ids, the last of {family}")
    return tally


def flat_lists(size: int) -> str:
    """JSON that takes the same work for each of its bytes, however long it is."""
    return "[" + "[]," * (size // 3 - 1) + "[]]"


def slowest() -> dict[str, Any]:
    """The slowest text of 256 KB, and the one whose time grows most with its length."""
    plain = statistics.median(growth(json.loads, flat_lists) for _ in range(3))
    times: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for family, shapes in (("chatml", TAGGED), ("llama-3", BARE)):

        def read(text: str, family: str = family) -> object:
            return read_text(text, family, Thinking.OPTIONAL)

        for shape, make in shapes.items():
            name = f"{family}: {shape}"
            times[name] = cpu_ms(read, make(SIZE), looks=9)
            # The worst of forty figures is often the one that was disturbed most: what is above 2 is looked at again.
            ratios[name] = 2 * growth(read, make) / plain
            if ratios[name] > 2:
                again = [2 * growth(read, make) / plain for _ in range(2)]
                ratios[name] = statistics.median([ratios[name], *again])
            say(f"{name}: {times[name]:.1f} ms, growth {ratios[name]:.2f}")
    slow, steep = max(times, key=times.__getitem__), max(ratios, key=ratios.__getitem__)
    return {
        "worst_ms": round(times[slow], 1),
        "worst_ms_shape": slow,
        "plain_growth": round(plain, 2),
        "worst_growth": round(ratios[steep], 2),
        "worst_growth_shape": steep,
    }


def ids_ms(it: FamilyReader) -> dict[str, float]:
    text = WRITERS["qwen3"](CALLS)
    ids = it.encode((text * (SIZE // len(text) + 1))[:SIZE])
    return {
        "read_ids_ms": round(cpu_ms(lambda _: it.reader.read([], ids, SPECS), ""), 1),
        "decode_ms": round(cpu_ms(lambda _: it.tokenizer.decode(ids, skip_special_tokens=False), ""), 1),
    }


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    readers = load_family_readers(list(WRITERS), ROOT / ".cache" / "models" / "tiny-qwen3", folder)
    others = {family: it for family, it in readers.items() if family not in JSON_FAMILIES}
    count = 20_000 if ci else 1_000_000
    if not ci:
        figures |= slowest() | ids_ms(readers["qwen3"])
    ids = read_ids(others, count // 20)
    texts = read_texts(count - ids.inputs)
    return figures | {
        "inputs": texts.inputs + ids.inputs,
        "inputs_as_ids": ids.inputs,
        "exceptions": texts.exceptions + ids.exceptions,
        "unrecordable": texts.unrecordable + ids.unrecordable,
        "usable": texts.usable + ids.usable,
        "problems": dict((texts.problems + ids.problems).most_common()),
        "per_s": round(texts.inputs / texts.cpu_s),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
