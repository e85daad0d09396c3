"""`mcprl export`: writes the result of a run into a folder for the Hub, with a model card."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mcprl.evaluation.results import Evaluation
    from mcprl.runs.past_runs import PastRun

__all__ = ["command", "model_card"]

_FOLDERS = re.compile(r"(?<![\w:/.])~?/(?:[^/\s\"']+/)*(?=[^/\s\"'])")  # of an absolute path, not of a URL
_ROWS = 10  # of the table of curves
_CURVES = {"reward": "reward", "success_rate": "success", "valid_call_rate": "valid calls", "kl": "KL per token"}
_DIGESTS = {"tasks": "tasks", "tools": "tools", "servers": "servers file", "model": "base model", "code": "own code"}


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="New folder for the result.", show_default=False)],
    base: Annotated[str, typer.Option("--base", help="Hub name of the base model, if model.path is a folder.")] = "",
    licence: Annotated[str, typer.Option("--license", help="License id, such as apache-2.0.")] = "other",
    merged: Annotated[bool, typer.Option("--merged", help="Merge the adapter into the base model.")] = False,
    evaluations: Annotated[
        list[Path] | None,
        typer.Option("--eval", exists=True, help="Evaluation to include in the model card. May be repeated."),
    ] = None,
) -> None:
    """Write the adapter or the model of a run into a new folder, with a model card, ready for `hf upload`.

    The card has settings, digests, curves and evaluations, but no absolute paths, keys or prompts from the recipe.
    """
    from mcprl.errors import BadValueError, NoRunError
    from mcprl.evaluation.results import read_evaluation
    from mcprl.files import storage_faults, write_file
    from mcprl.runs.past_runs import RunStatus, read_run
    from mcprl.secrets import SECRETS

    found = read_run(run)
    result = next((run / name for name in ("adapter", "model") if (run / name).is_dir()), None)
    if found.state is not RunStatus.FINISHED or result is None:
        raise NoRunError(f"{run} is {found.state.value} and has no final weights", fix=f"`mcprl resume {run}`")
    if not base and (Path(found.model).is_absolute() or Path(found.model).is_dir()):
        raise BadValueError(
            "the base model of the run is a folder on this machine", fix="give its Hub name with --base"
        )
    if out.exists():
        raise BadValueError(f"{out} already exists", fix="give a new folder")
    shown = [read_evaluation(path) for path in evaluations or ()]
    is_adapter = result.name == "adapter" and not merged
    card = model_card(found, base or found.model, licence, is_adapter=is_adapter, evaluations=shown)
    partial = out.with_name(f"{out.name}.partial")
    with storage_faults(f"writing {out}"):
        shutil.rmtree(partial, ignore_errors=True)
        if merged and result.name == "adapter":
            from mcprl.learning.models import merge_adapter

            merge_adapter(found.model, result, partial, dtype=str(found.config["model"]["dtype"]))
        else:
            shutil.copytree(result, partial, ignore=shutil.ignore_patterns("README.md"))
        for name, key in (("adapter_config.json", "base_model_name_or_path"), ("config.json", "_name_or_path")):
            if (file := partial / name).exists() and key in (fields := json.loads(file.read_bytes())):
                write_file(file, (json.dumps({**fields, key: base or found.model}, indent=2) + "\n").encode())
        write_file(partial / "README.md", SECRETS.redact(card).encode())
        partial.rename(out)
    print(f"{out} is ready. Read its README.md, then: hf upload ORG/NAME {out}")


def model_card(
    run: PastRun, base: str, licence: str, *, is_adapter: bool, evaluations: Sequence[Evaluation] = ()
) -> str:
    """Return the model card: how the model was trained, on what data, its learning curve and its evaluations."""
    metadata = {
        "base_model": base,
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "license": licence,
        "tags": ["mcprl", "reinforcement-learning", "tool-use", "mcp", *(["lora"] if is_adapter else [])],
    }
    what = "A LoRA adapter for" if is_adapter else "A model trained from"
    blocks = [
        "---\n" + "\n".join(f"{name}: {json.dumps(value)}" for name, value in metadata.items()) + "\n---",
        f"# {run.recipe}",
        f"{what} `{base}`, trained with reinforcement learning to use MCP tools, by "
        f"[mcprl](https://pypi.org/project/mcprl/): {run.steps_done} steps. License: {licence}"
        + (" (see the base model's license)." if licence == "other" else "."),
        "## Recipe",
        _table(("setting", "value"), ((name, _public(value)) for name, value in run.changed_settings().items())),
        "Settings that differ from mcprl's defaults. Paths are shortened to their last part.",
        "## Data",
        _table(("what", "digest (BLAKE2b)"), _digests(run)),
        "## Curves",
        _table(("steps done", *_CURVES.values()), _curves(run)),
    ]
    if evaluations:
        blocks += [
            "## Evaluation",
            _table(("model", "tasks of", "tasks", "success", "reward"), map(_scores, evaluations)),
        ]
    return "\n\n".join(blocks) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def _public(value: str) -> str:
    return f"`{' '.join(_FOLDERS.sub('', value).replace('`', ' ').split())}`"


def _digests(run: PastRun) -> list[tuple[str, str]]:
    path = run.path / "conditions.json"
    known: Mapping[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return [(what, f"`{known[name]}`" if known.get(name) else "not recorded") for name, what in _DIGESTS.items()]


def _curves(run: PastRun) -> list[tuple[str, ...]]:
    """Return a row for each of about ten steps, always including the first and the last."""
    by_metric = [dict(run.points(metric)) for metric in _CURVES]
    last = run.steps_done
    steps = sorted({1, last, *(round(last * part / _ROWS) for part in range(1, _ROWS))} & set(range(1, last + 1)))
    return [(str(step), *("–" if step not in m else f"{m[step]:.3g}" for m in by_metric)) for step in steps]


def _scores(evaluation: Evaluation) -> tuple[str, ...]:
    figures, success = evaluation.figures, evaluation.figures.success
    share = f"{success.value:.1%}"
    if success.low is not None and success.high is not None:
        share += f" ({success.low:.1%} to {success.high:.1%})"
    return (
        _public(evaluation.title),
        _public(evaluation.suite),
        str(figures.tasks),
        share,
        f"{figures.reward.value:.3f}",
    )
