"""A new project: an MCP server, tasks, a recipe and a test, copied from `template/`.

The files in `template/` run as they are. They are checked like all code of mcprl, and are never imported.
"""

from __future__ import annotations

import json
import os
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
    "FILES_FOR_SERVERS",
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
    ".gitignore": "files that git ignores",
}
"""The files of a project, each with its purpose."""

FILES_FOR_SERVERS: Mapping[str, str] = {
    "recipe.yaml": "the run: model, tasks, servers, settings",
    "hints.yaml": "argument values that no tool returns; empty at first",
    "README.md": "the commands, from tasks to an adapter",
    ".gitignore": "files that git ignores",
}
"""The files of a project that trains on the user's own servers."""

# A file named .gitignore would apply to this repository, and to the content of the wheel.
_NAMES_IN_TEMPLATE = {".gitignore": "gitignore"}
_DEFAULT_NAME = "stock"
_NAME_LINE = f"name: {_DEFAULT_NAME}                 #"
_MODEL_LINE = f"  path: {DEFAULT_MODEL}     #"
_THINKING_LINE = "  thinking: false "
_RENDERER = "  renderer: auto "
# Qwen3-0.6B or Qwen3-30B-A3B. Models with a suffix always think or never do.
_THINKS_UNLESS_TOLD = re.compile(r"qwen3-[0-9.]+b(-a[0-9]+b)?", re.IGNORECASE)
_HEAD_FOR_SERVERS = """\
# A small model learns to use your MCP servers, from tasks that `mcprl tasks synthesize` makes. `mcprl config explain`
# lists all settings; any of them can be changed for one run: mcprl train recipe.yaml --set training.steps=3"""
_LEFT_OUT = "# left out"
# Results of unknown servers are longer than those of the template's, and each task has its own limit of turns.
_LINES_FOR_SERVERS = {
    "  context_tokens: 2048": "  context_tokens: 6144",
    "  file: servers.json": "  file: {servers}  # settings.SERVER.isolation: per_episode, if tasks write to SERVER",
    "  max_tokens: 96": "  max_tokens: 192",
    "  max_turns: {easy: 3, medium: 5}": _LEFT_OUT,
    "  steps: 30": "  steps: 100",
}
_REWARDS_FOR_SERVERS = """
rewards: {answer: 2.0, state: 1.0, calls: 0.25, arguments: 0.25, efficiency: 0.0}   # the tasks were verified with these
"""
_HINTS = """\
# Argument values that no tool returns. The end of tasks/report.md lists the missing ones.
values: {}          # city: [Lima, Lagos]        or for one tool: find_person.name: [Ana, Bola]
settings: {}        # SERVER: {rate: {calls: 5, per_s: 1}, read_only: [TOOL]}
"""
_README_FOR_SERVERS = """\
# {name}: train a model to use your servers

```bash
{commands}
```

`tasks/report.md` shows how many calls of each tool worked, and the values to add to `hints.yaml`. Copy the server
settings in `hints.yaml`, if there are any, to `servers.settings` in `recipe.yaml`.

A tool that its server does not declare read-only is called only with `--allow-writes SERVER`; in `recipe.yaml`, such a
server needs `isolation: per_episode`. `--calibrate recipe.yaml` keeps only the tasks that the model sometimes solves.
"""
_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project that was written.

    Project(folder=Path("shop"), name="shop", model="Qwen/Qwen3-0.6B", renderer="auto", files=FILES)
    """

    folder: Path
    name: str
    model: str
    renderer: str
    files: Mapping[str, str]
    servers: Path | None = None

    def next_steps(self) -> tuple[tuple[str, str], ...]:
        """Return the next commands to run, in this order, each with its purpose."""
        here = self.folder.absolute() == Path.cwd()
        first = ("python -m unittest", "runs the solution of every task, without a model")
        if self.servers is not None:
            where = shlex.quote(os.path.relpath(self.servers, self.folder))
            first = (
                f"mcprl tasks synthesize --servers {where} --hints hints.yaml --out tasks",
                "makes tasks; asks before it calls a tool",
            )
        return (
            *(() if here else ((f"cd {shlex.quote(str(self.folder))}", ""),)),
            first,
            ("mcprl doctor recipe.yaml", "checks everything before training; --fast: without the model"),
            ("mcprl play --recipe recipe.yaml", "lets you solve a task yourself"),
            ("mcprl train recipe.yaml", f"trains an adapter, outputs/{self.name}/adapter"),
            ("mcprl dashboard", "shows the run in a browser, even during training"),
            (
                f"mcprl eval recipe.yaml --adapter outputs/{self.name}/adapter",
                "evaluates the adapter on the validation tasks",
            ),
        )


def write_project(folder: Path, model: str = DEFAULT_MODEL, servers: Path | None = None) -> Project:
    """Write all files into a folder that is new or empty. The run gets the name of the folder.

    `model` is a folder or a Hugging Face name. With `servers`, an mcpServers file, the project trains on its servers.

    Raises a BadValueError, and writes nothing, if the folder is not empty or there is no such model.
    """
    (location, renderer), name = locate_model(model), run_name(folder)
    texts = {file: (TEMPLATE / _NAMES_IN_TEMPLATE.get(file, file)).read_text(encoding="utf-8") for file in FILES}
    texts["recipe.yaml"] = with_model(texts["recipe.yaml"], name, location, renderer)
    texts["README.md"] = texts["README.md"].replace(f"outputs/{_DEFAULT_NAME}", f"outputs/{name}")
    files = FILES if servers is None else FILES_FOR_SERVERS
    project = Project(folder=folder, name=name, model=location, renderer=renderer, files=files, servers=servers)
    if servers is not None:
        _require_servers(servers)
        recipe = _for_servers(texts["recipe.yaml"], os.path.relpath(servers, folder))
        commands = "\n".join(line for line, _ in project.next_steps() if not line.startswith("cd "))
        readme = _README_FOR_SERVERS.format(name=name, commands=commands)
        texts = {"recipe.yaml": recipe, "hints.yaml": _HINTS, "README.md": readme, ".gitignore": texts[".gitignore"]}
    try:
        require_empty(folder)
        for file, text in texts.items():
            _write(folder / file, text)
    except OSError as error:
        raise BadValueError(
            f"cannot write the project to {folder}: {error.strerror}",
            fix="choose a folder that you can create and write to",
        ) from error
    return project


def _require_servers(servers: Path) -> None:
    from mcprl.tools import load_server_specs

    load_server_specs(servers, {})


def _for_servers(recipe: str, servers: str) -> str:
    """Return the template's recipe, changed to train on tasks synthesized for other servers."""
    lines = recipe.splitlines()
    body = lines[next(number for number, line in enumerate(lines) if line.startswith("name:")) :]
    changed = [_LINES_FOR_SERVERS.get(line.split("#")[0].rstrip(), line) for line in body]
    changed = [line.replace("{servers}", _in_yaml(servers)) for line in changed if line != _LEFT_OUT]
    return "\n".join([_HEAD_FOR_SERVERS, *changed, _REWARDS_FOR_SERVERS])


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
            f"--model is {model!r}, which does not exist", fix="correct the path, or use a Hugging Face name"
        )
    return model, "auto"


def with_model(recipe: str, name: str, model: str, renderer: str) -> str:
    """Return the template's recipe with another run name and model."""
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
