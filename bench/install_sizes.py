"""How much disk an install takes: the base, and each extra on top of it.

Sizes are those that installers wrote down: the sum over the RECORD of every distribution that the requirements of
pyproject.toml reach, and the files of mcprl and of those of its own packages that an extra installs. Not counted are
Python, pip, and compiled byte code. The distributions are those of the environment that runs this script; nothing is
downloaded. So torch is the build that is installed: a CUDA build is larger. What an extra asks for and the environment
lacks is named, and the size of that extra is then a lower bound (`incomplete`).

`base_mb` is the base install and `NAME_mb` what an extra adds to it, in millions of bytes. `--against PYTHON` also sums
up a clean environment with the base install, named by its interpreter: `clean_mb`.

    python bench/install_sizes.py [--ci] [--against PYTHON]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from dependency_closure import Closure, closure, package_folder, requirements, user_extras

MB = 1e6
MAX_BASE_MB = 300
SHOWN = 3
# Run by another interpreter, which may not have mcprl's requirements to import anything with.
SUM_ALL = """
import json
from importlib import metadata
sizes = {}
for d in metadata.distributions():
    files = [f for f in d.files or [] if f.suffix != ".pyc"]
    sizes[d.metadata["Name"].lower()] = sum(f.size or 0 for f in files)
print(json.dumps(sizes))
"""


def size_bytes(distribution: metadata.Distribution) -> int:
    """What the RECORD of a distribution says of its files; compiled byte code is the installer's own doing."""
    return sum(file.size or 0 for file in distribution.files or [] if file.suffix != ".pyc")


def package_bytes(name: str) -> int:
    """A package of mcprl's own, as its wheel has it: here it is installed editable, without a RECORD of its files."""
    source = package_folder(name) / "src" / name.replace("-", "_")
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")


def sizes_mb(part: Closure, without: Closure | None = None) -> dict[str, float]:
    """Megabytes by distribution, the heaviest first, leaving out what another closure has already."""
    known = without.found if without else {}
    sizes = {name: size_bytes(found) / MB for name, found in part.found.items() if name not in known}
    sizes |= {name: package_bytes(name) / MB for name in part.own}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def heaviest(sizes: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in list(sizes.items())[:SHOWN])


def print_row(name: str, total: float, sizes: dict[str, float], missing: frozenset[str]) -> None:
    lacking = f"; not installed here: {', '.join(sorted(missing))}" if missing else ""
    shown = "not known" if missing and not sizes else f"at least {total:.1f}" if missing else f"{total:.1f}"
    print(f"| {name} | {len(sizes)} | {shown} | {(heaviest(sizes) + lacking).removeprefix('; ')} |")


def clean_mb(python: str) -> float:
    """The sum over everything that another environment holds."""
    result = subprocess.run([python, "-I", "-c", SUM_ALL], capture_output=True, text=True, check=True)
    return sum(json.loads(result.stdout).values()) / MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the same: it takes seconds")
    parser.add_argument(
        "--against", metavar="PYTHON", help="a clean environment with the base install, to compare with"
    )
    options = parser.parse_args()
    base = closure(requirements())
    figures: dict[str, object] = {}
    incomplete: list[str] = []
    print("| install | packages | MB | heaviest |\n|---|---|---|---|")
    sizes = sizes_mb(base) | {"mcprl": package_bytes("mcprl") / MB}
    sizes = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    figures["base_mb"] = round(sum(sizes.values()), 1)
    print_row("base", sum(sizes.values()), sizes, base.missing)
    for extra in user_extras():
        part = closure(requirements(extra))
        sizes = sizes_mb(part, without=base)
        figures[f"{extra}_mb"] = round(sum(sizes.values()), 1)
        if part.missing:
            incomplete.append(extra)
        print_row(f"`{extra}`", sum(sizes.values()), sizes, part.missing)
    figures["incomplete"] = incomplete
    if options.against:
        figures["clean_mb"] = round(clean_mb(options.against), 1)
    print(json.dumps(figures), flush=True)
    return 1 if base.missing or float(str(figures["base_mb"])) > MAX_BASE_MB else 0


if __name__ == "__main__":
    raise SystemExit(main())
