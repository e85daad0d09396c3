"""Which files the sandbox of a server shows, and what is refused by name."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mcprl.config import SandboxSettings, ServerSettings
from mcprl.errors import SandboxMissingError, ServerFileError
from mcprl.tools import ServerSpec, Toolbox, load_server_specs, sandbox
from mcprl.tools.sandbox import installation, sandbox_command


def executable(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_true_is_the_strictest_sandbox_and_false_is_none():
    assert ServerSettings.model_validate({"sandbox": True}).sandbox == SandboxSettings(read=(), write=(), network=False)
    assert ServerSettings.model_validate({"sandbox": False}).sandbox is None
    assert ServerSettings().sandbox is None


def test_relative_folders_are_relative_to_the_recipe(tmp_path):
    value = {"sandbox": {"read": ["data"]}}
    settings = ServerSettings.model_validate(value, context={"folder": tmp_path})
    assert settings.sandbox == SandboxSettings(read=(tmp_path / "data",))


def test_the_whole_machine_cannot_be_declared():
    with pytest.raises(ValueError, match="every file on this machine"):
        ServerSettings.model_validate({"sandbox": {"read": ["/"]}})


def test_a_script_in_a_virtual_environment_shows_that_and_its_python_but_nothing_beside_them(tmp_path):
    python = executable(tmp_path / "home" / "python" / "bin" / "python3.11")
    (tmp_path / "home" / "python" / "lib").mkdir()
    (tmp_path / "home" / "python" / "share").mkdir()
    environment = tmp_path / "project" / "venv"
    # Written by installers if the path of the interpreter is long or has spaces.
    script = executable(environment / "bin" / "server", "#!/bin/sh\n'''exec' …")
    (environment / "bin" / "python").symlink_to(python)
    (environment / "pyvenv.cfg").touch()
    (tmp_path / "project" / ".env").touch()
    base = tmp_path / "home" / "python"
    expected = {environment / "bin", environment / "pyvenv.cfg", base / "bin", base / "lib"}
    assert installation(script, "/usr/bin") == expected
    # Also if the environment is a link, which scripts do not resolve.
    link = tmp_path / "link"
    link.symlink_to(environment)
    assert installation(link / "bin" / "server", "/usr/bin") == {*expected, link / "bin", link / "pyvenv.cfg"}


def test_an_npm_program_shows_its_packages_and_its_node(tmp_path):
    node = executable(tmp_path / "nvm" / "bin" / "node")
    modules = tmp_path / "project" / "node_modules"
    program = executable(modules / "@who" / "server" / "dist" / "index.js", "#!/usr/bin/env node\n")
    (modules / ".bin").mkdir()
    (modules / ".bin" / "server").symlink_to("../@who/server/dist/index.js")
    for start in (program, modules / ".bin" / "server"):
        assert installation(start, str(node.parent)) == {modules, node.parent}


def test_a_program_beside_a_recipe_shows_only_itself(tmp_path):
    program = executable(tmp_path / "server")
    (tmp_path / ".env").touch()
    assert installation(program, "/usr/bin") == {program}


def test_a_program_of_the_system_shows_nothing_more():
    assert installation(Path("/bin/sh"), "/usr/bin") == set()


@pytest.mark.parametrize("declared", ["missing", "venv", "."])
def test_a_folder_that_is_missing_or_has_the_program_in_it_is_refused(declared, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "_probe", lambda: None)
    monkeypatch.setattr(sandbox, "_bubblewrap_command", lambda fd: ["bwrap"])
    program = executable(tmp_path / "venv" / "bin" / "server")
    settings = SandboxSettings(write=(tmp_path / declared,))
    problem = "does not exist" if declared == "missing" else "the server's own program"
    with pytest.raises(ServerFileError, match=problem):
        sandbox_command("s", settings, [str(program)], path="/usr/bin", cwd=None, filter_fd=3)


def test_a_server_reached_by_url_has_no_sandbox(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {"web": {"url": "http://127.0.0.1:1/mcp"}}}')
    with pytest.raises(ServerFileError, match=r"'url' and also settings\.sandbox"):
        load_server_specs(file, {"web": ServerSettings(sandbox=SandboxSettings())})


async def started(tmp_path: Path) -> None:
    settings = ServerSettings(sandbox=SandboxSettings())
    program = executable(tmp_path / "server", f"#!/bin/sh\ntouch {tmp_path}/started\n")
    async with Toolbox([ServerSpec(name="s", command=str(program), settings=settings)], log_dir=tmp_path / "logs"):
        pass


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "no bwrap on PATH"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to create new namespace"),
    ],
)
def test_without_a_working_bubblewrap_the_server_is_not_started(script, message, tmp_path, monkeypatch):
    """With an error by name, which the doctor reports like any other of a server."""
    sandbox._probe.cache_clear()
    (tmp_path / "bin").mkdir()
    for name in ("sh", "unshare", "mount"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    if script is not None:
        executable(tmp_path / "bin" / "bwrap", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SandboxMissingError, match=message) as refused:
        asyncio.run(started(tmp_path))
    assert "remove `sandbox` if you trust the server" in refused.value.fix
    assert not (tmp_path / "started").exists()
    sandbox._probe.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux's")
def test_another_machine_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SandboxMissingError, match="this machine is linux riscv64"), sandbox.filter_file():
        pass
