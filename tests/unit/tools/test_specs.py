"""The mcpServers file: what is read, what is merged, and what is refused with which words."""
# R21

import json

import pytest

from mcprl.config import ServerSettings
from mcprl.errors import ServerFileError
from mcprl.tools import ServerSpec, load_server_specs

START = ServerSettings(start=("mcprl", "serve", "directory", "--http", "--port", "{port}"), call_deadline_s=5)


def load(tmp_path, servers, settings=None):
    path = tmp_path / "servers.json"
    path.write_text(servers if isinstance(servers, str) else json.dumps({"mcpServers": servers}))
    return load_server_specs(path, settings or {})


def test_a_file_as_other_clients_write_it_is_read_unchanged(tmp_path):
    servers = {
        "time": {"command": "mcp-server-time", "args": ["--local-timezone", "UTC"], "env": {"A": "1"}, "cwd": "/tmp"},
        "directory": {"type": "http", "url": "http://127.0.0.1:{port}/mcp", "headers": {"X": "y"}},
        "old": {"command": "x", "disabled": True},
        "noted": {"transport": "stdio", "command": "y", "description": "…", "autoApprove": ["a"], "disabled": False},
    }
    assert load(tmp_path, servers, {"directory": START}) == (
        ServerSpec(
            name="time", command="mcp-server-time", args=("--local-timezone", "UTC"), env={"A": "1"}, cwd="/tmp"
        ),
        ServerSpec(
            name="directory",
            url="http://127.0.0.1:{port}/mcp",
            headers={"X": "y"},
            settings=START,
        ),
        ServerSpec(name="noted", command="y"),
    )


@pytest.mark.parametrize(
    ("servers", "settings", "words"),
    [
        ("{", {}, "servers.json is not valid JSON"),
        ("[" * 5000, {}, "is nested more than 100 levels deep"),
        ("{} {}", {}, "there is text after the object"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', {}, "'a' appears twice"),
        ("[]", {}, "has no 'mcpServers' object"),
        ('{"servers": {}}', {}, "has no 'mcpServers' object"),
        ({"a": "x"}, {}, "server 'a' is not an object"),
        ({"a": {}}, {}, "server 'a' has neither 'command' nor 'url'"),
        ({"a": {"command": "x", "url": "http://h/mcp"}}, {}, "server 'a' has both 'command' and 'url'"),
        ({"a": {"command": "x", "arg": []}}, {}, r"unknown field 'arg' \(did you mean 'args'\?\)"),
        ({"a": {"command": "x", "timeout": 3}}, {}, "unknown field 'timeout'"),
        ({"a": {"command": "x", "headers": {}}}, {}, "unknown field 'headers'"),
        ({"a": {"command": "x", "args": "y"}}, {}, "invalid field 'args': .* list"),
        ({"a": {"command": ["x"]}}, {}, "invalid field 'command'"),
        ({"a": {"command": "x", "disabled": "no"}}, {}, "has the value 'no' for 'disabled'"),
        ({"a": {"command": "x", "type": "http"}}, {}, "invalid field 'type': .*'stdio'"),
        ({"a": {"url": "http://h/sse", "type": "sse"}}, {}, "invalid field 'type': .*'http'"),
        ({"a": {"url": "h/mcp"}}, {}, "has an invalid url"),
        ({"a": {"url": "http://h:99999/mcp"}}, {}, "has an invalid url"),
        ({"a": {"url": "http://h:{port}/mcp"}}, {}, r"has \{port\} in its url but no 'start'"),
        ({"a": {"url": "http://h:{port}/mcp"}}, {"a": ServerSettings(start=("x",))}, r"url but not in 'start'"),
        ({"a": {"url": "http://h:1/mcp"}}, {"a": START}, r"'start' but not in its url"),
        ({"a": {"url": "http://h/mcp", "env": {"K": "v"}}}, {}, "has 'env' but is not started"),
        ({"a": {"command": "x"}}, {"a": START}, "has a 'command' and also settings.start"),
        ({"time": {"command": "x"}}, {"tim": ServerSettings()}, r"'tim', which is not in .* \(did you mean 'time'\?\)"),
        ({"a": {"command": "x", "disabled": True}}, {"a": ServerSettings()}, "'a', which .* disables"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_file_the_server_and_a_fix(tmp_path, servers, settings, words):
    with pytest.raises(ServerFileError, match=words) as caught:
        load(tmp_path, servers, settings)
    assert str(tmp_path / "servers.json") in str(caught.value)
    assert str(caught.value).startswith("E-TOOL-001 ")
    assert caught.value.fix


def test_values_of_the_environment_are_not_shown(tmp_path):
    with pytest.raises(ServerFileError) as caught:
        load(tmp_path, {"a": {"command": "x", "env": {"KEY": ["s3cret"]}}})
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ServerFileError, match=r"nowhere\.json cannot be read"):
        load_server_specs(tmp_path / "nowhere.json", {})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": "x", "url": "http://h/mcp"},
        {"command": "x", "make": list},
        {"command": "x", "settings": ServerSettings(start=("y",))},
        {"make": list, "settings": ServerSettings(start=("y",))},
        {"url": "http://h:{port}/mcp"},
        {"url": "http://h/mcp", "settings": ServerSettings(start=("x", "{port}"))},
    ],
)
def test_a_spec_that_contradicts_itself_cannot_be_made(fields):
    with pytest.raises(ValueError, match="server 'a'"):
        ServerSpec(name="a", **fields)


def test_a_relative_command_is_seen_from_the_folder_of_the_file(tmp_path):
    (spec,) = load(tmp_path, {"a": {"command": "bin/server"}})
    assert spec.command == str(tmp_path / "bin" / "server")


def test_a_command_that_is_a_link_stays_one_because_a_virtual_environment_is_known_by_it(tmp_path):
    (tmp_path / "python").symlink_to("/usr/bin/env")
    (spec,) = load(tmp_path, {"a": {"command": "./python"}})
    assert spec.command == str(tmp_path / "python")
