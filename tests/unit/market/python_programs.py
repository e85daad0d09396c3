"""Honest programs, with the results that Python itself gives, and short ways to run them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from mcprl_market.python.launch import Launch, likely_isolation
from mcprl_market.python.programs import Limits, Program, Step

__all__ = ["HONEST", "needs_bubblewrap", "program", "sandboxed"]

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: run scripts/setup")

HONEST: dict[str, tuple[str, Any]] = {
    "statistics": (
        "import statistics as s\n(s.mean([1, 2, 4]), s.median([3, 1, 2]), round(s.stdev([1, 2, 3, 4]), 6))",
        [7 / 3, 2, 1.290994],
    ),
    "patterns": ("import re\nre.findall(r'[A-Z]{2,}', 'VLKN up, ORBT down')", ["VLKN", "ORBT"]),
    "dates": (
        "from datetime import date, timedelta\n[date(2024, 2, 28) + timedelta(days=n) for n in range(3)]",
        ["2024-02-28", "2024-02-29", "2024-03-01"],
    ),
    "time zones": (
        "from datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
        "datetime(2024, 7, 1, 9, 30, tzinfo=ZoneInfo('America/New_York')).astimezone(ZoneInfo('Asia/Tokyo'))",
        "2024-07-01T22:30:00+09:00",
    ),
    "json": ("import json\njson.loads(json.dumps({'a': [1, None, True], 'é': 1.5}))", {"a": [1, None, True], "é": 1.5}),
    "decimals": ("from decimal import Decimal\nstr(sum([Decimal('0.1')] * 3))", "0.3"),
    "fractions": ("from fractions import Fraction\nstr(Fraction(1, 3) + Fraction(1, 6))", "1/2"),
    "collections": (
        "from collections import Counter, defaultdict, OrderedDict, namedtuple\nCounter('banana').most_common(2)",
        [["a", 3], ["n", 2]],
    ),
    "itertools": ("import itertools\nlist(itertools.accumulate([1, 2, 3, 4]))", [1, 3, 6, 10]),
    "classes": (
        "from dataclasses import dataclass, asdict\n@dataclass\nclass Bar:\n    close: float\n    volume: int = 0\n"
        "asdict(Bar(1.5))",
        {"close": 1.5, "volume": 0},
    ),
    "random numbers": ("import random\nrandom.seed(7)\n[random.randint(1, 6) for _ in range(3)]", [3, 2, 4]),
    "csv": ("import csv, io\nlist(csv.DictReader(io.StringIO('a,b\\n1,2\\n')))", [{"a": "1", "b": "2"}]),
    "sqlite": (
        "import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('create table t (x)')\n"
        "c.executemany('insert into t values (?)', [(1,), (2,)])\nc.execute('select sum(x) from t').fetchone()[0]",
        3,
    ),
    "hashes and compression": (
        "import hashlib, zlib, lzma, bz2, base64\n"
        "assert all(m.decompress(m.compress(b'x' * 999)) == b'x' * 999 for m in (zlib, lzma, bz2))\n"
        "hashlib.sha256(b'a').hexdigest()[:8]",
        "ca978112",
    ),
    "files in /tmp": (
        "import tempfile, os, shutil\n"
        "with tempfile.TemporaryDirectory() as d:\n"
        "    p = os.path.join(d, 'x.txt')\n"
        "    with open(p, 'w') as f: f.write('héllo')\n"
        "    shutil.copy2(p, p + '.2')\n"
        "    result = (sorted(os.listdir(d)), open(p + '.2').read())",
        [["x.txt", "x.txt.2"], "héllo"],
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: result = list(pool.map(lambda n: n * n, range(5)))",
        [0, 1, 4, 9, 16],
    ),
    "asyncio": (
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.001)\n    return n\n"
        "async def main(): return await asyncio.gather(*[f(n) for n in range(3)])\nasyncio.run(main())",
        [0, 1, 2],
    ),
    "a main function": ("def main():\n    return 5\nif __name__ == '__main__':\n    result = main()", 5),
    "unicode": ("'naïve 株価 🚀'.upper()", "NAÏVE 株価 🚀"),
    "numpy": (
        "import numpy as np\na = np.arange(6).reshape(2, 3)\n(a @ a.T, np.linalg.det(np.eye(3)), a.mean(axis=0))",
        [[[5, 14], [14, 50]], 1.0, [1.5, 2.5, 3.5]],
    ),
    "numpy random": ("np.random.default_rng(3).integers(0, 100, 3)", [81, 8, 17]),
    "pandas groups": (
        "import pandas as pd\ndf = pd.DataFrame({'sector': ['a', 'b', 'a'], 'change': [1.0, 2.0, 4.0]})\n"
        "df.groupby('sector')['change'].mean().to_dict()",
        {"a": 2.5, "b": 2.0},
    ),
    "pandas windows": ("pd.Series([1.0, 2.0, 3.0, 5.0]).rolling(2).mean()", {"0": None, "1": 1.5, "2": 2.5, "3": 4.0}),
    "pandas dates": (
        "df = pd.DataFrame({'t': pd.date_range('2024-01-31', periods=2, freq='D'), 'x': [1, 2]})\ndf",
        [{"t": "2024-01-31T00:00:00", "x": 1}, {"t": "2024-02-01T00:00:00", "x": 2}],
    ),
    "pandas csv": (
        "import io\npd.read_csv(io.StringIO('symbol,close\\nVLKN,1.5\\nORBT,2.5'))['close'].sum()",
        4.0,
    ),
    "a large result": ("list(range(50000))", list(range(50000))),
    "what stands for no number": ("{'a': float('nan'), 'b': [float('inf')]}", {"a": None, "b": [None]}),
}
"""Code and its value, as JSON."""


def program(*codes: str, **names: Any) -> Program:
    steps = tuple(Step(name=f"step {n}" if len(codes) > 1 else "code", code=code) for n, code in enumerate(codes, 1))
    return Program(steps=steps, names={"data": None, "context": {}, **names})


def sandboxed(*, deadline_s: float = 60.0, **limits: Any) -> Launch:
    """With a deadline that only programs reach that wait, however busy the machine."""
    bounds = Limits(deadline_s=deadline_s, **limits)
    return Launch(limits=bounds, bubblewrap=shutil.which("bwrap"), isolation=likely_isolation())
