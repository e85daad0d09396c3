"""Pinned tools: the same tools pass in any order, other tools are an error that shows what changed."""
# R15

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import ToolsChangedError
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.pins import PinnedTools

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


def changed(first, listed) -> ToolsChangedError:
    pinned = PinnedTools("directory")
    pinned.check(first)
    with pytest.raises(ToolsChangedError) as caught:
        pinned.check(listed)
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
        ToolsChangedError, match="server 'directory' changed its tools during the run: changed 'find_person'"
    ):
        pinned.check([replace(FIND, description="City of a colleague."), LIST])
    assert pinned.definitions == (FIND, LIST)


def test_a_server_without_tools_at_the_start_may_not_gain_one():
    pinned = PinnedTools("directory")
    pinned.check([])
    with pytest.raises(ToolsChangedError, match="added 'find_person'"):
        pinned.check([FIND])


def test_the_error_names_what_was_added_removed_and_changed_with_a_diff_and_the_fix():
    listed = [replace(FIND, description="City of a colleague."), replace(LIST, name="list_all")]
    error = changed([FIND, LIST], listed)
    first, *rest = str(error).splitlines()
    assert first == (
        "E-TOOL-006 server 'directory' changed its tools during the run: "
        "changed 'find_person'; added 'list_all'; removed 'list_people'"
    )
    assert rest[:2] == ["--- find_person, first", "+++ find_person, now"]
    assert '-    "City and time zone of a colleague."' in rest
    assert '+    "City of a colleague."' in rest
    assert rest[-1].endswith("then start or resume the run; keep the server from changing while the run is open.")


def test_a_tool_listed_twice_is_no_tool_listed_once():
    assert "changed 'list_people'" in str(changed([LIST], [LIST, LIST]))


def test_a_long_diff_is_cut_and_says_so():
    many = {f"argument_{n}": {"type": "string"} for n in range(100)}
    error = changed([FIND], [replace(FIND, parameters={"type": "object", "properties": many})])
    lines = str(error).splitlines()
    assert len(lines) == 43
    assert lines[41] == "… and more"


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
def test_lists_differ_exactly_where_their_hashes_do_and_a_difference_is_always_shown(first, listed):
    pinned = PinnedTools("directory")
    pinned.check(first)
    if sorted(tool.fingerprint() for tool in first) == sorted(tool.fingerprint() for tool in listed):
        pinned.check(listed)
        return
    lines = str(changed(first, listed)).splitlines()
    assert any(line.startswith(("-", "+")) and not line.startswith(("---", "+++")) for line in lines)
