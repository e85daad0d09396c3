"""What an install of mcprl brings with it: the distributions that its requirements reach, read from the metadata of the
environment that runs this. Nothing is downloaded.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NOT_FOR_USERS = {"docs", "dev"}


@dataclass(frozen=True)
class Closure:
    """Installed distributions by name, the names that are asked for and not installed here, and mcprl's own packages.

    Closure(found={"numpy": …}, missing=frozenset({"ray"}), own=frozenset({"mcprl-market"}))
    """

    found: dict[str, metadata.Distribution]
    missing: frozenset[str]
    own: frozenset[str]


def project(name: str = "mcprl") -> dict[str, Any]:
    """The table `project` of one of this repository's packages: of mcprl, or of mcprl-market and the like."""
    file = package_folder(name) / "pyproject.toml"
    return tomllib.loads(file.read_text())["project"]


def package_folder(name: str) -> Path:
    """Where a package of this repository is: mcprl at its root, mcprl-market in packages/market."""
    return ROOT if name == "mcprl" else ROOT / "packages" / name.removeprefix("mcprl-")


def requirements(extra: str = "") -> list[str]:
    """What pyproject.toml asks for: of the base install, or of one extra on top of it."""
    return project()["optional-dependencies"][extra] if extra else project()["dependencies"]


def user_extras() -> list[str]:
    """The extras that are meant for those who use mcprl."""
    return [name for name in project()["optional-dependencies"] if name not in NOT_FOR_USERS]


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def closure(texts: list[str]) -> Closure:
    """All that these requirements reach. mcprl's own extras and packages are followed into their pyproject.toml."""
    found: dict[str, metadata.Distribution] = {}
    missing: set[str] = set()
    own: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(text) for text in texts]
    while todo:
        requirement = todo.pop()
        name, extras = str(canonicalize_name(requirement.name)), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "mcprl":
            todo += [Requirement(text) for extra in extras for text in requirements(extra)]
            continue
        if name.startswith("mcprl-"):
            own.add(name)
            todo += [Requirement(text) for text in project(name)["dependencies"]]
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        found[name] = distribution
        wanted = [Requirement(text) for text in distribution.requires or []]
        todo += [each for each in wanted if applies(each, extras)]
    return Closure(found, frozenset(missing), frozenset(own))
