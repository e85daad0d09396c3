"""The chat server as a real process before a local Slack: what it reads, where posts go, whose fault a failure is."""
# R14

import json
import sys

import pytest
from local_slack import BOT, CHANNELS, TOKEN, local_slack, posts, slack_environment
from local_upstream import BUSY, Trouble
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.stdio import stdio_client as stdio_transport
from served_specs import served_spec

from mcprl.errors import CallDeadlineError, Fault, ServerBusyError, ServerFaultError, ServerStartError
from mcprl.records import ToolCall
from mcprl.tools import Toolbox

pytestmark = pytest.mark.process

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])
FAULTS = [
    Trouble.KEY_REFUSED, Trouble.FORBIDDEN, Trouble.BROKEN, Trouble.DOWN, Trouble.MOVED, Trouble.RESET,
    Trouble.TRUNCATED, Trouble.MALFORMED, Trouble.NOT_A_NUMBER, Trouble.WRONG_TYPE, Trouble.HOLLOW, Trouble.HUGE,
]  # fmt: skip
NOT_THE_POLICYS = [
    "invalid_auth", "not_authed", "account_inactive", "token_revoked", "missing_scope", "internal_error",
    "fatal_error", "org_login_required", "a_code_of_next_year",
]  # fmt: skip
HISTORY_TEXT = (
    "**History of #general (newest first):**\n\n"
    "[2025-06-27 10:31:40] @U0ANA: P/E < 10 & rising\n"
    "[2025-06-27 10:30:00] @B0FEED: VLKN opened at 210.10"
)


@pytest.fixture
def upstream():
    with local_slack() as served:
        yield served


def slack(upstream, tmp_path, transport, *options, **settings):
    spec = served_spec("slack", transport, *options, env=slack_environment(upstream), **settings)
    return Toolbox([spec], log_dir=tmp_path)


async def channels(lease):
    return await lease.call(ToolCall(name="list_slack_channels", arguments={}))


async def send(lease, message, channel="general"):
    return await lease.call(ToolCall(name="send_slack_message", arguments={"channel": channel, "message": message}))


async def history(lease, channel="general", limit=10):
    arguments = {"channel_id": channel, "limit": limit}
    return await lease.call(ToolCall(name="get_slack_channel_history", arguments=arguments))


def logs_in(folder):
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@TRANSPORTS
async def test_channels_of_all_pages_and_their_history_are_read(upstream, tmp_path, transport):
    async with slack(upstream, tmp_path, transport) as toolbox, toolbox.lease(None) as lease:
        assert toolbox.definitions["slack"][0] == "1"
        assert (await channels(lease)).text == (
            "**Public Channels (4):**\n\n#general (ID: C0GENERAL1) - Company-wide news\n#random (ID: C0RANDOM02)\n"
            "#trading-desk (ID: C0DESK0003) - What we trade\n#closed (ID: C0CLOSED04) - Without the bot"
        )
        for name in ("general", "#General", "C0GENERAL1"):
            assert (await history(lease, name)).text == HISTORY_TEXT
        assert (await history(lease, limit=1)).text.endswith("@U0ANA: P/E < 10 & rising")
        assert (await history(lease, "random")).text == "#random has no messages."
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in upstream.requests)
    assert all(TOKEN not in request.target for request in upstream.requests)
    # The channels are asked for once: Slack allows few listings a minute, and every call needs them.
    assert [request.path for request in upstream.requests].count("/conversations.list") == 2


@TRANSPORTS
async def test_without_the_flag_no_post_ever_reaches_slack_and_each_episode_reads_its_own(
    upstream, tmp_path, transport
):
    async with slack(upstream, tmp_path, transport) as toolbox:
        async with toolbox.lease(None) as one, toolbox.lease(None) as other:
            for number in range(60):
                lease = one if number % 2 else other
                sent = await send(lease, f"message {number}", CHANNELS[number % 3]["name"])
                assert sent.text == f"✅ Message sent to #{CHANNELS[number % 3]['name']}"
            own, others = (await history(one, "random", 3)).text, (await history(other, "random", 3)).text
        async with toolbox.lease(None) as fresh:
            assert (await history(fresh)).text == HISTORY_TEXT
    assert [line.split("@")[1] for line in own.splitlines()[2:]] == [f"{BOT}: message {n}" for n in (55, 49, 43)]
    assert [line.split("@")[1] for line in others.splitlines()[2:]] == [f"{BOT}: message {n}" for n in (58, 52, 46)]
    assert posts(upstream) == []
    assert {request.path for request in upstream.requests} == {
        "/conversations.list",
        "/conversations.history",
        "/auth.test",
    }
    assert "Slack is only read" in " ".join(logs_in(tmp_path).split())


@TRANSPORTS
async def test_with_the_flag_a_message_is_posted_once_and_told_in_the_same_words(upstream, tmp_path, transport):
    async with slack(upstream, tmp_path, transport, "--post-for-real") as toolbox, toolbox.lease(None) as lease:
        sent = await send(lease, "VLKN < 214 & up 🚀", "#trading-desk")
        assert sent.text == "✅ Message sent to #trading-desk"
    (post,) = posts(upstream)
    assert post.path == "/chat.postMessage"
    assert post.body == {"channel": "C0DESK0003", "text": "VLKN < 214 & up 🚀"}
    assert "messages are posted to the real" in " ".join(logs_in(tmp_path).split())


@TRANSPORTS
async def test_no_fault_of_the_upstream_is_the_policys_and_after_each_the_next_call_works(
    upstream, tmp_path, transport
):
    errors = []
    async with slack(upstream, tmp_path, transport) as toolbox, toolbox.lease(None) as lease:
        for ask in (channels, history):  # a good list of channels is kept, so its faults come first
            for trouble in FAULTS:
                with upstream.failing(trouble), pytest.raises(ServerFaultError) as caught:
                    await ask(lease)
                assert caught.value.retry_after_s is None, trouble
                errors.append(str(caught.value))
                assert (await send(lease, "")).fault is Fault.POLICY  # it answers, without asking Slack
            for trouble, wait_s in BUSY.items():
                with upstream.failing(trouble), pytest.raises(ServerBusyError) as caught:
                    await ask(lease)
                assert caught.value.retry_after_s == wait_s, trouble
                errors.append(str(caught.value))
            assert (await ask(lease)).fault is None
        assert toolbox.restarts == 0
    assert len(errors) == 2 * (len(FAULTS) + len(BUSY))
    assert TOKEN not in " ".join(errors) + logs_in(tmp_path)


@pytest.mark.parametrize("flags", [(), ("--post-for-real",)])
async def test_an_error_in_the_body_of_a_200_is_sorted_by_its_code(upstream, tmp_path, flags):
    async with slack(upstream, tmp_path, "stdio", *flags) as toolbox, toolbox.lease(None) as lease:
        await channels(lease)
        for code in NOT_THE_POLICYS:
            upstream.disguise = {"ok": False, "error": code}
            with upstream.failing(Trouble.DISGUISED), pytest.raises(ServerFaultError, match=code):
                await (send(lease, "hello") if flags else history(lease))
            assert (await history(lease)).fault is None
        upstream.disguise = {"ok": False, "error": "ratelimited"}
        with upstream.failing(Trouble.DISGUISED), pytest.raises(ServerBusyError) as caught:
            await history(lease)
        assert caught.value.retry_after_s == 1
        for code in ("channel_not_found", "not_in_channel", "is_archived"):
            upstream.disguise = {"ok": False, "error": code}
            with upstream.failing(Trouble.DISGUISED):
                refused = await history(lease)
            assert refused.fault is Fault.POLICY
            assert refused.text.endswith(f"(Slack: {code})")
    assert bool(posts(upstream)) is bool(flags)


async def test_what_slack_says_to_a_real_post_is_the_policys_to_read(upstream, tmp_path):
    async with slack(upstream, tmp_path, "stdio", "--post-for-real") as toolbox, toolbox.lease(None) as lease:
        for code in ("msg_too_long", "no_text", "not_in_channel", "restricted_action", "channel_not_found"):
            upstream.routes["POST /chat.postMessage"] = {"ok": False, "error": code}
            refused = await send(lease, "hello")
            assert refused.fault is Fault.POLICY
            assert refused.text.endswith(f"(Slack: {code})")
    assert len(posts(upstream)) == 5


async def test_a_real_post_that_failed_is_not_made_again(upstream, tmp_path):
    async with (
        slack(upstream, tmp_path, "stdio", "--post-for-real", attempts=3) as toolbox,
        toolbox.lease(None) as lease,
    ):
        await channels(lease)
        with upstream.failing(Trouble.TRUNCATED):
            with pytest.raises(ServerFaultError):
                await send(lease, "hello")
            assert len(posts(upstream)) == 1
            with pytest.raises(ServerFaultError):
                await history(lease)
        assert [request.path for request in upstream.requests].count("/conversations.history") == 3


async def test_an_unknown_channel_and_one_without_the_bot_are_the_policys_mistake(upstream, tmp_path):
    async with slack(upstream, tmp_path, "stdio") as toolbox, toolbox.lease(None) as lease:
        for refused in (await send(lease, "x", "#daily-gainers"), await history(lease, "daily-gainers")):
            assert refused.fault is Fault.POLICY
            assert all(f"#{channel['name']} ({channel['id']})" in refused.text for channel in CHANNELS)
        closed = await send(lease, "x", "closed")
        assert closed.fault is Fault.POLICY
        assert closed.text.endswith("(Slack: not_in_channel)")
    assert posts(upstream) == []


async def test_a_list_of_channels_without_end_is_given_up(upstream, tmp_path):
    upstream.routes["GET /conversations.list"] = {
        "ok": True,
        "channels": CHANNELS[:1],
        "response_metadata": {"next_cursor": "again"},
    }
    async with slack(upstream, tmp_path, "stdio") as toolbox, toolbox.lease(None) as lease:
        with pytest.raises(ServerFaultError, match="more than 100 pages"):
            await channels(lease)
    assert len(upstream.requests) == 100


async def test_an_upstream_that_keeps_silent_costs_one_call_its_deadline(upstream, tmp_path):
    async with slack(upstream, tmp_path, "stdio") as toolbox, toolbox.lease(None) as lease:
        await channels(lease)
        for trouble in (Trouble.SILENT, Trouble.DRIPPING):
            with upstream.failing(trouble), pytest.raises(CallDeadlineError):
                await upstream.unanswered(history(lease))
            assert (await history(lease)).text == HISTORY_TEXT


async def test_the_token_never_leaves_the_server_whoever_the_client_is(upstream, tmp_path):
    """A bare client knows no secrets: what it sees and what the server logs is what the server itself lets out."""
    environment = slack_environment(upstream)
    command = StdioServerParameters(command=sys.executable, args=["-m", "mcprl", "serve", "slack"], env=environment)
    seen = []
    with (tmp_path / "stderr").open("w+") as log:
        async with Client(stdio_transport(command, errlog=log)) as client:
            for trouble in [*FAULTS, *BUSY, Trouble.DISGUISED]:
                upstream.disguise = {"ok": False, "error": f"unheard_of {TOKEN}"}
                with upstream.failing(trouble), pytest.raises(MCPError) as caught:
                    await client.call_tool("list_slack_channels", {})
                seen.append(json.dumps([caught.value.message, caught.value.data]))
    seen.append((tmp_path / "stderr").read_text())
    assert "unheard_of" in seen[-2]
    assert TOKEN not in "".join(seen)


async def test_without_a_token_the_server_says_which_one_it_needs(tmp_path):
    with pytest.raises(ServerStartError, match=r"(?s)SLACK_BOT_TOKEN.*--world"):
        async with Toolbox([served_spec("slack", "stdio", env={"SLACK_BOT_TOKEN": ""})], log_dir=tmp_path):
            pass
