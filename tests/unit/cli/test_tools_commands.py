"""`mcprl tools` on real servers: list, call, pin and stats, from their arguments to output and exit codes."""
# R14, R25

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.cli.options import temporary_logs, typed_value
from mcprl.config import (
    BudgetSettings,
    RateSettings,
    ServersConfig,
    ServerSettings,
)
from mcprl.errors import BadValueError, ConfigFileError, ServerStartError
from mcprl.records import Observation
from mcprl.tools.stats import ServerStats, ToolStats, stats_document, write_stats

# A server whose tools can change between two starts, and which notes each start.
OFFICE = """
    import sys
    from pathlib import Path
    from mcp.server.mcpserver import MCPServer

    folder = Path(sys.argv[1])
    with (folder / "starts").open("a") as starts:
        starts.write("started\\n")
    server = MCPServer("office", version="1.0", log_level="WARNING")

    def repeat(text: str, times: int = 1, marks: list[str] | None = None) -> str:
        return f"{text * times} {marks!r}"

    server.add_tool(repeat, description=(folder / "description").read_text())
    server.run()
"""


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """A folder with a recipe of one changeable server; `description` is what its tool says of itself."""
    (tmp_path / "office.py").write_text(dedent(OFFICE))
    (tmp_path / "description").write_text("Repeats a text.")
    entry = {"command": sys.executable, "args": [str(tmp_path / "office.py"), str(tmp_path)]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"office": entry}}))
    recipe = {
        "name": "mine",
        "model": {"path": "./none"},
        "tasks": {"train": "tasks.jsonl"},
        "servers": {
            "file": "servers.json",
            "settings": {
                "office": {"replicas": 3, "tool_aliases": {"again": "repeat"}, "argument_aliases": {"count": "times"}}
            },
        },
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    return tmp_path


@pytest.fixture
def people(tmp_path: Path, time_server: Path) -> Path:
    """A recipe of a third-party server and our own directory, both over their standard streams."""
    servers = {
        "time": {"command": str(time_server), "args": ["--local-timezone", "UTC"]},
        "directory": {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: p\nmodel: {path: ./none}\ntasks: {train: t.jsonl}\nservers: {file: servers.json}\n")
    return recipe


def refused(*arguments: str) -> Exception:
    """The error of a command that ends before it prints anything."""
    result = CliRunner().invoke(app, ["tools", *arguments])
    assert result.output == ""
    assert result.exception is not None
    return result.exception


@pytest.mark.process
def test_a_list_names_servers_tools_and_aliases_and_starts_each_server_once(mcprl_process, office):
    result = mcprl_process("tools", "list", str(office / "recipe.yaml"))
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "office",
        "  repeat(text, [times], [marks])",
        "    Repeats a text. Also called again.",
    ]
    assert (office / "starts").read_text() == "started\n"


@pytest.mark.process
def test_a_call_prints_the_answer_on_stdout_and_where_it_came_from_on_stderr(mcprl, people):
    result = mcprl("tools", "call", str(people), "find_person", "name=Ana")
    assert (result.returncode, result.stdout) == (0, "Ana: Lima, America/Lima\n")
    server, latency, source, attempts = result.stderr.strip().split(" · ")
    assert (server, source, attempts) == ("directory", "live", "1 attempt")
    assert float(latency.removesuffix(" ms")) >= 0


@pytest.mark.process
def test_a_third_party_server_is_called_the_same_way(mcprl, people):
    arguments = ("source_timezone=UTC", "time=10:00", "target_timezone=Asia/Tokyo")
    result = mcprl("tools", "call", str(people), "convert_time", *arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["time_difference"] == "+9.0h"


@pytest.mark.process
def test_a_refused_call_prints_what_the_policy_would_read_and_exits_with_1(mcprl, people):
    by_server = mcprl("tools", "call", str(people), "find_person", "name=Anna")
    assert by_server.returncode == 1
    assert "Nobody called 'Anna' works here. Did you mean Ana?" in by_server.stdout
    assert by_server.stderr.rstrip().endswith("an error")

    unknown = mcprl("tools", "call", str(people), "find_persn", "name=Ana")
    assert unknown.returncode == 1
    assert "There is no tool 'find_persn'" in unknown.stdout
    assert "'find_person'" in unknown.stdout
    assert unknown.stderr.splitlines() == [
        "no server · refused before reaching the server",
        "To accept this name, add this to the recipe: "
        "servers: {settings: {directory: {tool_aliases: {find_persn: find_person}}}}",
    ]


@pytest.mark.process
def test_a_refused_argument_is_named_and_the_alias_that_is_printed_makes_it_work(mcprl, office):
    asked = ("tools", "call", str(office / "recipe.yaml"), "repeat", "txt=hi")
    refused = mcprl(*asked)
    assert refused.returncode == 1
    assert "'txt'" in refused.stdout
    line = refused.stderr.splitlines()[-1].partition("recipe: ")[2]
    alias = yaml.safe_load(line)["servers"]["settings"]["office"]["argument_aliases"]
    accepted = mcprl(*asked, "--set", f"servers.settings.office.argument_aliases={json.dumps(alias)}")
    assert (accepted.returncode, accepted.stdout) == (0, "hi None\n")


@pytest.mark.process
def test_values_take_the_types_of_the_schema_and_aliases_work_as_for_a_policy(mcprl, office):
    result = mcprl("tools", "call", str(office / "recipe.yaml"), "again", "text=12", "count=2", 'marks=["a"]')
    assert (result.returncode, result.stdout) == (0, "1212 ['a']\n"), result.stderr


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string"}, "", ""),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": null}', {"a": None}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"$ref": "#/$defs/count"}, "3", 3),
        ({}, "3", 3),
    ],
)
def test_a_value_is_json_only_if_the_schema_accepts_it(schema, text, value):
    parameters = {
        "type": "object",
        "properties": {"value": schema, "other": {"type": "string"}},
        "required": ["value", "other"],
        "$defs": {"count": {"type": "integer"}},
    }
    result = typed_value(parameters, "value", text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Ana"], "'Ana' is not KEY=VALUE"),
        (["=Ana"], "'=Ana' is not KEY=VALUE"),
        (["name=Ana", "name=Bo"], "the argument 'name' is given twice"),
    ],
)
def test_arguments_that_cannot_be_read_are_an_error_before_any_server_starts(office, arguments, says):
    error = refused("call", str(office / "recipe.yaml"), "repeat", *arguments)
    assert isinstance(error, BadValueError)
    assert says in str(error)
    assert not (office / "starts").exists()


@pytest.mark.process
def test_looking_at_tools_does_not_load_a_library_for_training():
    code = "import sys, mcprl.cli.tools, mcprl.tools; print({'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "set()\n"


def test_the_figures_of_a_run_are_printed(tmp_path, monkeypatch):
    stats = ToolStats()
    for n in range(1, 1235):
        stats.record(Observation(tool="find_person", server="directory", text="", latency_s=n / 1000))
    write_stats(tmp_path, stats_document({"directory": ServerStats(calls=1234)}, stats))
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["tools", "stats", str(tmp_path)])
    assert result.exit_code == 0
    (row,) = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["find_person"]]
    assert row[:5] == ["find_person", "1,234", "1,234", "0", "0"]
    half, most, longest = (float(figure.replace(",", "")) for figure in row[5:])
    # Latencies are counted in steps of one per cent; the longest is exact.
    assert 617.0 <= half <= 617.0 * 1.01
    assert 1173.0 <= most <= 1173.0 * 1.01
    assert longest == 1234.0


def test_a_folder_that_is_no_run_is_an_error_with_the_fix(tmp_path):
    error = refused("stats", str(tmp_path / "nothing"))
    assert isinstance(error, ConfigFileError)
    assert "pass the folder of a run" in error.fix


def test_the_page_about_tools_shows_every_setting_of_a_server_and_the_settings_are_valid(root):
    block = re.search(r"```yaml\n(.*?)```", (root / "docs" / "tools.md").read_text(), re.DOTALL)
    assert block is not None
    section = yaml.safe_load(block[1])["servers"]
    (shown,) = section["settings"].values()
    assert set(shown) == set(ServerSettings.model_fields)
    parts = {"budget": BudgetSettings, "rate": RateSettings}
    for name, kind in parts.items():
        assert set(shown[name]) == set(kind.model_fields)
    ServersConfig.model_validate(section)


def test_the_folder_of_logs_is_kept_if_an_error_names_a_file_in_it_and_else_removed():
    folders: list[Path] = []
    for named in (False, True):
        with suppress(ServerStartError), temporary_logs() as folder:
            folders.append(folder)
            (folder / "fmp.log").write_text("no licence")
            raise ServerStartError("it did not start", fix=f"see {folder / 'fmp.log'}" if named else "install it")
    with temporary_logs() as folder:
        folders.append(folder)
    assert [folder.exists() for folder in folders] == [False, True, False]
    assert (folders[1] / "fmp.log").read_text() == "no licence"
    shutil.rmtree(folders[1])


@pytest.mark.process
def test_the_log_of_a_server_that_does_not_start_is_there_after_the_command(office):
    (office / "office.py").write_text("raise SystemExit('the licence has expired')")
    error = CliRunner().invoke(app, ["tools", "list", str(office / "recipe.yaml")]).exception
    named = re.search(r"its log (/\S+),", str(error))
    assert named is not None, error
    assert "the licence has expired" in Path(named[1]).read_text()
    shutil.rmtree(Path(named[1]).parent)
