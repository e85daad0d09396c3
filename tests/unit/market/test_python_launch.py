"""Without a working sandbox the server does not start; with one it shows only what it should."""
# R14, R25, R32

from __future__ import annotations

import logging
import platform
import sys
from pathlib import Path

import pytest
from python_programs import needs_bubblewrap, program, sandboxed

from mcprl.errors import ConfigurationError, MissingExtraError, SandboxMissingError
from mcprl_market.python import launch
from mcprl_market.python.launch import Kind, Launch, choose_launch, find_runtime
from mcprl_market.python.programs import Limits, Ran
from mcprl_market.python.sandbox import Sandbox
from mcprl_market.python.server import make_server


def fake_bubblewrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_bubblewrap_the_server_does_not_start_and_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissingError, match="bubblewrap is not installed") as refused:
        make_server(world=None)
    assert isinstance(refused.value, ConfigurationError)
    assert "apt-get install bubblewrap" in refused.value.fix


@pytest.mark.process
def test_without_namespaces_the_server_does_not_start_and_quotes_bubblewrap(tmp_path, monkeypatch):
    fake_bubblewrap(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1", monkeypatch)
    with pytest.raises(SandboxMissingError, match="No permissions to create new namespace") as refused:
        make_server(world=None)
    assert "unprivileged_userns_clone" in refused.value.fix


@pytest.mark.process
def test_a_worker_that_never_gets_ready_stops_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr("mcprl_market.python.launch._PROBE_S", 0.2)
    fake_bubblewrap(tmp_path, "exec /bin/sleep 60", monkeypatch)
    with pytest.raises(SandboxMissingError, match="did not become ready"):
        choose_launch(Limits(), allow_unsafe=False)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_a_machine_without_a_filter_is_refused_by_name(system, machine, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(SandboxMissingError, match=f"this machine is {system} {machine}"):
        launch.find_usable_bubblewrap()


def test_a_missing_package_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(launch, "_OFFERED", ("numpy", "no-such-package"))
    with pytest.raises(MissingExtraError, match="no-such-package is not installed"):
        launch.package_folders()


@pytest.mark.process
async def test_without_a_sandbox_code_runs_only_if_allowed_and_with_a_loud_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        launch = choose_launch(Limits(deadline_s=60.0), allow_unsafe=True)
    assert launch == Launch(limits=Limits(deadline_s=60.0), bubblewrap=None)
    assert "WITHOUT A SANDBOX" in caplog.text
    for said in ("read and change all files", "network", "leave processes behind"):
        assert said in caplog.text
    async with Sandbox(launch, spares=1) as sandbox:
        outcome = await sandbox.run(
            program("import resource\n(pd.Series(data).sum(), resource.getrlimit(resource.RLIMIT_AS)[0])", data=[1, 2])
        )
    assert isinstance(outcome, Ran), outcome
    assert outcome.value == [3, Limits().memory_bytes]


@pytest.mark.process
@needs_bubblewrap
def test_permission_to_go_without_does_not_mean_going_without():
    assert choose_launch(Limits(), allow_unsafe=True).is_sandboxed


@pytest.mark.process
def test_only_the_interpreter_its_library_numpy_pandas_and_their_needs_are_shown():
    shown = find_runtime().shown
    packages = {path.removeprefix("/packages/") for path in shown if path.startswith("/packages/")}
    assert {"numpy", "pandas", "dateutil", "tzdata"} <= packages
    assert packages <= {"numpy", "numpy.libs", "pandas", "pandas.libs", "dateutil", "tzdata", "pytz", "six.py"}
    files = [path for inside, path in shown.items() if inside.startswith("/lib")]
    assert all(path.is_file() and (".so" in path.name) for path in files)
    assert len(shown) < 60


@pytest.mark.process
@needs_bubblewrap
async def test_inside_no_other_package_can_be_imported():
    code = """
import importlib, pkgutil, sys
names = {module.name for module in pkgutil.iter_modules()}
sorted(names - set(sys.stdlib_module_names))
"""
    async with Sandbox(sandboxed(), spares=0) as sandbox:
        outcome = await sandbox.run(program(code))
    assert isinstance(outcome, Ran), outcome
    packages = {"dateutil", "numpy", "pandas", "tzdata", "pytz", "six"}
    of_python_itself = {"test", "xxlimited", "xxlimited_35"}
    found = {name for name in outcome.value if not name.startswith(("_", "lib"))}
    assert found <= packages | of_python_itself


def test_a_kind_of_worker_imports_beforehand_and_nothing_more():
    plain, pandas = (Launch(limits=Limits(), bubblewrap=None).setup(kind) for kind in Kind)
    assert plain.replace(b"pandas", b"").count(b"numpy") < pandas.count(b"numpy")


@pytest.mark.process
@needs_bubblewrap
def test_a_compiled_worker_that_is_older_than_its_source_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "worker.pyc").write_bytes(bytes(100))
    monkeypatch.setattr(launch.worker_module, "__cached__", str(tmp_path / "worker.pyc"))
    found = find_runtime.__wrapped__()
    assert found.shown[found.worker] == Path(launch.worker_module.__file__)
