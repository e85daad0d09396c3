"""A place as a newcomer has it: the recipes, the model and a third-party server, and mcprl from its wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.version import Version

__all__ = ["ROOT", "build_wheels", "make_place"]

ROOT = Path(__file__).resolve().parents[2]
_UV = Path(sys.executable).with_name("uv")
_PINS = ROOT / "requirements" / "constraints.txt"
_BESIDE_PINS = ("torch", "triton")  # which come from elsewhere where there is a GPU


def build_wheels(folder: Path) -> list[Path]:
    """The wheels of this checkout that the hello recipe and the quickstart need: mcprl, and the dashboard."""
    for project in (ROOT, ROOT / "packages" / "dashboard"):
        _run([str(_UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(project)])
    return sorted(folder.glob("*.whl"))


def make_place(folder: Path, wheels: Sequence[Path]) -> dict[str, str]:
    """Install the wheels and what is pinned, nothing else; the variables of a shell in which that is active.

    Of the checkout there are the recipes, what `scripts/setup` fetched besides mcprl, and no source.
    """
    environment = folder / "environment"
    _run([str(_UV), "venv", "--quiet", "--python", sys.executable, str(environment)])
    install = [str(_UV), "pip", "install", "--quiet", "--no-deps", "--python", str(environment / "bin" / "python")]
    beside = [f"{name}=={Version(metadata.version(name)).public}" for name in _BESIDE_PINS]
    _run([*install, "-r", str(_PINS), *beside, *map(str, wheels)])
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "models").symlink_to(ROOT / ".cache" / "models")
    (folder / ".venv-time").symlink_to(ROOT / ".venv-time")
    # As in a shell of theirs: nothing that measures or traces, and mcprl's own programs first.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_", "PYTHON"))}
    return {**clean, "PATH": f"{environment / 'bin'}{os.pathsep}{clean['PATH']}", "VIRTUAL_ENV": str(environment)}


def _run(command: Sequence[str]) -> None:
    told = {"UV_SYSTEM_CERTS": "1"}
    if links := os.environ.get("PIP_FIND_LINKS"):
        told["UV_FIND_LINKS"] = links.replace(" ", ",")
    subprocess.run(command, check=True, env={**os.environ, **told})
