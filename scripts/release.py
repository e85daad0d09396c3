"""What a release needs: interfaces that are frozen, packages that were tried, licences that are known, an SBOM.

    scripts/release freeze      write down the public names and the options of the commands
    scripts/release build       the sdists and the wheels of mcprl and of packages/, into dist/
    scripts/release check       build them, look into them, try the wheels on each Python that is found, and see that
                                every figure of full size is one of this code
    scripts/release licences    hold the licences of all dependencies against scripts/licences.toml
    scripts/release sbom        write dist/mcprl-VERSION.cdx.json: what a clean install holds
    scripts/release audit       ask PyPI's advisories about every pinned dependency

The last line of `check`, `licences` and `audit` is one JSON object. CONTRIBUTING.md says when to use which.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from figures import Sources, missed, out_of_date, read_figures
from promises import read_promises
from public_api import texts
from release_licences import check_licences
from release_packages import (
    PYTHONS,
    ROOT,
    all_trials,
    base_trials,
    build,
    clean_environment,
    content_faults,
    find_python,
    python_version,
    readme_faults,
    run,
    say,
    tool,
    try_wheel,
    version,
)

DIST = ROOT / "dist"
PINS = ROOT / "requirements/constraints.txt"
ADVISORIES = "https://pypi.org/pypi/NAME/VERSION/json"


def freeze() -> int:
    for path, text in texts().items():
        path.write_text(text())
        print(path.relative_to(ROOT))
    return 0


def figure_faults(root: Path = ROOT) -> list[str]:
    """What keeps the figures of full size (bench/figures.json) from being those of this code."""
    promises, figures = read_promises(root / "promises.toml"), read_figures(root)
    faults: list[str] = []
    stale = out_of_date(promises, figures, Sources(root))
    if stale:
        faults.append(f"{listed(stale)} Fix: scripts/promises --full --stale")
    wrong = {name: reason for name, reason in missed(promises, figures).items() if name not in stale}
    if wrong:
        faults.append(f"{listed(wrong)} Fix: what is slow or wrong, then scripts/promises --full {' '.join(wrong)}")
    return faults


def listed(figures: Mapping[str, str]) -> str:
    lines = "".join(f"\n  {name}: {reason}" for name, reason in figures.items())
    return f"{len(figures)} figures of full size are not fit for a release:{lines}\n "


def build_packages() -> int:
    """A version that is not in development is not built without its figures. Others may be built at any time."""
    number, faults = version(), figure_faults()
    for fault in faults:
        say(fault)
    if faults and ".dev" not in number:
        raise SystemExit(f"{number} is not built: see above.")
    for package in build(DIST):
        for archive in (package.sdist, package.wheel):
            print(f"{archive.relative_to(ROOT)}  {archive.stat().st_size / 1e6:.2f} MB")
    return 0


def check(pythons: list[str], every: bool) -> int:
    """Build, look inside, try. A fault does not keep the rest from being looked at."""
    number = version()
    packages = build(DIST)
    faults = [fault for package in packages for fault in content_faults(package)]
    faults += readme_faults(packages) + figure_faults()
    for package in packages:
        for archive in (package.sdist, package.wheel):
            say(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB")
    tried: list[str] = []
    not_found: list[str] = []
    for minor in pythons:
        python = find_python(minor)
        if python is None:
            not_found.append(minor)
            say(f"Python {minor}: not found, not tried")
            continue
        exact = python_version(python)
        say(f"Python {exact}: clean environments, with mcprl alone and with all packages")
        base = clean_environment(python, "base", packages[:1])
        found = try_wheel(base, base_trials(number))
        found += try_wheel(clean_environment(python, "all", packages), all_trials(number))
        faults += [f"Python {exact}: {fault}" for fault in found]
        tried.append(exact)
    if not tried or (every and not_found):
        faults.append(f"not tried on Python {', '.join(not_found)}. Fix: install it, or put it on PATH")
    for fault in faults:
        say(f"FAULT: {fault}")
    print(json.dumps({"version": number, "faults": len(faults), "tried": tried, "not_found": not_found}))
    return 1 if faults else 0


def licences() -> int:
    verdicts, missing = check_licences()
    for verdict in verdicts:
        if verdict.reason:
            print(f"exception  {verdict.package}: {verdict.licence}. {verdict.reason}")
    bad = [verdict for verdict in verdicts if verdict.problem]
    for verdict in bad:
        print(f"REFUSED    {verdict.package}: {verdict.licence or '?'} {verdict.problem}")
    if bad:
        print("Fix: do without the package, or read its licence and add it to scripts/licences.toml with the reason.")
    if missing:
        print(f"Not installed here, and not looked at: {', '.join(sorted(missing))}")
    exceptions = sum(1 for verdict in verdicts if verdict.reason)
    counts = {"packages": len(verdicts), "refused": len(bad), "exceptions": exceptions, "missing": sorted(missing)}
    print(json.dumps(counts))
    return 1 if bad else 0


def sbom(extras: str) -> int:
    """From an environment that holds the wheels and nothing else, so that no tool of ours is listed."""
    number = version()
    packages = build(DIST)
    python = find_python(PYTHONS[0])
    if python is None:
        raise SystemExit(f"no Python {PYTHONS[0]}. Fix: install it, or put it on PATH.")
    environment = clean_environment(python, "sbom", packages[:1], extras)
    file = DIST / f"mcprl-{number}{'-' + extras.replace(',', '-') if extras else ''}.cdx.json"
    command = [tool("cyclonedx-py"), "environment", str(environment / "bin/python"), "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON", "--validate", "-o", str(file)]
    run(command, "see above")
    components = json.loads(file.read_text())["components"]
    print(f"{file.relative_to(ROOT)}  {len(components)} components")
    return 0


def audit() -> int:
    """Fails where a dependency has a known fault, and where one could not be asked about: silence is no pass."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("".join(line + "\n" for line in PINS.read_text().splitlines() if "==" in line))
        command = [tool("pip-audit"), "-r", str(pins), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        result = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    if not result.stdout.strip():
        raise SystemExit(f"{result.stderr}\npip-audit says nothing (exit {result.returncode}). Fix: see above.")
    packages = json.loads(result.stdout)["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    faulty = [package for package in packages if package.get("vulns")]
    for package in faulty:
        for fault in package["vulns"]:
            mended = ", ".join(fault["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {fault['id']}, mended in {mended}")
    if skipped:
        print(
            f"{len(skipped)} of {len(packages)} packages could not be asked about, such as {skipped[0]}: this machine"
            f" does not reach {ADVISORIES}. Fix: run it where that can be reached."
        )
    print(json.dumps({"packages": len(packages), "faulty": len(faulty), "not_asked": len(skipped)}))
    return 1 if faulty or skipped else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("freeze", "build", "licences", "audit"):
        commands.add_parser(name)
    command = commands.add_parser("check")
    command.add_argument("--python", action="append", choices=PYTHONS, help="only this version; may be repeated")
    command.add_argument("--every", action="store_true", help="fail where one of the versions is not found")
    command = commands.add_parser("sbom")
    command.add_argument("--extras", default="", help="of an install with these, such as market,dashboard")
    options = parser.parse_args()
    if options.command == "check":
        return check(options.python or list(PYTHONS), options.every)
    if options.command == "sbom":
        return sbom(options.extras)
    return {"freeze": freeze, "build": build_packages, "licences": licences, "audit": audit}[options.command]()


if __name__ == "__main__":
    raise SystemExit(main())
