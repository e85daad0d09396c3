"""How much of recorded conversations a cassette gives back: imports them, looks every call up again, times it.

    python bench/cassette_import.py [FOLDER] [--ci]

FOLDER holds recorded conversations as JSON files; by default the folder shared/data beside the project. The figures:

    calls_seen            calls in the files
    recorded              calls whose answers are in the cassette: reads that worked
    share_found_again     part of all calls that the cassette answers
    identical_found       part of the importable calls that it answers; the bar is 1.0
    aliases_applied       calls whose arguments had another name
    key_parameters_found  keys struck out of URLs in answers, where a key was put back in place of each REDACTED
    key_parameters_left   those that remained; the bar is 0
    lookup_us             median time of a look-up, in microseconds
    import_s              time to read the files and fill the cassette

With --ci each call is looked up once, else twenty times.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from mcprl.secrets import SECRETS
from mcprl.tools.cassette import Cassette
from mcprl_synthesis.importing import ImportRules, Verdict, import_recordings
from mcprl_synthesis.recordings import RecordedCall, read_recordings
from servers.harness import say

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RULES = ImportRules(
    servers=(
        ("fmp", "fmp_*"),
        ("polygon", "polygon_*"),
        ("tavily", "tavily_*"),
        ("slack", "*_slack_*"),
        ("python", "*"),
    ),
    aliases={"ticker": "symbol", "symbol": "ticker", "python_code": "code"},
)
STRUCK_OUT = re.compile(r"([?&]\w*(?:key|token)\w*=)REDACTED", re.IGNORECASE)
FAKE_KEY = "Zq7xK2mP9vR4tW8nB3cD6fG1hJ5kL0sY"


def key_parameters(calls: list[RecordedCall]) -> tuple[int, int]:
    """Keys in URLs of answers that redaction found, and those that it left."""
    texts = [STRUCK_OUT.sub(rf"\g<1>{FAKE_KEY}", call.text) for call in calls]
    put_in = sum(text.count(FAKE_KEY) for text in texts)
    left = sum(SECRETS.redact(text).count(FAKE_KEY) for text in texts)
    return put_in - left, left


def measure(files: list[Path], rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="mcprl-") as folder:
        started = time.perf_counter()
        recordings = read_recordings(files)
        with Cassette.open(Path(folder) / "calls.sqlite", writable=True) as cassette:
            calls = import_recordings(recordings, cassette, RULES, {})
            import_s = time.perf_counter() - started
            say(f"imported {len(files)} files in {import_s:.2f} s; {len(recordings.unreadable)} parts unreadable")
            kept = "".join(recording.text for recording in cassette.recordings())
            lookup_s: list[float] = []
            for _ in range(rounds):
                found = {Verdict.REPLAYABLE: 0}
                for call in calls:
                    assert call.tool is not None  # RULES assign every tool to a server
                    name = call.tool.definition.name
                    started = time.perf_counter()
                    answer = cassette.find(call.tool.server, call.tool.version, name, call.arguments)
                    lookup_s.append(time.perf_counter() - started)
                    found[call.verdict] = found.get(call.verdict, 0) + (answer is not None)
    struck_out, left = key_parameters(recordings.calls)
    replayable = sum(call.verdict is Verdict.REPLAYABLE for call in calls)
    return {
        "calls_seen": len(recordings.calls),
        "recorded": replayable,
        "share_found_again": round(sum(found.values()) / len(recordings.calls), 4),
        "identical_found": found[Verdict.REPLAYABLE] / replayable,
        "aliases_applied": sum(call.arguments.keys() != call.call.arguments.keys() for call in calls),
        "key_parameters_found": struck_out,
        "key_parameters_left": left,
        "faults": int(SECRETS.redact(kept) != kept),
        "import_s": round(import_s, 3),
        "lookup_us": round(1e6 * statistics.median(lookup_s), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=DATA)
    parser.add_argument("--ci", action="store_true", help="look every call up once only")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    if not files:
        say(f"there are no recorded conversations in {options.folder}: name a folder that holds some")
        return 2
    figures = measure(files, rounds=1 if options.ci else 20)
    print(json.dumps(figures))
    holds = figures["identical_found"] == 1.0 and not figures["key_parameters_left"] and not figures["faults"]
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
