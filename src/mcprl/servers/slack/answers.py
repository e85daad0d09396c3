"""Slack's answers. It says 200 to almost everything, and in the body whether that is true: {"ok": false, "error": …}.

An error code is one of three things: what the caller asked cannot be (a ToolError, which the policy reads), Slack is
asked too often, or something is wrong with the token or with Slack. A code that is not known here is no policy's
fault: a rule that is new to us must not be learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from mcprl.servers.json_fields import JsonFields
from mcprl.servers.upstream import UNSAID_WAIT_S, upstream_fault

__all__ = ["NAME", "checked_answer", "refusal"]

NAME = "slack"

_NO_POSTING = "The workspace does not allow this bot to post there. Choose another channel."
_REFUSALS: Mapping[str, str] = {
    "channel_not_found": "Slack finds no such channel. Use list_slack_channels to see which there are.",
    "not_in_channel": "The bot is not a member of that channel. Choose another channel.",
    "is_archived": "That channel is archived. Choose another channel.",
    "msg_too_long": "The message is too long for Slack. Shorten it.",
    "no_text": "The message is empty. Write what to send.",
    "restricted_action": _NO_POSTING,
    "restricted_action_non_threadable_channel": _NO_POSTING,
    "restricted_action_read_only_channel": _NO_POSTING,
    "restricted_action_thread_only_channel": _NO_POSTING,
}
_BUSY = frozenset({"ratelimited", "rate_limited"})
_TOKEN = frozenset(
    {
        "access_denied",
        "account_inactive",
        "accesslimited",
        "ekm_access_denied",
        "enterprise_is_restricted",
        "invalid_auth",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "not_authed",
        "org_login_required",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
        "two_factor_setup_required",
    }
)
_MAX_CODE_CHARS = 100


def checked_answer(method: str, answer: Any) -> JsonFields:
    """The fields of an answer that says it is well; otherwise what it says is raised."""
    fields = JsonFields(NAME, method, answer)
    if fields.flag("ok"):
        return fields
    code = fields.text("error")[:_MAX_CODE_CHARS]
    if code in _REFUSALS:
        raise refusal(code)
    if code in _BUSY:
        raise upstream_fault(NAME, f"is asked too often ({method}: {code})", UNSAID_WAIT_S)
    if code in _TOKEN:
        needed = f", needs {fields.text('needed')}" if "needed" in fields else ""
        raise upstream_fault(NAME, f"refused the token ({method}: {code}{needed})")
    raise upstream_fault(NAME, f"failed ({method}: {code})")


def refusal(code: str) -> ToolError:
    """What a caller is told who asked for something that cannot be."""
    return ToolError(f"{_REFUSALS[code]} (Slack: {code})")
