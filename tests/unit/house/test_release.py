"""scripts/release: what it refuses to ship. Whole packages are built and tried by `scripts/release check` itself."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

import release
import release_packages
from figures import Figure, Sources, write_figure
from promises import read_promises
from release_licences import check_licences, is_allowed, judge, said

ALLOWED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}
RULES = {
    "allowed": ["MIT"],
    "spellings": {"mit license": "MIT"},
    "exceptions": {"odd": {"says": "LGPL-2.1-only", "licence": "LGPL-2.1-only", "reason": "Not imported."}},
}


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only AND MIT OR Apache-2.0", True),
        ("GPL-3.0-only AND (MIT OR Apache-2.0)", False),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("MIT AND Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Other-exception", False),
        ("MIT Apache-2.0", False),
        ("(MIT", False),
        ("MIT AND", False),
        ("", False),
    ],
)
def test_an_expression_of_licences_is_read_as_spdx_means_it(expression, allowed):
    assert is_allowed(expression, ALLOWED) is allowed


@pytest.mark.parametrize(
    ("package", "says", "problem"),
    [
        ("good", "MIT", ""),
        ("good", "MIT License", ""),
        ("copyleft", "GPL-3.0-only", "is not among the allowed licences"),
        ("silent", "", "says nothing of its licence"),
        ("odd", "LGPL-2.1-only", ""),
        ("odd", "AGPL-3.0-only", "says 'AGPL-3.0-only', its exception is for 'LGPL-2.1-only'"),
    ],
)
def test_a_licence_that_nobody_has_looked_at_is_refused(package, says, problem):
    assert judge(package, says, RULES).problem == problem


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: MIT License"), ("License", "long text\n" * 40)], "MIT License"),
        ([("Classifier", "License :: OSI Approved"), ("License", "ISC")], "ISC"),
        (
            [("Classifier", "License :: OSI Approved :: MIT License"), ("License", "MIT OR Apache-2.0")],
            "MIT OR Apache-2.0",
        ),
        ([("License", "UNKNOWN")], ""),
        ([], ""),
    ],
)
def test_a_package_is_taken_at_its_most_exact_word(fields, expected):
    message = Message()
    for name, value in fields:
        message[name] = value
    assert said(SimpleNamespace(metadata=message)) == expected


def test_every_dependency_has_a_licence_that_is_allowed_or_excepted_with_a_reason(record_property):
    verdicts, _ = check_licences()
    record_property("packages", len(verdicts))
    refused = [f"{verdict.package}: {verdict.licence} {verdict.problem}" for verdict in verdicts if verdict.problem]
    record_property("refused_licences", len(refused))
    assert len(verdicts) > 40
    assert refused == []


@pytest.fixture
def packages(tmp_path: Path):
    """The faults of a package with three files, whose sdist and wheel have the names that are given."""
    names = ["mcprl_x/__init__.py", "mcprl_x/py.typed", "mcprl_x/static/index.html"]
    for name in names:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text("")

    def make(lost: str = "", more: str = "", licence: str = "mcprl_x-1.dist-info/licenses/LICENSE") -> list[str]:
        kept = [name for name in names if name != lost] + ([more] if more else [])
        with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as sdist:
            for name in kept:
                sdist.addfile(tarfile.TarInfo(f"mcprl_x-1/src/{name}"), io.BytesIO())
        with zipfile.ZipFile(tmp_path / "m.whl", "w") as wheel:
            for name in [*kept, licence]:
                wheel.writestr(name, "")
        made = release_packages.Package(tmp_path, tmp_path / "m.tar.gz", tmp_path / "m.whl")
        return release_packages.content_faults(made)

    return make


def test_whole_packages_have_no_fault(packages):
    assert packages() == []


def test_packages_without_the_pages_of_the_dashboard_are_refused(packages):
    lost = "mcprl_x/static/index.html"
    assert packages(lost=lost) == [
        f"m.tar.gz lacks 1 files, such as src/{lost}",
        f"m.whl lacks 1 files, such as {lost}",
    ]


def test_packages_with_a_file_of_keys_are_refused(packages):
    assert packages(more="mcprl_x/.env") == ["mcprl_x/.env is shipped", "src/mcprl_x/.env is shipped"]


def test_packages_without_a_licence_are_refused(packages):
    assert packages(licence="mcprl_x-1.dist-info/METADATA") == ["m.whl has no licence"]


def test_all_packages_of_the_repository_are_built():
    names = {release_packages.package_source(folder).name for folder in release_packages.folders()}
    own = ("agents", "dashboard", "market", "skyrl_gym", "suites", "synthesis")
    assert names == {"mcprl", *(f"mcprl_{name}" for name in own)}


@pytest.mark.parametrize(
    ("project", "faults"),
    [
        ({"version": "1.0", "dependencies": ["mcprl[chat]==1.0", "numpy>=2"]}, []),
        ({"version": "0.9", "dependencies": ["mcprl==1.0"]}, ["the version is 0.9"]),
        ({"version": "1.0", "dependencies": ["mcprl==0.9"]}, ["it asks for mcprl==0.9"]),
        (
            {"version": "1.0", "dependencies": [], "optional-dependencies": {"market": ["mcprl-market==0.9"]}},
            ["it asks for mcprl-market==0.9"],
        ),
    ],
)
def test_packages_of_another_version_are_refused(project, faults):
    assert release_packages.version_faults(project, "1.0") == faults


def test_the_version_is_the_same_wherever_it_stands():
    assert release_packages.version()


@pytest.mark.process
def test_a_python_that_is_only_a_name_on_path_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert release_packages.find_python("3.12") is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "status", "shown"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, '"faulty": 0'),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "not found on PyPI"}]}',
            1,
            "could not be asked about, such as a",
        ),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]}',
            1,
            "a 1: CVE-1, mended in 2",
        ),
    ],
)
def test_an_audit_that_could_not_ask_is_no_pass(tmp_path, monkeypatch, capsys, answer, status, shown):
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(release, "tool", lambda name: str(tmp_path / name))
    assert release.audit() == status
    assert shown in capsys.readouterr().out


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with a bench and the two promises that it keeps."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/quick.py").write_text("print(1)\n")
    fields = 'says = "Quick."\ncommand = "python bench/quick.py"\nsize = "full"\nfigure = "s"\nbar = "<= 1"\n'
    toml = "".join(f'[[promise]]\nid = "{name}"\n{fields}' for name in ("one", "two"))
    (tmp_path / "promises.toml").write_text(toml)
    return tmp_path


def measured(root: Path, name: str, value: float) -> None:
    (promise,) = [promise for promise in read_promises(root / "promises.toml") if promise.id == name]
    fields = {"figure": "s", "bar": "<= 1", "holds": value <= 1, "date": "2026-08-01", "commit": "abc1234"}
    write_figure(root, name, Figure(**fields, value=value, seconds=1.0, code=Sources(root).digest(promise)))


def test_figures_that_are_missing_stale_or_missed_are_named_with_what_to_do(repository: Path):
    measured(repository, "one", 0.5)
    (fault,) = release.figure_faults(repository)
    assert "release:\n  two: never measured\n" in fault
    assert fault.endswith("Fix: scripts/promises --full --stale")
    measured(repository, "two", 1.5)
    (fault,) = release.figure_faults(repository)
    assert "two: s was 1.5, its bar is <= 1" in fault
    assert fault.endswith("then scripts/promises --full two")
    measured(repository, "two", 0.5)
    assert release.figure_faults(repository) == []
    (repository / "bench/quick.py").write_text("print(2)\n")
    (fault,) = release.figure_faults(repository)
    assert "one: measured 2026-08-01 at abc1234, the code has changed since\n  two: measured" in fault


@pytest.mark.parametrize(("number", "built"), [("1.0.0", False), ("1.0.1.dev0", True)])
def test_a_version_is_not_built_without_its_figures_unless_it_is_in_development(
    tmp_path, monkeypatch, capsys, number, built
):
    package = tmp_path / "m.whl"
    package.write_text("")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "version", lambda: number)
    monkeypatch.setattr(release, "figure_faults", lambda: ["1 figures: one"])
    monkeypatch.setattr(release, "build", lambda _folder: [release_packages.Package(tmp_path, package, package)])
    if built:
        assert release.build_packages() == 0
    else:
        with pytest.raises(SystemExit, match=r"1\.0\.0 is not built"):
            release.build_packages()
    assert ("m.whl" in capsys.readouterr().out) is built


def test_a_version_without_its_figures_does_not_pass_the_check(tmp_path, monkeypatch, capsys):
    package = tmp_path / "m.whl"
    package.write_text("")
    monkeypatch.setattr(release, "build", lambda _folder: [release_packages.Package(tmp_path, package, package)])
    monkeypatch.setattr(release, "content_faults", lambda *_: [])
    monkeypatch.setattr(release, "readme_faults", lambda *_: [])
    monkeypatch.setattr(release, "clean_environment", lambda *_: tmp_path)
    monkeypatch.setattr(release, "try_wheel", lambda *_: [])
    monkeypatch.setattr(release, "find_python", lambda _minor: Path(sys.executable))
    monkeypatch.setattr(release, "python_version", lambda _python: "3.11.7")
    for faults, status in (([], 0), (["1 figures: one"], 1)):
        monkeypatch.setattr(release, "figure_faults", lambda faults=faults: faults)
        assert release.check(["3.11"], every=False) == status
        assert f'"faults": {len(faults)}' in capsys.readouterr().out
