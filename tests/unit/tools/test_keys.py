"""Keys of servers: read from the environment and a file, put into the entries that ask for them, known as secrets."""
# R26

from __future__ import annotations

import base64
import json
import logging
import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcprl.tools.keys
import mcprl.tools.specs
from mcprl.config import ServerSettings
from mcprl.errors import MissingKeyError, ServerFileError
from mcprl.secrets import SecretRegistry
from mcprl.tools import ServerSpec, load_server_specs
from mcprl.tools.keys import Expansion, load_keys

KEY = "3f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
OTHER = "Zx81Qw72Er63Ty54Ui45Op36As27Df18"


@pytest.fixture(autouse=True)
def _own_folder_and_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name not in {"PATH", "HOME"} and not name.startswith("PYTEST"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    registry = SecretRegistry()
    monkeypatch.setattr(mcprl.tools.keys, "SECRETS", registry)
    monkeypatch.setattr(mcprl.tools.specs, "SECRETS", registry)
    factory = logging.getLogRecordFactory()
    yield registry
    logging.setLogRecordFactory(factory)


def load(tmp_path, servers, settings=None):
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return load_server_specs(path, settings or {})


# ---- where keys come from --------------------------------------------------------------------------------------------


def test_the_file_completes_the_environment_and_the_environment_wins(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("A=file\nB=file\n")
    monkeypatch.setenv("A", "environment")
    keys = load_keys()
    assert (keys["A"], keys["B"]) == ("environment", "file")


def test_an_empty_variable_of_the_environment_does_not_hide_the_key_in_the_file(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("A=file\n")
    monkeypatch.setenv("A", "")
    assert load_keys()["A"] == "file"


def test_a_file_is_read_as_written_and_changes_nothing_in_our_own_environment(tmp_path):
    text = """
    # a comment
    PLAIN=one two # and a comment
    export EXPORTED='single $quoted # text'
    QUOTED="line\\nbreak"
    DOLLARS=pa$$word-${PLAIN}-$HOME
    EMPTY=
    NO_VALUE
    TWICE=first
    TWICE=second
    """
    (tmp_path / ".env").write_text(text)
    before = dict(os.environ)
    keys = {name: value for name, value in load_keys().items() if name not in os.environ}
    assert keys == {
        "PLAIN": "one two",
        "EXPORTED": "single $quoted # text",
        "QUOTED": "line\nbreak",
        "DOLLARS": "pa$$word-${PLAIN}-$HOME",
        "TWICE": "second",
    }
    assert dict(os.environ) == before


def test_no_file_is_needed_where_none_is_named():
    assert load_keys() == dict(os.environ)


def test_a_file_that_cannot_be_read_is_an_error_with_a_fix(tmp_path):
    (tmp_path / ".env").mkdir()
    with pytest.raises(
        MissingKeyError, match=r"E-TOOL-007 .*\.env cannot be read: Is a directory.* Fix: make it a readable NAME"
    ):
        load_keys()


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe")
    with pytest.raises(MissingKeyError, match="not UTF-8"):
        load_keys()


def test_a_line_that_cannot_be_read_is_named_by_its_number_and_not_shown(tmp_path):
    (tmp_path / ".env").write_text(f'A=1\nB="{KEY}\n')
    with pytest.raises(MissingKeyError, match="line 2") as caught:
        load_keys()
    assert KEY not in str(caught.value)


# ---- what is expanded ------------------------------------------------------------------------------------------------


def test_references_are_expanded_in_the_fields_that_other_clients_expand_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setenv("NAME", "value")
    settings = {"web": ServerSettings(start=("run", "${NAME}", "--port", "{port}"))}
    local, web = load(
        tmp_path,
        {
            "local": {
                "command": "${NAME}-server",
                "args": ["--a=${NAME}", "${NONE:-default}", "${NONE:-}", "$NAME", "${1}", "$${NAME}"],
                "env": {"${NAME}": "x ${NAME} y ${NAME}"},
                "cwd": "${NAME}",
                "description": "${MISSING}",
            },
            "web": {
                "url": "http://${NAME}:{port}/mcp",
                "headers": {"X-Name": "${NAME}"},
                "env": {"A": "${NAME:-no}"},
            },
        },
        settings,
    )
    assert local.command == "value-server"
    assert local.args == ("--a=value", "default", "", "$NAME", "${1}", "$value")
    assert local.env == {"${NAME}": "x value y value"}
    assert local.cwd == "${NAME}"
    assert (web.url, web.headers, web.env) == ("http://value:{port}/mcp", {"X-Name": "value"}, {"A": "value"})
    assert web.settings.start == ("run", "${NAME}", "--port", "{port}")


def test_an_expanded_value_is_not_expanded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("A", "${B}")
    (spec,) = load(tmp_path, {"a": {"command": "x", "env": {"K": "${A}"}}})
    assert spec.env == {"K": "${B}"}


texts = st.text(string.ascii_letters + "${}:-_ 1", max_size=12)


@given(before=texts, after=texts, value=st.text(min_size=1))
def test_expansion_replaces_the_reference_and_leaves_what_stands_around_it(before, after, value):
    plain = before.replace("${", ""), after.replace("${", "")
    entry = Expansion({"env": {"K": f"{plain[0]}|${{NAME}}|{plain[1]}"}}, {"NAME": value}).entry
    assert entry == {"env": {"K": f"{plain[0]}|{value}|{plain[1]}"}}


@pytest.mark.parametrize("reference", ["${env:NAME}", "${input:fmp-key}", "${A:-${B}}"])
def test_references_of_other_clients_are_refused_rather_than_passed_on(tmp_path, reference):
    with pytest.raises(ServerFileError, match=r"server 'a' uses '\$\{.* Fix: write \$\{NAME\}"):
        load(tmp_path, {"a": {"command": "x", "env": {"K": reference}}})


# ---- missing keys ----------------------------------------------------------------------------------------------------


def test_all_missing_keys_of_all_enabled_servers_are_reported_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("EMPTY_KEY", "")
    servers = {
        "fmp": {"command": "x", "env": {"A": "${FMP_API_KEY}", "B": "${FMP_API_KEY}", "C": "${EMPTY_KEY}"}},
        "web": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${WEB_TOKEN} ${FMP_API_KEY}"}},
        "off": {"command": "x", "env": {"A": "${OFF_KEY}"}, "disabled": True},
    }
    with pytest.raises(MissingKeyError) as caught:
        load(tmp_path, servers)
    assert str(caught.value) == (
        f"E-TOOL-007 {tmp_path / 'servers.json'} needs keys that are not set: FMP_API_KEY for server 'fmp' and 'web'; "
        "EMPTY_KEY for server 'fmp'; WEB_TOKEN for server 'web'. Fix: set each key in the environment or as a line "
        f"NAME=value in {tmp_path / '.env'}, or disable the server; for a value that may be empty, "
        "write ${NAME:-}."
    )


# ---- which values are secrets ----------------------------------------------------------------------------------------


def is_secret(secrets, value):
    return value not in secrets.redact(f"({value})")


@pytest.mark.parametrize(
    ("name", "value"),
    [("FMP_API_KEY", KEY), ("FMP", KEY), ("DB_PASSWORD", "correcthorse"), ("APP", "correct-h0rse-b4ttery!")],
)
def test_an_expanded_value_is_a_secret_if_its_name_or_its_look_says_so(tmp_path, monkeypatch, secrets, name, value):
    monkeypatch.setenv(name, value)
    load(tmp_path, {"a": {"command": "x", "env": {"K": "pre-${" + name + "}"}}})
    assert is_secret(secrets, value)
    assert secrets.redact(value) == f"[redacted {name}]"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/home/somebody/projects"),
        ("TZ", "America/Lima"),
        ("REGION", "us-east-1"),
        ("SINCE", "2024-01-31"),
        ("HOST", "db.internal.test:5432"),
        ("MODEL", "gpt-4o-mini"),
        ("MODE", "development"),
        ("ENDPOINT", "https://api.internal.test/v1/things?limit=10"),
    ],
)
def test_an_ordinary_expanded_value_is_no_secret(tmp_path, monkeypatch, secrets, name, value):
    monkeypatch.setenv(name, value)
    load(tmp_path, {"a": {"command": "x", "env": {"K": "${" + name + "}"}}})
    assert not is_secret(secrets, value)


def test_values_that_stand_in_the_file_are_secrets_where_their_names_say_so(tmp_path, secrets):
    servers = {
        "local": {
            "command": "x",
            "args": ["--api-key", "literalKey11", "--token=literalKey22", "--sort-key", "created_at", "--verbose"],
            "env": {"PASSWORD": "literalKey33", "COLOUR": "literalText44", "DB": "postgres://u:literalKey55@h/db"},
        },
        "web": {
            "url": f"https://u:literalKey66@h/{OTHER}/mcp?api_key=literalKey77&page=literalText88",
            "headers": {
                "Authorization": "Bearer literalKey99",
                "X-Auth": "Basic " + base64.b64encode(b"user:literalKey00").decode(),
                "Accept": "application/json",
            },
        },
    }
    load(tmp_path, servers)
    text = json.dumps(servers) + " literalKey00"
    for number in (11, 22, 33, 55, 66, 77, 99):
        assert is_secret(secrets, f"literalKey{number}"), number
    assert is_secret(secrets, "literalKey00")
    assert is_secret(secrets, OTHER)
    for ordinary in ("created_at", "literalText44", "literalText88", "application/json", "Bearer"):
        assert ordinary in secrets.redact(text)


def test_the_keys_of_a_spec_made_in_python_are_secrets_too(secrets):
    ServerSpec(name="a", command="x", env={"FMP_API_KEY": KEY}, args=("--token", OTHER))
    assert is_secret(secrets, KEY)
    assert is_secret(secrets, OTHER)


def test_once_keys_are_loaded_no_log_record_shows_them(tmp_path, monkeypatch, secrets, caplog):
    monkeypatch.setenv("FMP", KEY)
    load(tmp_path, {"a": {"command": "x", "env": {"A": "${FMP}"}}})
    logging.getLogger("somebody.else").warning("GET %s", f"/q?x={KEY}")
    assert caplog.messages == ["GET /q?x=[redacted FMP]"]


def test_the_repr_of_a_spec_shows_no_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("FMP", KEY)
    specs = load(
        tmp_path,
        {
            "local": {"command": "x", "args": ["--key=${FMP}"], "env": {"A": "${FMP}", "B": "shortpw"}},
            "web": {"url": "https://h/mcp?apikey=${FMP}", "headers": {"X": "${FMP}", "Y": "shortpw"}},
        },
    )
    assert KEY not in repr(specs)
    assert "shortpw" not in repr(specs)
    assert "'local'" in repr(specs)


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "${FMP}"},
        {"url": "https://h:99999/?apikey=${FMP}"},
        {"command": "x", "args": "${FMP}"},
        {"command": "x", "args": ["${FMP}", 1]},
        {"command": ["${FMP}"]},
        {"command": "x", "url": "${FMP}"},
        {"url": "${FMP}", "env": "${FMP}"},
        {"command": "x", "type": "${FMP}"},
    ],
)
def test_a_refused_entry_is_described_without_its_keys(tmp_path, monkeypatch, entry):
    monkeypatch.setenv("FMP", KEY)
    with pytest.raises(ServerFileError) as caught:
        load(tmp_path, {"a": entry})
    assert KEY not in str(caught.value)
