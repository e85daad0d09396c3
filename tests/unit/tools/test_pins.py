"""Pinned tools: the same tools pass in any order, other tools are an error that shows what changed."""
# R15

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import ConfigFileError, ToolsChangedError
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.pins import PinnedTools, compare_tools, read_pins, write_pins

FIND = ToolDefinition(
    name="find_person",
    description="City and time zone of a colleague.",
    parameters={
        "type": "object",
        "properties": {"name": {"type": "string"}, "city": {"type": "string"}},
        "required": ["name"],
    },
    read_only=True,
)
LIST = ToolDefinition(name="list_people", description="Names of all colleagues.", parameters={"type": "object"})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
schemas = st.dictionaries(st.text(), json_values, max_size=4)
definitions = st.builds(
    ToolDefinition,
    name=st.text(min_size=1, max_size=4),
    description=st.text(max_size=300),
    parameters=schemas,
    output_schema=st.none() | schemas,
    read_only=st.booleans(),
    idempotent=st.booleans(),
)


def changed(pinned, listed, **options) -> ToolsChangedError:
    with pytest.raises(ToolsChangedError) as caught:
        PinnedTools("directory", pinned, **options).check(listed)
    return caught.value


def test_the_first_listing_is_remembered_and_the_same_tools_pass_in_any_order():
    pinned = PinnedTools("directory")
    assert pinned.definitions == ()
    pinned.check([FIND, LIST])
    pinned.check([LIST, FIND])
    assert pinned.definitions == (FIND, LIST)


def test_a_server_that_changes_a_tool_on_its_second_start_is_an_error():
    pinned = PinnedTools("directory")
    pinned.check([FIND, LIST])
    with pytest.raises(
        ToolsChangedError, match="'directory' differ from those of the start of the run: changed 'find_per"
    ):
        pinned.check([replace(FIND, description="City of a colleague."), LIST])
    assert pinned.definitions == (FIND, LIST)


def test_a_server_without_tools_at_the_start_may_not_gain_one():
    pinned = PinnedTools("directory")
    pinned.check([])
    with pytest.raises(ToolsChangedError, match="added 'find_person'"):
        pinned.check([FIND])


def test_a_pin_file_does_not_change_the_order_in_which_a_policy_reads_tools_and_arguments(tmp_path):
    write_pins(tmp_path / "pins.json", {"directory": ("1", [LIST, FIND])})
    pinned = PinnedTools("directory", read_pins(tmp_path / "pins.json")["directory"])
    assert [tool.name for tool in pinned.definitions] == ["find_person", "list_people"]
    pinned.check([LIST, FIND])
    assert pinned.definitions == (LIST, FIND)
    assert list(pinned.definitions[1].parameters["properties"]) == ["name", "city"]


def test_the_error_names_what_was_added_removed_and_changed_with_a_diff_and_the_fix():
    listed = [replace(FIND, description="City of a colleague."), replace(LIST, name="list_all")]
    error = changed([FIND, LIST], listed, source="pins.json")
    first, *rest = str(error).splitlines()
    assert first == (
        "E-TOOL-006 the tools of server 'directory' differ from those of pins.json: "
        "changed 'find_person'; added 'list_all'; removed 'list_people'"
    )
    assert rest[:2] == ["--- find_person, pinned", "+++ find_person, listed"]
    assert '-    "City and time zone of a colleague."' in rest
    assert '+    "City of a colleague."' in rest
    assert rest[-1].endswith("Fix: review the changes, then run `mcprl tools pin` and start again.")


def test_a_server_that_the_pin_file_leaves_out_has_no_reviewed_tool():
    assert "added 'find_person', 'list_people'" in str(changed((), [FIND, LIST]))


def test_a_tool_listed_twice_is_no_tool_listed_once():
    assert "changed 'list_people'" in str(changed([LIST], [LIST, LIST]))


def test_a_long_diff_is_cut_and_says_by_how_much():
    many = {f"argument_{n}": {"type": "string"} for n in range(100)}
    error = changed([FIND], [replace(FIND, parameters={"type": "object", "properties": many})])
    lines = str(error).splitlines()
    assert len(lines) == 43
    assert lines[41].startswith("… and ")
    assert lines[41].endswith(" more lines")


def test_characters_that_a_reviewer_cannot_see_are_written_out():
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey") + "\u200b\x1b[2J"
    error = str(changed([FIND], [replace(FIND, description=FIND.description + hidden)]))
    assert all(char.isprintable() for char in error.replace("\n", ""))
    assert r"\udb40\udc6f" in error
    assert r"\u200b\u001b[2J" in error


def test_the_error_shows_no_secret():
    SECRETS.add("PINS_TEST_KEY", "sk-pins-0123456789abcdef")
    error = changed([FIND], [replace(FIND, description="Call with sk-pins-0123456789abcdef.")])
    assert "sk-pins-0123456789abcdef" not in str(error)


@given(st.lists(definitions, max_size=3), st.lists(definitions, max_size=3))
def test_lists_differ_exactly_where_their_hashes_do_and_a_difference_is_always_shown(pinned, listed):
    same = sorted(tool.fingerprint() for tool in pinned) == sorted(tool.fingerprint() for tool in listed)
    diff = compare_tools(pinned, listed)
    assert (diff is None) is same
    if diff is not None:
        names = {*diff.added, *diff.removed, *diff.changed}
        assert names
        # Two lines of header, one of place, and at least one of difference for each tool that differs.
        assert len(diff.lines) >= 4 * len(names)


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.text(max_size=5), st.lists(definitions, max_size=3))))
def test_what_was_written_is_read_back(tmp_path_factory, servers):
    path = tmp_path_factory.mktemp("pins") / "pins.json"
    write_pins(path, servers)
    read = read_pins(path)
    assert sorted(read) == sorted(servers)
    for name, (_, written) in servers.items():
        assert compare_tools(written, read[name]) is None
    assert list(path.parent.iterdir()) == [path]


def test_the_same_tools_give_the_same_file_whatever_the_order(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    shuffled = {name: FIND.parameters[name] for name in reversed(FIND.parameters)}
    write_pins(one, {"a": ("1", [FIND, LIST]), "b": ("2", [LIST])})
    write_pins(two, {"b": ("2", [LIST]), "a": ("1", [LIST, replace(FIND, parameters=shuffled)])})
    assert one.read_bytes() == two.read_bytes()


def test_the_file_is_readable_and_its_hashes_are_those_of_the_definitions(tmp_path):
    path = tmp_path / "new" / "folder" / "pins.json"
    write_pins(path, {"directory": ("2.1", [replace(FIND, description="Stadt — 市\u200b")])})
    text = path.read_text(encoding="utf-8")
    assert '"description": "Stadt — 市\\u200b"' in text
    entry = json.loads(text)["servers"]["directory"]
    assert entry["version"] == "2.1"
    tool = entry["tools"][0]
    digest = tool.pop("sha256")
    compact = json.dumps(tool, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(compact.encode()).hexdigest()


def test_another_version_of_a_server_with_the_same_tools_is_no_change(tmp_path):
    path = tmp_path / "pins.json"
    write_pins(path, {"directory": ("1.0", [FIND])})
    before = read_pins(path)
    write_pins(path, {"directory": ("1.1", [FIND])})
    assert read_pins(path) == before


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text.replace("City and", "Ignore all and"), "'find_person' of server 'directory' does not match"),
        (lambda text: text.replace('"read_only": true', '"read_only": false'), "does not match its sha256"),
        (lambda text: text[: len(text) // 2], "is not a pin file: the file"),
        (
            lambda text: text.replace('"mcprl_pins": 1', '"mcprl_pins": 2'),
            "format 2, but this version of mcprl reads format 1",
        ),
        (lambda text: text.replace('"version"', '"versoin"'), "servers.directory.version: Field required"),
        (lambda _: "[]", "is not a pin file"),
    ],
)
def test_a_file_edited_by_hand_is_an_error_with_the_fix(tmp_path, edit, says):
    path = tmp_path / "pins.json"
    write_pins(path, {"directory": ("1", [FIND])})
    path.write_text(edit(path.read_text()))
    with pytest.raises(ConfigFileError) as caught:
        read_pins(path)
    assert says in str(caught.value)
    assert "`mcprl tools pin`" in caught.value.fix


def test_a_missing_file_is_an_error_with_the_fix(tmp_path):
    with pytest.raises(
        ConfigFileError, match=r"nothing\.json cannot be read: .* Fix: create the file with `mcprl tools pin`"
    ):
        read_pins(tmp_path / "nothing.json")
