"""A Slack workspace on this machine: two pages of channels, a history each, and a record of every request."""

from local_upstream import LocalUpstream

TOKEN = "-".join(["xoxb", "7301984412", "Hq4vBz8RmKc2WpXt6YdNs3Lf"])
BOT = "U0BOT00001"
CHANNELS = [
    {"id": "C0GENERAL1", "name": "general", "is_member": True, "purpose": {"value": "Company-wide news"}},
    {"id": "C0RANDOM02", "name": "random", "is_member": True, "purpose": {"value": ""}},
    {"id": "C0DESK0003", "name": "trading-desk", "is_member": True, "purpose": {"value": "What we trade"}},
    {"id": "C0CLOSED04", "name": "closed", "is_member": False, "purpose": {"value": "Without the bot"}},
]
HISTORY = [
    {"type": "message", "user": "U0ANA", "text": "P/E &lt; 10 &amp; rising", "ts": "1751034700.000200"},
    {"type": "message", "bot_id": "B0FEED", "text": "VLKN opened at 210.10", "ts": "1751034600.000100"},
]
NO_SUCH_CHANNEL = {"ok": False, "error": "channel_not_found"}


def list_channels(request):
    """Two pages: the cursor says which."""
    second = request.params.get("cursor") == "page-2="
    page = CHANNELS[2:] if second else CHANNELS[:2]
    return {"ok": True, "channels": page, "response_metadata": {"next_cursor": "" if second else "page-2="}}


def read_history(request):
    known = {channel["id"] for channel in CHANNELS}
    if request.params["channel"] not in known:
        return NO_SUCH_CHANNEL
    messages = HISTORY if request.params["channel"] == "C0GENERAL1" else []
    return {"ok": True, "messages": messages[: int(request.params["limit"])], "has_more": False}


def post_message(request):
    message = {"type": "message", "user": BOT, "text": request.body["text"], "ts": "1751034900.000300"}
    return {"ok": True, "channel": request.body["channel"], "ts": message["ts"], "message": message}


ROUTES = {
    "GET /conversations.list": list_channels,
    "GET /conversations.history": read_history,
    "GET /auth.test": {"ok": True, "user_id": BOT, "team": "Test"},
    "POST /chat.postMessage": post_message,
}


def local_slack(**options):
    return LocalUpstream(ROUTES, **options)


def slack_environment(upstream):
    return {"SLACK_BOT_TOKEN": TOKEN, "SLACK_BASE_URL": upstream.url}


def posts(upstream):
    """Whatever reached the workspace that was not reading."""
    return [request for request in upstream.requests if request.method != "GET"]
