"""A world is a function of its seed: on every machine, in every process, and for any order of questions."""
# R14

from __future__ import annotations

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import worlds
from worlds import world_digest

from mcprl_market.world import open_market
from mcprl_market.world.draws import FORMAT
from mcprl_market.world.market import Market
from processor_time import least_s

# The worlds behind published tasks must not change. If a change is intended, raise FORMAT in world/draws.py and write
# the new digest here.
KNOWN_FORMAT, KNOWN_DIGEST = 1, "53f4ae97bbfcdc1da157d83095d7429bb0fd6785fda763cda28cc7184664370d"


def digest_in_another_process(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(Path(worlds.__file__)), str(seed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.process
def test_a_seed_gives_the_same_world_in_every_process_and_under_every_hash_seed():
    digests = {digest_in_another_process(7, hash_seed) for hash_seed in ("0", "1")}
    assert digests == {world_digest(7)}


def test_the_world_of_a_seed_is_the_one_that_this_format_always_had():
    assert (FORMAT, world_digest(7)) == (KNOWN_FORMAT, KNOWN_DIGEST)


def test_different_seeds_give_different_worlds():
    seeds = (0, 7, -3, 2**63)
    assert len({world_digest(seed) for seed in seeds}) == len(seeds)
    assert len({open_market(seed).companies for seed in seeds}) == len(seeds)


def test_a_market_is_built_once_a_process_even_if_threads_ask_at_once():
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(open_market, [123] * 8))
    assert all(market is opened[0] for market in opened)


def test_threads_that_ask_one_market_at_once_all_get_right_answers():
    market = open_market(7)
    symbols = [company.symbol for company in market.companies] * 3

    def ask(symbol: str) -> tuple[object, ...]:
        return (
            market.bars(symbol, market.today, market.today),
            market.statements(symbol),
            market.news([symbol], 3),
            market.documents(symbol, 2),
        )

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, symbols)) == [ask(symbol) for symbol in symbols]


@pytest.mark.alone
def test_a_market_is_built_within_300_ms(untraced, record_property):
    # Twice the bar fails, and only if it is missed in a second measurement, too.
    fastest = least_s(lambda: Market(1001), looks=5)
    fastest = fastest if fastest < 2 * 0.3 else min(fastest, least_s(lambda: Market(1001), looks=5))
    record_property("world_build_ms", round(1000 * fastest))
    record_property("world_peak_rss_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    assert fastest < 2 * 0.3


@pytest.mark.process
def test_importing_the_world_builds_nothing_and_needs_no_large_library():
    code = (
        "import sys, mcprl_market.world; print({'numpy', 'pandas', 'mcp', 'torch', 'pydantic'} & {*sys.modules} or [])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
