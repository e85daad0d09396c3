"""Builds the packages of a release, looks into them, and tries the wheel in clean environments."""

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache/release"
PAGES = ROOT / "src/mcprl/dashboard/static/index.html"
PYTHONS = ("3.11", "3.12", "3.13")
# An environment of their own: their dependencies are none of mcprl's. hatchling builds without asking an index again.
TOOLS = ("build==1.6.1", "hatchling==1.33.0", "twine==7.0.0", "cyclonedx-bom==7.5.0", "pip-audit==2.10.1")
NEVER_SHIPPED = re.compile(r"(^|/)(\.env|\.venv[^/]*|\.cache|node_modules|outputs|__pycache__)(/|$)")
TRY_S = 300
RECIPE = """\
name: smoke
model: {path: ./model}
servers: {file: servers.json}
tasks: {train: "mcprl:market/train.jsonl"}
"""
SERVERS = """\
{"mcpServers": {
  "directory": {"command": "mcprl", "args": ["serve", "directory"]},
  "fmp": {"command": "mcprl", "args": ["serve", "fmp", "--world", "7"]}
}}
"""
IMPORT = """
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
import mcprl
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
assert find_spec("torch") is None, "torch is installed: the base install is not the base"
assert (files("mcprl") / "py.typed").is_file(), "no py.typed"
tasks = load_tasks(load_recipe(Path("recipe.yaml")).tasks.train)
print(mcprl.__version__, "with", len(tasks), "tasks")
"""


@dataclass(frozen=True)
class Trial:
    """A command in a clean environment: its exit status, and what it has to print."""

    command: tuple[str, ...]
    status: int
    prints: str


def trials(version: str) -> list[Trial]:
    """What the base install promises: servers, tasks and recipes; and a name for what it lacks."""
    return [
        Trial(("python", "-c", IMPORT), 0, f"{version} with 400 tasks"),
        Trial(("mcprl", "--help"), 0, "Usage: mcprl"),
        Trial(("mcprl", "tools", "list", "recipe.yaml"), 0, "fmp_get_quote(symbol)"),
        Trial(("mcprl", "tools", "call", "recipe.yaml", "find_person", "name=Ana"), 0, "America/Lima"),
        Trial(("mcprl", "train", "recipe.yaml", "--dry-run"), 0, "name: smoke"),
        Trial(("mcprl", "dashboard"), 2, "mcprl[dashboard]"),
        Trial(("mcprl", "train", "recipe.yaml"), 2, "mcprl["),
        Trial(("mcprl", "try", "recipe.yaml"), 2, "mcprl["),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], fix: str) -> str:
    """The output of a command; the release stops where it fails."""
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise SystemExit(f"{result.stdout}\n{' '.join(command)} failed (exit {result.returncode}). Fix: {fix}")
    return result.stdout


def version() -> str:
    """The version of pyproject.toml, where the package says the same of itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = re.search(r'__version__ = "(.+)"', (ROOT / "src/mcprl/__init__.py").read_text())
    if said is None or said[1] != project["version"]:
        raise SystemExit(f"pyproject.toml says {project['version']}, mcprl.__version__ another. Fix: make them one.")
    if "dev" not in project["version"] and f"## [{project['version']}]" not in (ROOT / "CHANGELOG.md").read_text():
        raise SystemExit(f"CHANGELOG.md has no section [{project['version']}]. Fix: write it.")
    return project["version"]


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


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made from that sdist: whoever builds from source gets the same."""
    if not PAGES.is_file():
        raise SystemExit("the dashboard's pages are not built. Fix: scripts/setup dashboard.")
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("mcprl-*.whl"), *folder.glob("mcprl-*.tar.gz")]:
        old.unlink()
    command = [tool("python"), "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run(command, "see above")
    return next(folder.glob("mcprl-*.tar.gz")), next(folder.glob("mcprl-*.whl"))


def content_faults(sdist: Path, wheel: Path) -> list[str]:
    """What is missing from the packages, and what should not be in them."""
    with tarfile.open(sdist) as archive:
        in_sdist = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    package = ROOT / "src"
    files = {str(f.relative_to(package)) for f in (package / "mcprl").rglob("*") if f.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    lost = sorted(f"src/{name}" for name in wanted if f"src/{name}" not in in_sdist)
    found = [f"the sdist lacks {len(lost)} files, such as {lost[0]}"] if lost else []
    lost = sorted(wanted - in_wheel)
    found += [f"the wheel lacks {len(lost)} files, such as {lost[0]}"] if lost else []
    found += (
        [f"the wheel has no licence: {wheel.name}"] if not any(n.endswith("licenses/LICENSE") for n in in_wheel) else []
    )
    return found + [f"{name} is shipped" for name in sorted(in_sdist | in_wheel) if NEVER_SHIPPED.search(name)]


def readme_faults(sdist: Path, wheel: Path) -> list[str]:
    """What keeps an index from showing the README."""
    command = [tool("twine"), "check", "--strict", str(sdist), str(wheel)]
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


def clean_environment(python: str, wheel: Path, extras: str = "") -> Path:
    """A new environment with the wheel and nothing else, not even pip."""
    folder = CACHE / f"clean-{python_version(python)}{'-' + extras.replace(',', '-') if extras else ''}"
    run([python, "-m", "venv", "--clear", "--without-pip", str(folder)], "see above")
    pip = [tool("pip"), "--python", str(folder / "bin/python")]
    run([*pip, "install", "--quiet", f"{wheel}[{extras}]" if extras else str(wheel)], "reach a package index")
    run([*pip, "check"], "the requirements in pyproject.toml contradict each other")
    return folder


def try_wheel(environment: Path, expected: list[Trial]) -> list[str]:
    """Run each trial in a folder of its own, far from the repository; what failed, a sentence each."""
    faults: list[str] = []
    variables = {"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "HOME": str(Path.home()), "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(prefix="mcprl-release-") as place:
        (Path(place) / "recipe.yaml").write_text(RECIPE)
        (Path(place) / "servers.json").write_text(SERVERS)
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
