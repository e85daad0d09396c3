"""How fast the dashboard shows a run of 100,000 episodes, and how soon it tells of what happens.

A run is generated (bench/dashboards), its server started as a process of its own, and asked over HTTP. The files are in
the page cache, as those of a run are that was just written; the process is new for each opening.

  episodes        in the generated run
  make_s          seconds that generating it took
  start_s         from starting the process to its address, the slowest
  open_s          from the first request to the first page of the table and all that can be filtered by, the slowest
  filter_s        a page by filters on task, tool, outcome, stop reason, reward, step, faults, in all orders, p95
  search_s        a page by a text in all that was said, p95
  worst_s         the slowest of all filters and searches, those while episodes are still being read included
  index_s         from opening until the turns of all episodes are read; until then answers say how many are not
  episode_s       one episode with its group, p95
  live_s          from a line being written into a run's file to its event at a listener, the slowest
  memory_mib      of the server after all that

    python bench/dashboard.py [--ci]
    python bench/dashboard.py --make FOLDER [--episodes N] [--hostile N]     only write a run, for looking at it
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from dashboards.generated_runs import make_run
from dashboards.hostile import add_hostile_episodes
from dashboards.side_files import metrics_of
from servers.harness import percentile, run_bench, say

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / ".cache" / "models" / "tiny-qwen3"
EPISODES = 100_000
CI_EPISODES, CI_MAKE_S = 20_000, 40.0  # so many where making all would take longer than that
OPENINGS, CI_OPENINGS = 5, 2
QUESTIONS, CI_QUESTIONS = 60, 30
LINES = 10
SPEED_BARS = {"open_s": ("<=", 1.0), "filter_s": ("<=", 1.0), "search_s": ("<=", 1.0), "live_s": ("<=", 2.0)}
_COMMAND = "import typer; from mcprl_dashboard.commands import command; typer.run(command)"
_SEARCHES = ("meeting moved", "Zoë", "E-TOOL", '"limit": "many"', "Asia/Tokyo", "not there at all", "the", "FLUX costs")


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--make", type=Path)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--hostile", type=int, default=0)
    asked, _ = parser.parse_known_args()
    if asked.make is None:
        return run_bench(__doc__, measure, {}, speed=SPEED_BARS)
    make_run(asked.make, model=MODEL, episodes=asked.episodes)
    if asked.hostile:
        add_hostile_episodes(asked.make, asked.hostile)
    say(f"{asked.make} has {asked.episodes} episodes and {asked.hostile} hostile ones")
    return 0


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    episodes = EPISODES
    if ci and 25 * _make(folder / "trial", EPISODES // 25) > CI_MAKE_S:
        episodes = CI_EPISODES
    run = folder / "outputs" / "generated"
    figures: dict[str, Any] = {"episodes": episodes, "make_s": round(_make(run, episodes), 1)}
    say(f"made {episodes} episodes in {figures['make_s']} s")
    seconds: dict[str, list[float]] = {name: [] for name in ("start", "open", "filter", "search", "index", "episode")}
    memory, live = 0.0, list[float]()
    for opening in range(CI_OPENINGS if ci else OPENINGS):
        async with _server(run.parent, seconds["start"]) as (client, pid):
            await _open(client, seconds)
            await _ask(client, random.Random(opening), CI_QUESTIONS if ci else QUESTIONS, seconds)
            memory = max(memory, psutil.Process(pid).memory_info().rss / 2**20)
            if opening == 0:
                live = await _listen(client, run)
        say(f"opening {opening + 1}: {seconds['open'][-1]:.2f} s, all read after {seconds['index'][-1]:.1f} s")
    return figures | {
        "start_s": round(max(seconds["start"]), 2),
        "open_s": round(max(seconds["open"]), 3),
        "filter_s": round(percentile(seconds["filter"], 95), 3),
        "filter_p50_s": round(percentile(seconds["filter"], 50), 3),
        "search_s": round(percentile(seconds["search"], 95), 3),
        "search_p50_s": round(percentile(seconds["search"], 50), 3),
        "worst_s": round(max(seconds["filter"] + seconds["search"]), 3),
        "index_s": round(max(seconds["index"]), 1),
        "episode_s": round(percentile(seconds["episode"], 95), 3),
        "live_s": round(max(live), 3),
        "memory_mib": round(memory),
    }


def _make(run: Path, episodes: int) -> float:
    started = time.monotonic()
    make_run(run, model=MODEL, episodes=episodes)
    return time.monotonic() - started


@asynccontextmanager
async def _server(outputs: Path, start_s: list[float]) -> AsyncGenerator[tuple[httpx.AsyncClient, int]]:
    """The dashboard as its command starts it, and a client of it that asks about the generated run."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _COMMAND, str(outputs), "--no-open", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline()).decode()
        link = httpx.URL(next(word for word in said.split() if word.startswith("http://")))
        base = link.copy_with(path="/api/runs/generated", query=None)
        async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
            await client.get(link)  # sets the cookie with the token
            await _get(client, "/health")  # answers as soon as it serves
            start_s.append(time.monotonic() - began)
            yield client, process.pid
    finally:
        process.terminate()
        await process.wait()


async def _open(client: httpx.AsyncClient, seconds: Mapping[str, list[float]]) -> None:
    """As the page does: both at once. A filter and a search follow while episodes are still being read."""
    began = time.monotonic()
    await asyncio.gather(_get(client, "/facets"), _get(client, "/episodes", limit=50))
    seconds["open"].append(time.monotonic() - began)
    while True:
        seconds["filter"].append(await _timed(client, outcome="failed", tool="get_quote"))
        seconds["search"].append(await _timed(client, q="meeting moved"))
        if not (await _get(client, "/facets"))["pending"]:
            break
        await asyncio.sleep(0.5)
    seconds["index"].append(time.monotonic() - began)


async def _ask(client: httpx.AsyncClient, draw: random.Random, count: int, seconds: Mapping[str, list[float]]) -> None:
    facets = await _get(client, "/facets")
    choices: dict[str, list[Any]] = {
        "task": [task["id"] for task in facets["tasks"]],
        "tool": [tool["name"] for tool in facets["tools"]],
        "stop": [stop["name"] for stop in facets["stops"]],
        "outcome": ["solved", "failed"],
        "fault": [1],
        "reward_min": [0.1, 0.5, 0.9],
        "step_from": [50, 100, 200],
    }
    sorts = ("step", "reward", "turns", "tokens", "duration_s", "task_id")
    for _ in range(count):
        chosen = {name: draw.choice(choices[name]) for name in draw.sample(sorted(choices), draw.randint(1, 3))}
        page = {"sort": draw.choice(sorts), "order": draw.choice(("asc", "desc")), "offset": draw.choice((0, 0, 500))}
        seconds["filter"].append(await _timed(client, **chosen, **page))
        reference = f"{draw.randrange(facets['steps'][1]):05d}{draw.randrange(400):03d}"
        seconds["search"].append(await _timed(client, q=draw.choice((*_SEARCHES, reference)), **page))
        row = draw.choice((await _get(client, "/episodes", **page))["rows"])
        began = time.monotonic()
        await _get(client, "/episode", step=row["step"], task=row["task_id"], member=row["member"])
        seconds["episode"].append(time.monotonic() - began)


async def _listen(client: httpx.AsyncClient, run: Path) -> list[float]:
    """Write lines as a run does, and wait for each to arrive."""
    waits: list[float] = []
    async with client.stream("GET", "/events", timeout=60) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if line == "event: hello":
                break
        for number in range(LINES):
            await asyncio.sleep(0.13 * (number % 4))  # at other places between two looks
            step = 10_000 + number
            written = time.monotonic()
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(metrics_of(step, 0.5, 0.5, 400)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            async for line in lines:
                if line.startswith("data:") and f'"step":{step}' in line:
                    waits.append(time.monotonic() - written)
                    break
    return waits


async def _timed(client: httpx.AsyncClient, **question: Any) -> float:
    began = time.monotonic()
    await _get(client, "/episodes", **question)
    return time.monotonic() - began


async def _get(client: httpx.AsyncClient, path: str, **question: Any) -> dict[str, Any]:
    answer = await client.get(path, params=question)
    answer.raise_for_status()
    return answer.json()


if __name__ == "__main__":
    sys.exit(main())
