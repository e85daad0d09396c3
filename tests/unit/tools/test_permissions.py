"""Which tools are on offer."""
# R15

import pytest

from mcprl.tools.catalog import is_offered, matches


@pytest.mark.parametrize(
    ("tool", "allow", "deny", "offered"),
    [
        ("read_file", ("*",), (), True),
        ("read_file", ("read_*", "list_*"), (), True),
        ("write_file", ("read_*", "list_*"), (), False),
        ("read_file", ("*",), ("write_*",), True),
        ("write_file", ("*",), ("write_*",), False),
        ("write_file", ("write_file",), ("write_file",), False),
        ("Read_file", ("read_*",), (), False),
        ("delete", ("*",), ("Delete",), True),
        ("read_file", ("read",), (), False),
        ("my_read_file", ("read_*",), (), False),
        ("read_file", (), (), False),
        ("a.b", ("a?b",), (), True),
        ("axb", ("a.b",), (), False),
    ],
)
def test_a_tool_is_offered_where_allowed_and_not_denied(tool, allow, deny, offered):
    assert is_offered(tool, allow, deny) is offered


def test_no_pattern_matches_nothing():
    assert not matches("anything", ())
    assert matches("get_quote", ("search", "get_*"))
