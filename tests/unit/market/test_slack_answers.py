"""Slack's answers and records: which error code is whose fault, channels by any of their names, order of messages."""
# R15

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import INVALID_PARAMS

from mcprl.protocol import RETRY_AFTER_S
from mcprl_market.slack import checked_answer, find_channel, newest_first
from mcprl_market.world.facts import Channel, ChatMessage

GENERAL = Channel(id="C0GENERAL1", name="general", purpose="All")
DESK = Channel(id="C0DESK0002", name="trading-desk")
POLICY_CODES = [
    "channel_not_found", "not_in_channel", "is_archived", "msg_too_long", "no_text", "restricted_action",
    "restricted_action_read_only_channel",
]  # fmt: skip
TOKEN_CODES = [
    "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "missing_scope",
]  # fmt: skip
SLACKS_OWN_CODES = ["internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"]


def failed(code, **more):
    return {"ok": False, "error": code, **more}


def test_an_answer_that_is_well_gives_its_fields():
    assert checked_answer("auth.test", {"ok": True, "user_id": "U0BOT"}).text("user_id") == "U0BOT"


@pytest.mark.parametrize("code", POLICY_CODES)
def test_a_mistake_of_the_caller_is_a_readable_tool_error_with_slacks_code(code):
    with pytest.raises(ToolError, match=rf"\w+ \w+.*\. \(Slack: {code}\)$"):
        checked_answer("chat.postMessage", failed(code))


@pytest.mark.parametrize("code", [*TOKEN_CODES, *SLACKS_OWN_CODES, "a_code_of_next_year"])
def test_any_other_failure_is_a_protocol_error_with_the_method_and_the_code(code):
    with pytest.raises(MCPError, match=rf"chat\.postMessage: {code}") as caught:
        checked_answer("chat.postMessage", failed(code))
    assert caught.value.code != INVALID_PARAMS  # clients take that one for a fault of the caller
    assert caught.value.data is None


@pytest.mark.parametrize("code", ["ratelimited", "rate_limited"])
def test_slack_asked_too_often_asks_for_a_wait(code):
    with pytest.raises(MCPError, match="received too many calls") as caught:
        checked_answer("conversations.list", failed(code))
    assert caught.value.data[RETRY_AFTER_S] > 0


def test_a_missing_scope_is_named():
    with pytest.raises(MCPError, match="missing_scope, needs channels:history"):
        checked_answer("conversations.history", failed("missing_scope", needed="channels:history"))


@pytest.mark.parametrize("answer", [None, [], "ok", {}, {"ok": "yes"}, {"ok": False}, {"ok": False, "error": 7}])
def test_an_answer_of_another_shape_is_a_protocol_error(answer):
    with pytest.raises(MCPError, match="an unexpected response"):
        checked_answer("auth.test", answer)


@given(st.text())
def test_no_code_whatever_is_taken_for_an_answer(code):
    with pytest.raises((MCPError, ToolError)):
        checked_answer("auth.test", failed(code))


@pytest.mark.parametrize("wanted", ["C0GENERAL1", "c0general1", "general", "#general", " #General ", "GENERAL"])
def test_a_channel_is_found_by_id_and_by_name_whatever_the_case(wanted):
    assert find_channel([GENERAL, DESK], wanted) == GENERAL


@pytest.mark.parametrize("wanted", ["", "#", "gener", "##general", "C0GENERAL", "#C0DESK00021"])
def test_what_only_resembles_a_channel_is_none(wanted):
    assert find_channel([GENERAL, DESK], wanted) is None


def test_an_id_wins_over_a_channel_that_is_called_like_it():
    impostor = Channel(id="C0OTHER", name="c0desk0002")
    assert find_channel([impostor, DESK], "C0DESK0002") == DESK
    assert find_channel([DESK, impostor], "C0DESK0002") == DESK


@given(st.lists(st.integers(0, 10**16 - 1), unique=True))
def test_messages_come_newest_first_to_the_last_microsecond(moments):
    messages = [
        ChatMessage(channel_id="C1", user="U1", text=str(us), timestamp=f"{us // 10**6}.{us % 10**6:06d}")
        for us in moments
    ]
    assert [int(message.text) for message in newest_first(messages)] == sorted(moments, reverse=True)
