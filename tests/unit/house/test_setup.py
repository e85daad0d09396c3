"""The pins hold what pyproject.toml asks for, and scripts/setup knows its parts."""

from __future__ import annotations

import re
import subprocess
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_files import ROOT

INSTALLED_EXTRAS = ("chat", "torch", "vllm-cpu", "docs", "dev")
INSTALLED_APART = {"torch", "mcprl"}


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements/constraints.txt").read_text().splitlines()
    return {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines) if version
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


def test_setup_lists_its_parts_and_refuses_others():
    listed = subprocess.run([ROOT / "scripts/setup", "--list"], capture_output=True, text=True, timeout=60)
    assert re.findall(r"^\S+", listed.stdout, re.MULTILINE) == ["venv", "time-server", "models"]
    refused = subprocess.run([ROOT / "scripts/setup", "everything"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "there are: venv time-server models" in refused.stderr
