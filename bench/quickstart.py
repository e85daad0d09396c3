"""How long a newcomer takes: the commands of docs/quickstart.md, in an environment made of the built wheel.

The marked blocks of the page are run as they stand there, one after the other, the dashboard beside the training. The
model and the third-party server are there already: a newcomer fetches them once, at the speed of their network. So are
the packages, where this machine has installed them before.

  NAME_s                             seconds of each block, and of the installation
  minutes                            all of it
  success_before, success_after      of the evaluations
  reward_first, reward_last          of the training: means of its first and of its last two steps

    python bench/quickstart.py [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from newcomer.page import read_blocks
from newcomer.place import ROOT, build_wheels, make_place
from newcomer.walk import Walk, walk
from servers.harness import say

PAGE = ROOT / "docs" / "quickstart.md"
RUN = "outputs/hello-cpu"


def take(folder: Path) -> tuple[Walk, dict[str, Any]]:
    """Go through the quickstart in a new folder: what happened, and the figures of it."""
    started = time.monotonic()
    wheels = build_wheels(folder / "dist")
    built_s = time.monotonic() - started
    environment = make_place(folder, wheels)
    install_s = time.monotonic() - started - built_s
    say(f"install: {install_s:.0f} s")
    made = walk(read_blocks(PAGE), folder, environment)
    return made, {
        "install_s": round(install_s, 1),
        **{f"{name}_s": round(seconds, 1) for name, seconds in made.seconds.items()},
        "minutes": round((install_s + sum(made.seconds.values())) / 60, 2),
        **_figures(folder),
    }


def _figures(folder: Path) -> dict[str, Any]:
    rewards = [json.loads(line)["reward"] for line in (folder / RUN / "metrics.jsonl").read_text().splitlines()]
    success = {
        name: json.loads((folder / "outputs" / name / "results.json").read_text())["figures"]["success"]["value"]
        for name in ("before", "after")
    }
    return {
        "success_before": success["before"],
        "success_after": success["after"],
        "reward_first": round(fmean(rewards[:2]), 3),
        "reward_last": round(fmean(rewards[-2:]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for all of it, which stays")
    keep = parser.parse_args().keep
    if keep is not None:
        keep.mkdir(parents=True)
        print(json.dumps(take(keep.resolve())[1]))
        return
    with tempfile.TemporaryDirectory(prefix="mcprl-quickstart-") as folder:
        print(json.dumps(take(Path(folder))[1]))


if __name__ == "__main__":
    main()
