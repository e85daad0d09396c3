"""The mathematics of the objective against other people's: SkyRL's and TRL's functions on the same random numbers.

Every function that a loss is made of is computed in float64 for the random cases of bench/oracle_cases.py: here, and in
a process of its own by bench/peers/oracle_worker.py, with the functions of SkyRL and TRL. Losses are compared with
their gradients. What neither has is held against plain Python.

  functions            for each function: its oracle, the number of cases, the largest absolute difference
  worst                the largest difference of all

The bar is 1e-6. SkyRL rounds ratios to float32, which is where its differences of about 1e-7 come from.

    python bench/oracles.py [--ci] [--cases N] [--peers-python FILE] [--table FILE] [--write PAGE]

`--table` writes the table to a file, `--write` between the markers <!-- oracles --> and <!-- /oracles --> of a page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oracle_cases import Case, make_cases, of_mcprl, of_plain_python
from pages import write_between_markers
from servers.harness import say

HERE = Path(__file__).resolve().parent
BAR = 1e-6
CI_CASES, ALL_CASES = 1_000, 5_000
PLAIN_PYTHON = "plain Python"

Numbers = dict[str, np.ndarray]


def case_by_case(cases: Numbers, answer: Callable[[Case], dict[str, Any]]) -> Numbers:
    tensors = {name: torch.from_numpy(array) for name, array in cases.items()}
    found: dict[str, list[Any]] = defaultdict(list)
    for number in range(len(cases["kl_C"])):
        for name, result in answer({key: array[number] for key, array in tensors.items()}).items():
            found[name].append(np.asarray(result, dtype=np.float64))
    return {name: np.stack(results) for name, results in found.items()}


def of_peers(cases: Numbers, python: Path) -> Numbers:
    """What SkyRL and TRL say; names are `function/aspect@oracle`."""
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        asked, answered = Path(folder, "cases.npz"), Path(folder, "answers.npz")
        np.savez(asked, **cases)
        subprocess.run([python, HERE / "peers" / "oracle_worker.py", asked, answered], check=True)
        with np.load(answered) as file:
            return {name: file[name] for name in file.files}


def compare(count: int, peers_python: Path) -> list[dict[str, Any]]:
    """A row for each function and oracle."""
    cases = make_cases(count)
    say(f"{count} cases by mcprl")
    ours = case_by_case(cases, of_mcprl)
    say("by plain Python")
    theirs = {f"{name}@{PLAIN_PYTHON}": found for name, found in case_by_case(cases, of_plain_python).items()}
    say(f"by SkyRL and TRL in {peers_python}")
    theirs |= of_peers(cases, peers_python)
    differences: dict[tuple[str, str], float] = defaultdict(float)
    compared: set[str] = set()
    for name, found in theirs.items():
        aspect, oracle = name.split("@")
        if ours[aspect].shape != found.shape:
            raise ValueError(f"{aspect} has shape {ours[aspect].shape}, and {found.shape} by {oracle}")
        row = (aspect.split("/")[0], oracle)
        difference = float(np.abs(ours[aspect] - found).max())
        # Not max: it would let a NaN pass.
        differences[row] = difference if not difference <= differences[row] else differences[row]
        compared.add(aspect)
    if unseen := sorted(set(ours) - compared):
        raise ValueError(f"no oracle was asked about {', '.join(unseen)}")
    return [
        {"function": function, "oracle": oracle, "cases": count, "largest_difference": difference}
        for (function, oracle), difference in sorted(differences.items())
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each set of oracles: the functions that were compared with them, and their largest difference."""
    functions: dict[str, list[str]] = {}
    worst: dict[str, float] = {}
    for written, group in groupby(rows, key=lambda row: row["function"]):
        found = list(group)
        name, _, way = written.partition(", ")
        oracles = ", ".join(row["oracle"].split(" `")[0] for row in found)
        functions.setdefault(oracles, []).append(f"`{name}`{f' ({way})' if way else ''}")
        worst[oracles] = max(worst.get(oracles, 0.0), *(row["largest_difference"] for row in found))
    lines = [f"{rows[0]['cases']:,} cases each.", "", "| oracles | functions | largest difference |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {name} | {', '.join(found)} | {worst[name]:.1e} |" for name, found in functions.items())]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help=f"the small size, for every change: {CI_CASES:,} cases")
    parser.add_argument("--cases", type=int, help=f"another size; without --ci it is {ALL_CASES:,}")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=HERE.parent / ".venv-peers" / "bin" / "python",
        help="of the environment that has SkyRL and TRL",
    )
    parser.add_argument("--table", type=Path, help="file for the table")
    parser.add_argument("--write", type=Path, help="page whose table is made anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = compare(arguments.cases or (CI_CASES if arguments.ci else ALL_CASES), arguments.peers_python)
    if arguments.table:
        arguments.table.write_text(table(rows) + "\n")
    if arguments.write:
        write_between_markers(arguments.write, "oracles", table(rows))
    wrong = [row for row in rows if not row["largest_difference"] <= BAR]
    for row in wrong:
        say(f"MISSED: {row['function']} differs from {row['oracle']} by {row['largest_difference']:.1e}")
    # The bar names no function: a difference that is no number is the worst of all.
    differences = [row["largest_difference"] for row in rows]
    worst = float("nan") if any(d != d for d in differences) else max(differences)
    print(json.dumps({"functions": rows, "worst": worst}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
