"""Builds mcprl and the packages in packages/ for a release, looks into them, and tries them in clean environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache/release"
PAGES = ROOT / "packages/dashboard/src/mcprl_dashboard/static/index.html"
PYTHONS = ("3.11", "3.12", "3.13")
# An environment of their own: their dependencies are none of mcprl's. hatchling builds without asking an index again.
TOOLS = ("build==1.6.1", "hatchling==1.33.0", "twine==7.0.0", "cyclonedx-bom==7.5.0", "pip-audit==2.10.1")
NEVER_SHIPPED = re.compile(r"(^|/)(\.env|\.venv[^/]*|\.cache|node_modules|outputs|__pycache__)(/|$)")
TRY_S = 300
# What the trials find in their folder. `mcprl init project` writes the tasks of the first recipe.
FILES = {
    "recipe.yaml": """\
name: smoke
model: {path: ./model}
servers: {file: servers.json}
tasks: {train: project/tasks/train.jsonl}
""",
    "servers.json": """\
{"mcpServers": {"directory": {"command": "mcprl", "args": ["serve", "directory"]}}}
""",
    "market.yaml": """\
name: smoke
model: {path: ./model}
servers: {file: market.json}
tasks: {train: "mcprl:market/train.jsonl"}
""",
    "market.json": """\
{"mcpServers": {
  "directory": {"command": "mcprl", "args": ["serve", "directory"]},
  "fmp": {"command": "mcprl", "args": ["serve", "fmp", "--world", "7"]}
}}
""",
}
IMPORT = """
from importlib.resources import files
from importlib.util import find_spec
import mcprl
assert find_spec("torch") is None, "torch is installed: the base install is not the base"
assert find_spec("mcprl_market") is None, "mcprl_market is installed: the base install is not the base"
assert (files("mcprl") / "py.typed").is_file(), "no py.typed"
print("version", mcprl.__version__)
"""
IMPORT_ALL = """
from importlib.metadata import version
from pathlib import Path
import mcprl_dashboard, mcprl_market, mcprl_skyrl_gym, mcprl_suites.bfcl, mcprl_synthesis, mcprl_agents.runner
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
parts = ("agents", "dashboard", "market", "skyrl-gym", "suites", "synthesis")
names = ("mcprl", *(f"mcprl-{part}" for part in parts))
tasks = load_tasks(load_recipe(Path("market.yaml")).tasks.train)
print(*{version(name) for name in names}, "with", len(tasks), "tasks")
"""


@dataclass(frozen=True)
class Trial:
    """A command in a clean environment: its exit status, and what it has to print."""

    command: tuple[str, ...]
    status: int
    prints: str


@dataclass(frozen=True)
class Package:
    """A package that was built: the folder of its pyproject.toml, its sdist, and the wheel made from that."""

    folder: Path
    sdist: Path
    wheel: Path


def base_trials(version: str) -> list[Trial]:
    """What the base install promises: servers, tasks and recipes; and a name for what it lacks."""
    return [
        Trial(("python", "-c", IMPORT), 0, f"version {version}"),
        Trial(("mcprl", "--help"), 0, "Usage: mcprl"),
        Trial(("mcprl", "init", "project"), 0, "project"),
        Trial(("mcprl", "doctor", "project/recipe.yaml", "--fast"), 1, "call stock"),  # 1: names the engine it lacks
        Trial(("mcprl", "tools", "list", "recipe.yaml"), 0, "find_person"),
        Trial(("mcprl", "tools", "call", "recipe.yaml", "find_person", "name=Ana"), 0, "America/Lima"),
        Trial(("mcprl", "train", "recipe.yaml", "--dry-run"), 0, "name: smoke"),
        Trial(("mcprl", "train", "market.yaml", "--dry-run"), 2, "mcprl[market]"),
        Trial(("mcprl", "dashboard"), 2, "E-CONF-004"),
        Trial(("mcprl", "train", "recipe.yaml"), 2, "mcprl["),
        Trial(("mcprl", "try", "recipe.yaml"), 2, "mcprl["),
    ]


def all_trials(version: str) -> list[Trial]:
    """What all the packages together promise: their commands and servers are there."""
    return [
        Trial(("python", "-c", IMPORT_ALL), 0, f"{version} with 400 tasks"),
        Trial(("mcprl", "tools", "list", "market.yaml"), 0, "fmp_get_quote(symbol)"),
        Trial(("mcprl", "train", "market.yaml", "--dry-run"), 0, "name: smoke"),
        Trial(("mcprl", "dashboard", "--help"), 0, "Usage: mcprl dashboard"),
        Trial(("mcprl", "serve", "bfcl", "--help"), 0, "Usage: mcprl serve bfcl"),
        Trial(("mcprl", "tasks", "generate", "--help"), 0, "Usage: mcprl tasks generate"),
        Trial(("mcprl", "tasks", "synthesize", "--help"), 0, "Usage: mcprl tasks synthesize"),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], fix: str) -> str:
    """The output of a command; the release stops where it fails."""
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise SystemExit(f"{result.stdout}\n{' '.join(command)} failed (exit {result.returncode}). Fix: {fix}")
    return result.stdout


def folders() -> list[Path]:
    """The folders of all packages: mcprl's is the root."""
    return [ROOT, *(file.parent for file in sorted(ROOT.glob("packages/*/pyproject.toml")))]


def version() -> str:
    """The version of pyproject.toml, where every package says the same, and asks for the same of the others."""
    projects = {folder: tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in folders()}
    number = projects[ROOT]["version"]
    said = re.search(r'__version__ = "(.+)"', (ROOT / "src/mcprl/__init__.py").read_text())
    if said is None or said[1] != number:
        raise SystemExit(f"pyproject.toml says {number}, mcprl.__version__ another. Fix: make them one.")
    for folder, project in projects.items():
        if faults := version_faults(project, number):
            raise SystemExit(f"{folder.relative_to(ROOT)}/pyproject.toml: {', '.join(faults)}. Fix: {number} in all.")
    if "dev" not in number and f"## [{number}]" not in (ROOT / "CHANGELOG.md").read_text():
        raise SystemExit(f"CHANGELOG.md has no section [{number}]. Fix: write it.")
    return number


def version_faults(project: Mapping[str, Any], number: str) -> list[str]:
    """Where a package has another version than mcprl, or asks for another one of mcprl or of a package of its own."""
    faults = [] if project["version"] == number else [f"the version is {project['version']}"]
    extras = project.get("optional-dependencies", {}).values()
    asked = [*project["dependencies"], *(text for extra in extras for text in extra)]
    own = [text for text in asked if re.match(r"mcprl(-[a-z-]+)?(\[[a-z-]+\])?==", text)]
    return faults + [f"it asks for {text}" for text in own if text.split("==")[1] != number]


def tool(name: str) -> str:
    """The path of a program of the release tools, which are installed when one is first asked for."""
    folder = CACHE / "tools"
    stamp = folder / "asked-for.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        say(f"release tools: {', '.join(TOOLS)}")
        run([sys.executable, "-m", "venv", "--clear", str(folder)], "see above")
        run([str(folder / "bin/pip"), "install", "--quiet", *TOOLS], "reach a package index")
        stamp.write_text("\n".join(TOOLS))
    return str(folder / "bin" / name)


def build(folder: Path) -> list[Package]:
    """Of each package the sdist, and the wheel made from that sdist: whoever builds from source gets the same."""
    if not PAGES.is_file():
        raise SystemExit("the dashboard's pages are not built. Fix: scripts/setup dashboard.")
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("mcprl[-_]*.whl"), *folder.glob("mcprl[-_]*.tar.gz")]:
        old.unlink()
    made: list[Package] = []
    for project in folders():
        command = [tool("python"), "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
        run(command, "see above")
        name = package_source(project).name
        made.append(Package(project, next(folder.glob(f"{name}-*.tar.gz")), next(folder.glob(f"{name}-*.whl"))))
    return made


def package_source(project: Path) -> Path:
    """The one importable package of a project: src/mcprl, packages/market/src/mcprl_market."""
    (source,) = (path.parent for path in project.glob("src/*/__init__.py"))
    return source


def content_faults(package: Package) -> list[str]:
    """What is missing from the archives of a package, and what should not be in them."""
    with tarfile.open(package.sdist) as archive:
        in_sdist = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    with zipfile.ZipFile(package.wheel) as archive:
        in_wheel = set(archive.namelist())
    source = package_source(package.folder)
    files = {str(file.relative_to(source.parent)) for file in source.rglob("*") if file.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    lost = sorted(f"src/{name}" for name in wanted if f"src/{name}" not in in_sdist)
    found = [f"{package.sdist.name} lacks {len(lost)} files, such as {lost[0]}"] if lost else []
    lost = sorted(wanted - in_wheel)
    found += [f"{package.wheel.name} lacks {len(lost)} files, such as {lost[0]}"] if lost else []
    if not any(name.endswith("licenses/LICENSE") for name in in_wheel):
        found.append(f"{package.wheel.name} has no licence")
    return found + [f"{name} is shipped" for name in sorted(in_sdist | in_wheel) if NEVER_SHIPPED.search(name)]


def readme_faults(packages: Sequence[Package]) -> list[str]:
    """What keeps an index from showing the READMEs."""
    archives = [str(archive) for package in packages for archive in (package.sdist, package.wheel)]
    command = [tool("twine"), "check", "--strict", *archives]
    result = subprocess.run(command, capture_output=True, text=True)
    return [f"twine check: {result.stdout.strip()}"] if result.returncode else []


def find_python(minor: str) -> str | None:
    """An interpreter of this version that works: on PATH, or among those of pyenv, whose shims may lead nowhere."""
    candidates = [shutil.which(f"python{minor}")]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += [str(path) for path in sorted(root.glob(f"versions/{minor}.*/bin/python"), reverse=True)]
    for candidate in candidates:
        if candidate and python_version(candidate).startswith(f"{minor}."):
            return candidate
    return None


def python_version(python: str) -> str:
    """`3.12.1`; nothing where it does not start or has no venv."""
    code = "import platform, venv; print(platform.python_version())"
    result = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def clean_environment(python: str, name: str, packages: Sequence[Package], extras: str = "") -> Path:
    """A new environment with these packages, the first with its extras, and nothing else, not even pip."""
    folder = CACHE / f"clean-{python_version(python)}-{name}"
    run([python, "-m", "venv", "--clear", "--without-pip", str(folder)], "see above")
    pip = [tool("pip"), "--python", str(folder / "bin/python")]
    first, *others = [str(package.wheel) for package in packages]
    wanted = [f"{first}[{extras}]" if extras else first, *others]
    # An extra may ask for another of the packages that were built.
    links = ["--find-links", str(packages[0].wheel.parent)]
    run([*pip, "install", "--quiet", *links, *wanted], "reach a package index")
    run([*pip, "check"], "the requirements in pyproject.toml contradict each other")
    return folder


def try_wheel(environment: Path, expected: list[Trial]) -> list[str]:
    """Run each trial in a folder of its own, far from the repository; what failed, a sentence each."""
    faults: list[str] = []
    variables = {"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "HOME": str(Path.home()), "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(prefix="mcprl-release-") as place:
        for name, text in FILES.items():
            (Path(place) / name).write_text(text)
        for trial in expected:
            started = time.monotonic()
            shown = " ".join(word if "\n" not in word else "…" for word in trial.command)
            program = [str(environment / "bin" / trial.command[0]), *trial.command[1:]]
            result = subprocess.run(
                program,
                cwd=place,
                env=variables,
                capture_output=True,
                text=True,
                timeout=TRY_S,
                stdin=subprocess.DEVNULL,
            )
            printed = result.stdout + result.stderr
            good = result.returncode == trial.status and trial.prints in printed
            say(f"  {'ok' if good else 'FAILED':6} {shown} ({time.monotonic() - started:.1f} s)")
            if not good:
                last = printed.strip().splitlines()[-1:] or ["nothing"]
                faults.append(
                    f"`{shown}` ends with {result.returncode} (wanted: {trial.status}) and prints {last[0]!r}"
                    f" (wanted: {trial.prints!r})"
                )
    return faults
