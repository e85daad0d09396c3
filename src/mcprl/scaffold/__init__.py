"""A new project: an MCP server, tasks, a recipe and a test, copied from `template/`.

The files in `template/` run as they are. They are checked like all code of mcprl, and are never imported.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from mcprl.errors import BadValueError
from mcprl.samplers.model_folder import renderer_of

__all__ = [
    "DEFAULT_MODEL",
    "FILES",
    "TEMPLATE",
    "Project",
    "locate_model",
    "require_empty",
    "run_name",
    "with_model",
    "write_project",
]


TEMPLATE = Path(__file__).parent / "template"

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""The model of the template's own recipe."""

FILES: Mapping[str, str] = {
    "server.py": "an MCP server with three tools and separate state per episode",
    "servers.json": "the list of servers; add your own to it",
    "make_tasks.py": "writes the task files",
    "tasks/train.jsonl": "12 training tasks, each with its solution",
    "tasks/validation.jsonl": "4 tasks for evaluation",
    "recipe.yaml": "the run: model, tasks, servers, settings",
    "test_project.py": "runs the solutions of all tasks, without a model",
    "README.md": "next steps, and how to adapt the project",
    ".gitignore": "what git ignores",
}
"""The files of a project, each with its purpose."""

# A file named .gitignore would apply to this repository, and to the content of the wheel.
_NAMES_IN_TEMPLATE = {".gitignore": "gitignore"}
_DEFAULT_NAME = "stock"
_NAME_LINE = f"name: {_DEFAULT_NAME}                 #"
_MODEL_LINE = f"  path: {DEFAULT_MODEL}     #"
_THINKING_LINE = "  thinking: false "
_RENDERER = "  renderer: auto "
# Qwen3-0.6B or Qwen3-30B-A3B. Models with a suffix always think or never do.
_THINKS_UNLESS_TOLD = re.compile(r"qwen3-[0-9.]+b(-a[0-9]+b)?", re.IGNORECASE)
_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project that was written.

    Project(folder=Path("shop"), name="shop", model="Qwen/Qwen3-0.6B", renderer="auto")
    """

    folder: Path
    name: str
    model: str
    renderer: str

    def next_steps(self) -> tuple[tuple[str, str], ...]:
        """Return the next commands to run, in this order, each with its purpose."""
        here = self.folder.absolute() == Path.cwd()
        return (
            *(() if here else ((f"cd {shlex.quote(str(self.folder))}", ""),)),
            ("python -m unittest", "runs the solution of every task, without a model"),
            ("mcprl doctor recipe.yaml", "checks everything before training; --fast: without the model"),
            ("mcprl play --recipe recipe.yaml", "lets you solve a task yourself"),
            ("mcprl train recipe.yaml", f"trains an adapter, outputs/{self.name}/adapter"),
            ("mcprl dashboard", "shows the run in a browser, even during training"),
            (
                f"mcprl eval recipe.yaml --adapter outputs/{self.name}/adapter",
                "evaluates the adapter on the validation tasks",
            ),
        )


def write_project(folder: Path, model: str = DEFAULT_MODEL) -> Project:
    """Write all files into a folder that is new or empty. The run gets the name of the folder.

    `model` is a folder, or a name on the hub.

    Raises a BadValueError, and writes nothing, if the folder is not empty or there is no such model.
    """
    (location, renderer), name = locate_model(model), run_name(folder)
    texts = {file: (TEMPLATE / _NAMES_IN_TEMPLATE.get(file, file)).read_text(encoding="utf-8") for file in FILES}
    texts["recipe.yaml"] = with_model(texts["recipe.yaml"], name, location, renderer)
    texts["README.md"] = texts["README.md"].replace(f"outputs/{_DEFAULT_NAME}", f"outputs/{name}")
    try:
        require_empty(folder)
        for file, text in texts.items():
            _write(folder / file, text)
    except OSError as error:
        raise BadValueError(
            f"cannot write the project to {folder}: {error.strerror}",
            fix="choose a folder that you can create and write to",
        ) from error
    return Project(folder=folder, name=name, model=location, renderer=renderer)


def require_empty(folder: Path) -> None:
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if held:
        shown = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        raise BadValueError(
            f"{folder} is not empty: it contains {shown}", fix="choose a new or empty folder; nothing was written"
        )


def run_name(folder: Path) -> str:
    """Return the folder's name, reduced to the characters that a run's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("._-") or _DEFAULT_NAME


def _in_yaml(text: str) -> str:
    # Any JSON string is a valid YAML string. Plain `no` and `null` are not strings in YAML.
    return text if _PLAIN_YAML.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def locate_model(model: str) -> tuple[str, str]:
    """Return model.path and model.renderer: a hub name unchanged, or the absolute path of a folder."""
    if Path(model).is_dir():
        return str(Path(model).absolute()), renderer_of(Path(model)) or "auto"
    if not model.strip() or model.startswith((".", "/", "~")):
        raise BadValueError(
            f"--model is {model!r}, which does not exist", fix="correct the path, or use a name on the hub"
        )
    return model, "auto"


def with_model(recipe: str, name: str, model: str, renderer: str) -> str:
    """Return the template's recipe, changed to another run name and model."""
    recipe = recipe.replace(_NAME_LINE, f"name: {_in_yaml(name)}  #").replace(
        f"outputs/{_DEFAULT_NAME}", f"outputs/{name}"
    )
    if model == DEFAULT_MODEL:
        return recipe
    lines = recipe.replace(_MODEL_LINE, f"  path: {_in_yaml(model)}  #").splitlines()
    lines = [line.replace(_RENDERER, f"  renderer: {renderer} ") for line in lines]
    thinks = _THINKS_UNLESS_TOLD.fullmatch(Path(model).name) if renderer == "auto" else renderer == "qwen3"
    if not thinks or (renderer == "auto" and model.startswith("/")):
        # Renderers without a switch for thinking refuse this setting.
        lines = [line for line in lines if not line.startswith(_THINKING_LINE)]
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if text.startswith("#!"):  # servers.json starts this file as a program
        path.chmod(path.stat().st_mode | 0o111)
