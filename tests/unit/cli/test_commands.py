"""The commands of `mcprl`, from their arguments to what they print and their exit codes."""
# R25, R32

from __future__ import annotations

import json
import os
import re
import signal
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main
from typer.testing import CliRunner

import mcprl as mcprl_package
from mcprl import cli as cli_module
from mcprl.cli import SECTIONS, app, main
from mcprl.config import RunConfig
from mcprl.errors import (
    BadValueError,
    McprlError,
    MissingExtraError,
    ServerLostError,
    ServerStartError,
    UnknownToolError,
)
from mcprl.recipe import load_recipe, settings
from mcprl.runs.folder import RunFolder

HELLO = "recipes/hello-cpu.yaml"
ROOT = Path(__file__).parents[3]


def assert_one_sentence(result, code: str) -> None:
    """An error is one line on stderr with its code, nothing on stdout, and no traceback."""
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"mcprl: {code} ")
    assert result.stderr.count("\n") == 1
    assert "Fix: " in result.stderr


def test_a_dry_run_prints_the_resolved_configuration_as_a_recipe(mcprl, tmp_path):
    result = mcprl("train", HELLO, "--dry-run", "--set", "training.steps=3", "--set", "seed=11")
    assert (result.returncode, result.stderr) == (0, "")
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(result.stdout)
    assert load_recipe(resolved) == load_recipe(ROOT / HELLO, ["training.steps=3", "seed=11"])


def test_a_dry_run_leaves_no_folder_behind(mcprl, tmp_path):
    mcprl("train", HELLO, "--dry-run", "--set", f"training.outputs={tmp_path / 'runs'}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_missing_recipe_is_one_sentence(mcprl_process):
    assert_one_sentence(mcprl_process("train", "nothing.yaml"), "E-CONF-001")


def test_a_wrong_key_is_one_sentence_with_a_suggestion(mcprl):
    result = mcprl("train", HELLO, "--set", "training.step=3")
    assert_one_sentence(result, "E-CONF-002")
    assert "--set training.step=3: unknown key 'training.step' (did you mean 'steps'?)" in result.stderr


def test_a_setting_is_explained_with_type_default_and_meaning():
    result = CliRunner().invoke(app, ["config", "explain", "sampling.temperature"])
    assert result.exit_code == 0
    assert (
        result.output
        == "sampling.temperature  (number, > 0; default 1.0)\n    Sampling temperature, also used by the learner.\n"
    )


def test_a_section_is_explained_setting_by_setting_and_nothing_is_left_out_without_a_name():
    runner = CliRunner()
    section = runner.invoke(app, ["config", "explain", "sampling"]).output
    assert [line.split()[0] for line in section.splitlines()[::2]] == [
        s.path for s in settings() if s.path.startswith("sampling.")
    ]
    everything = runner.invoke(app, ["config", "explain"]).output
    assert [line.split()[0] for line in everything.splitlines()[::2]] == [s.path for s in settings()]
    assert "Difficulty" not in everything
    assert "PosixPath" not in everything


def test_an_unknown_setting_is_one_sentence_with_a_suggestion(mcprl):
    assert_one_sentence(mcprl("config", "explain", "nope"), "E-CONF-002")
    close = mcprl("config", "explain", "sampling.temprature")
    assert_one_sentence(close, "E-CONF-002")
    assert "did you mean 'sampling.temperature'?" in close.stderr


def test_an_unknown_server_is_refused_with_a_suggestion(mcprl):
    result = mcprl("serve", "directry")
    assert result.returncode == 2
    assert "Did you mean 'directory'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_without_its_key_is_one_sentence_that_says_how_to_do_without(mcprl, monkeypatch):
    monkeypatch.delenv("FMP_API_KEY", raising=False)
    result = mcprl("serve", "fmp")
    assert_one_sentence(result, "E-TOOL-007")
    assert "--world 7" in result.stderr


def test_each_server_has_a_command_and_options_of_its_own():
    serve = typer.main.get_command(app).get_command(None, "serve")
    commands = {name: serve.get_command(None, name) for name in serve.list_commands(None)}
    options = {name: {flag for option in made.params for flag in option.opts} for name, made in commands.items()}
    assert options == {
        "bfcl": {"--http", "--port"},
        "directory": {"--http", "--port"},
        "fmp": {"--http", "--port", "--world"},
        "polygon": {"--http", "--port", "--world"},
        "tavily": {"--http", "--port", "--world"},
        "slack": {"--http", "--port", "--world", "--post-for-real"},
        "python": {"--http", "--port", "--world", "--allow-unsafe"},
    }
    assert set(commands) == {entry.name for entry in entry_points(group="mcprl.servers")}


@pytest.fixture
def broken_package(monkeypatch, tmp_path):
    """Commands of an installed package that is broken: two below serve, one at the top."""

    class Distribution:
        name, version = "acme-tools", "1.2"

    entries = [EntryPoint("serve.acme", "acme_tools.gone:serve", "mcprl.commands")]
    entries += [EntryPoint("acme", "mcprl.errors:no_such_name", "mcprl.commands")]
    entries += [EntryPoint("serve.raising", "acme_raising:serve", "mcprl.commands")]
    (tmp_path / "acme_raising.py").write_text("raise ValueError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for entry in entries:
        vars(entry)["dist"] = Distribution
    installed = cli_module._entry_points()
    monkeypatch.setattr(cli_module, "_entry_points", lambda: (*installed, *entries))
    cli_module._plugins.cache_clear()
    yield
    cli_module._plugins.cache_clear()


@pytest.mark.usefixtures("broken_package")
def test_a_broken_package_breaks_only_its_own_commands_which_name_it():
    runner = CliRunner()
    assert runner.invoke(app, ["serve", "directory", "--help"]).exit_code == 0
    for path in (["serve", "acme", "--http"], ["serve", "raising"], ["acme"]):
        error = runner.invoke(app, path).exception
        assert isinstance(error, MissingExtraError)
        assert f"`mcprl {' '.join(path[:2] if path[0] == 'serve' else path)}`" in error.what
        assert "the package acme-tools 1.2" in error.fix


@pytest.mark.usefixtures("broken_package")
def test_help_lists_the_other_commands_beside_a_broken_one():
    listed = CliRunner().invoke(app, ["serve", "--help"])
    assert listed.exit_code == 0
    assert "No module named 'acme_tools'" in " ".join(listed.output.split())
    assert "no licence" in listed.output
    assert "A small office directory" in listed.output
    assert "acme" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["train", HELLO], "mcprl.cli.running"),
        (["resume", "RUN"], "mcprl.cli.running"),
        (["eval", HELLO], "mcprl.evaluation.harness"),
        (["try", HELLO], "mcprl.evaluation.harness"),
        (["parity", HELLO], "mcprl.checks.parity"),
        (["doctor", HELLO], "mcprl.checks.doctor"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_heavy_command_says_that_it_loads_libraries_before_it_does(tmp_path, monkeypatch, arguments, heavy):
    outputs = f"training.outputs={tmp_path}"
    if arguments[0] == "resume":
        with RunFolder.create(load_recipe(ROOT / HELLO, [outputs])) as folder:
            arguments = ["resume", str(folder.path)]
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, heavy, None)  # importing it fails
    done = CliRunner().invoke(app, [*arguments, "--set", outputs])
    assert isinstance(done.exception, ModuleNotFoundError), done.exception
    assert "loading libraries" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_libraries_load_is_recorded_with_the_run(tmp_path, monkeypatch, number):
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "mcprl.cli.running":
                signal.raise_signal(number)

    monkeypatch.chdir(ROOT)
    monkeypatch.delitem(sys.modules, "mcprl.cli.running", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    before = signal.getsignal(number)
    done = CliRunner().invoke(app, ["train", HELLO, "--set", f"training.outputs={tmp_path}"])
    assert done.exit_code == 75, done.exception
    (end,) = tmp_path.glob("*/end.json")
    assert json.loads(end.read_text()) == {
        "state": "stopped",
        "why": f"stopped by {number.name} before the first step",
    }
    assert signal.getsignal(number) is before


def test_an_adapter_of_another_model_is_not_tried(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 64, "base_model_name_or_path": "some/model"}))
    arguments = ["try", str(ROOT / HELLO), "--adapter", str(tmp_path), "--set", "model.path=another/model"]
    with pytest.raises(BadValueError, match="was trained on some/model"):
        raise CliRunner().invoke(app, arguments).exception


def test_an_unknown_task_to_try_is_one_sentence_with_a_suggestion(mcprl):
    result = mcprl("try", HELLO, "--task", "zone-of-anna")
    assert_one_sentence(result, "E-CONF-003")
    assert "did you mean 'zone-of-ana'?" in result.stderr


@pytest.mark.process
@pytest.mark.usefixtures("time_server")
def test_the_tools_of_both_hello_servers_are_listed(mcprl):
    result = mcprl("tools", "list", HELLO)
    assert result.returncode == 0, result.stderr
    listed = [line.split("(")[0].strip() for line in result.stdout.splitlines() if not line.startswith("    ")]
    assert set(listed) == {"time", "get_current_time", "convert_time", "directory", "find_person", "list_people"}
    assert "City and time zone of a colleague." in result.stdout


@pytest.mark.process
@pytest.mark.usefixtures("time_server")
def test_a_task_that_names_an_unknown_tool_stops_training_before_any_model_is_loaded(mcprl, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    lines = [{"id": f"t{n}", "prompt": "Hi", "answer": "Hi"} for n in range(3)]
    lines.append({"id": "d03", "prompt": "Hi", "calls": [{"tool": "find_persn", "arguments": {}}]})
    tasks.write_text("\n".join(json.dumps(line) for line in lines))
    result = mcprl(
        *("train", HELLO, "--set", f"tasks.train={tasks}", "--set", f"training.outputs={tmp_path / 'runs'}"),
        # A model that does not exist: reaching for it would be another error.
        *("--set", "model.path=./no-such-model", "--set", "algorithm.warm_start.weight=0"),
    )
    assert result.returncode == 2
    assert "mcprl: E-TOOL-003 no server offers the tool 'find_persn', which task d03 needs" in result.stderr
    assert "did you mean 'find_person'?" in result.stderr
    assert "Traceback" not in result.stderr
    assert "starting the tool servers" in result.stdout
    assert "sampler" not in result.stdout


def test_failed_trainings_share_a_folder_that_says_why_and_a_second_run_says_that_it_is_one(tmp_path, monkeypatch):
    ends: list[BaseException | None] = [
        ServerStartError("server 'fmp' did not start", fix="install it"),
        UnknownToolError("no tool", fix="add it"),
        None,
    ]
    printed: list[str] = []

    def run_to_the_end(config: RunConfig, folder: RunFolder) -> None:
        if (error := ends.pop(0)) is not None:
            raise error
        # While this one runs, another begins.
        ends.append(ServerStartError("no memory", fix="get some"))
        printed.append(train())

    # Without the imports of the real one.
    monkeypatch.setitem(sys.modules, "mcprl.cli.running", SimpleNamespace(run_to_the_end=run_to_the_end))

    def train() -> str:
        return CliRunner().invoke(app, ["train", str(ROOT / HELLO), "--set", f"training.outputs={tmp_path}"]).stdout

    for why in ("infrastructure error E-TOOL-010 server 'fmp' did not start", "configuration error E-TOOL-003 no tool"):
        assert train() == f"run {tmp_path}/hello-cpu\n"
        assert [path.name for path in tmp_path.iterdir()] == ["hello-cpu"]
        shown = json.loads(CliRunner().invoke(app, ["runs", "show", f"{tmp_path}/hello-cpu", "--json"]).stdout)
        assert shown["state"] == "failed"
        assert shown["why"].startswith(why)
    train()
    second = f"run {tmp_path}/hello-cpu-2 ({tmp_path}/hello-cpu is running, process {os.getpid()})\n"
    assert printed == [second]


def every_command(command, *path):
    """The words of every command and group: (), ("runs",), ("runs", "list"), …"""
    yield path
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from every_command(command.get_command(None, name), *path, name)


def test_help_has_whole_sentences_and_one_way_to_write_arguments():
    for path in every_command(typer.main.get_command(app)):
        result = CliRunner().invoke(app, [*path, "--help"])
        assert result.exit_code == 0
        usage, _, rest = result.output.partition("\n\n")
        assert not re.search(r"[{}<>]|\[\[|\.{4}", usage), usage
        assert "…" not in rest
        assert not re.search(r"\w\.\.\.$|<list|<path>|<str>", rest, re.MULTILINE), rest


def test_help_lists_every_command_under_a_heading():
    printed = CliRunner().invoke(app, ["--help"]).output
    assert re.findall(r"^(\w[\w ]*):$", printed, re.MULTILINE) == ["Options", *SECTIONS]
    commands = typer.main.get_command(app).list_commands(None)
    assert [name for name in commands if not re.search(rf"^  {name} ", printed, re.MULTILINE)] == []


def test_the_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"mcprl {mcprl_package.__version__}\n")


def test_a_misspelt_command_is_refused_with_a_suggestion():
    result = CliRunner().invoke(app, ["trian"])
    assert result.exit_code == 2
    assert "Did you mean 'train'?" in result.output


def run_main(monkeypatch, error: McprlError) -> int:
    def fail() -> None:
        raise error

    monkeypatch.setattr("mcprl.cli.app", fail)
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_exit_code_tells_a_wrong_setting_from_a_failing_world(monkeypatch, capsys):
    assert run_main(monkeypatch, UnknownToolError("no tool", fix="add it")) == 2
    assert run_main(monkeypatch, ServerLostError("gone", fix="restart it")) == 3
    assert capsys.readouterr().err == (
        "mcprl: E-TOOL-003 no tool. Fix: add it. (mcprl explain E-TOOL-003)\n"
        "mcprl: E-TOOL-011 gone. Fix: restart it. (mcprl explain E-TOOL-011)\n"
    )


def test_notes_of_an_error_are_printed_and_nothing_in_them_commands_the_terminal(monkeypatch, capsys):
    error = ServerLostError("server said \x1b[2J", fix="restart it")
    error.add_note("its log ends with: \x1b]0;title\x07")
    run_main(monkeypatch, error)
    assert capsys.readouterr().err == (
        "mcprl: E-TOOL-011 server said \\x1b[2J. Fix: restart it. (mcprl explain E-TOOL-011)\n"
        "  its log ends with: \\x1b]0;title\\x07\n"
    )
