"""The folder of an evaluation: results, reports for people, and every trajectory for the viewer.

outputs/eval-hello-cpu/
  results.json            everything, with a version of its schema
  report.md, report.html  the same for people
  trajectories.parquet    one row an episode
  logs/                   vLLM and the tool servers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcprl.durable import storage_faults, write_file
from mcprl.evaluation.comparing import Comparison, comparison_json
from mcprl.evaluation.harness import Played
from mcprl.evaluation.html import comparison_html, evaluation_html
from mcprl.evaluation.markdown import comparison_markdown, evaluation_markdown
from mcprl.evaluation.results import write_evaluation
from mcprl.training.trajectory_files import write_trajectories

__all__ = ["make_folder", "write_comparison", "write_report"]


def make_folder(outputs: Path, name: str, chosen: Path | None) -> Path:
    """A new folder: the one chosen, or `eval-NAME` in `outputs`, with a number where that is taken."""
    with storage_faults(f"making a folder for the evaluation {name}"):
        if chosen is not None:
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        outputs.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = outputs / (f"eval-{name}" if number == 1 else f"eval-{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return path


def write_report(folder: Path, played: Played, comparison: Comparison | None) -> None:
    """Write all files of an evaluation. The results come last: where they are, the rest is there too."""
    evaluation = played.evaluation
    extra: dict[str, Any] = {} if comparison is None else {"comparison": comparison_json(comparison)}
    write_trajectories(folder / "trajectories.parquet", played.trajectories)
    _write_pages(folder, evaluation_markdown(evaluation, comparison), evaluation_html(evaluation, comparison))
    write_evaluation(folder, evaluation, extra)


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write a comparison alone, where nothing was played."""
    _write_pages(folder, comparison_markdown(comparison), comparison_html(comparison))
    write_file(folder / "comparison.json", (json.dumps(comparison_json(comparison), indent=1) + "\n").encode())


def _write_pages(folder: Path, markdown: str, page: str) -> None:
    write_file(folder / "report.md", markdown.encode())
    write_file(folder / "report.html", page.encode())
