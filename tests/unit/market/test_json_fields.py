"""Reading an upstream's JSON: what is there is read with its type, what is not is named with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError

from mcprl_market.upstream import JsonFields, json_objects

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
READERS = [name for name in vars(JsonFields) if not name.startswith("_") and name != "wrong"]


def fields(**values) -> JsonFields:
    return JsonFields("up", "answer", values)


def test_each_reader_gives_its_type():
    made = fields(
        t="text", n=2, f=2.5, big=1.5e9, yes=True, inner={"a": 1}, items=[{"a": 2}], tags=["x"], named={"k": "v"}
    )
    assert made.text("t") == made.maybe_text("t") == "text"
    assert (made.number("n"), made.number("f")) == (2.0, 2.5)
    assert isinstance(made.number("n"), float)
    assert (made.whole("n"), made.whole("big"), made.maybe_whole("f")) == (2, 1_500_000_000, 2)
    assert made.flag("yes") is True
    assert made.fields("inner").whole("a") == 1
    assert made.objects("items")[0].whole("a") == 2
    assert made.maybe_texts("tags") == ["x"]
    assert made.texts_by_name("named") == {"k": "v"}
    assert "t" in made
    assert "absent" not in made


def test_what_may_be_missing_is_none_for_null_and_absent_alike():
    made = fields(null=None)
    for name in ("null", "absent"):
        assert made.maybe_text(name) is made.maybe_number(name) is made.maybe_whole(name) is None
        assert made.maybe_texts(name) == []


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda made: made.text("absent"), "answer.absent should be a string, but is missing"),
        (lambda made: made.text("n"), "answer.n should be a string, but is int '2'"),
        (lambda made: made.maybe_text("n"), "answer.n should be a string"),
        (lambda made: made.number("yes"), "answer.yes should be a number, but is bool"),
        (lambda made: made.whole("t"), "answer.t should be a number, but is str 'text'"),
        (lambda made: made.flag("n"), "answer.n should be true or false"),
        (lambda made: made.fields("n"), "answer.n should be an object"),
        (lambda made: made.objects("inner"), "answer.inner should be a list"),
        (
            lambda made: made.objects("items")[1].whole("a"),
            "answer.items[1].a should be a whole number, but is missing",
        ),
        (lambda made: made.objects("mixed"), "answer.mixed[1] should be an object"),
        (lambda made: made.maybe_texts("mixed"), "answer.mixed should be a list of strings"),
        (lambda made: made.texts_by_name("inner"), "answer.inner.a should be a string"),
        (lambda made: made.number("vast"), "answer.vast should be a number that fits a 64-bit float"),
        (lambda made: json_objects("up", "root", {}), "root should be a list"),
    ],
)
def test_a_missing_or_wrong_field_is_named_with_its_place(read, told):
    made = fields(t="text", n=2, yes=True, inner={"a": 1}, items=[{"a": 2}, {}], mixed=[{}, 1], vast=10**400)
    with pytest.raises(MCPError) as caught:
        read(made)
    assert caught.value.message.startswith("up: the upstream sent an unexpected response: ")
    assert told in caught.value.message


def told(read) -> str:
    """The error message of a reader, or nothing."""
    try:
        read()
    except MCPError as error:
        return error.message
    return ""


@given(JSON, st.sampled_from(READERS))
def test_no_json_makes_a_reader_fail_in_another_way(value, reader):
    wrong = told(lambda: getattr(JsonFields("up", "answer", {"field": value}), reader)("field"))
    assert wrong == "" or "answer.field" in wrong
    wrong = told(lambda: json_objects("up", "answer", value))
    assert wrong == "" or "answer" in wrong
