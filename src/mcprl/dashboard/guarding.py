"""Who may ask, and what a browser may do with the answers.

The server listens on loopback only, but every user of the machine can connect to it, and any page that a browser has
open can send requests there. So every request needs the token of the printed link: in the query of the first request,
which sets a cookie, and in that cookie afterwards. A foreign page gives itself away by its Origin, and one whose name
was made to resolve to 127.0.0.1 by the Host that it asks for. What is answered runs no script but the dashboard's own
files, in no frame, and sends nothing elsewhere.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcprl.dashboard.answers import Refusal

__all__ = ["Guard"]

_OWN_NAMES = ("127.0.0.1", "localhost")
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Refuses foreign requests and puts the headers on every answer, refusals and errors included."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = _refusal(scope)
        app = self._with_token(scope) if refusal is None else refusal.answer()
        await app(scope, receive, send_guarded)

    def _with_token(self, scope: Scope) -> ASGIApp:
        """What answers a request: the application if it has the token, and if that is in its query a redirect to the
        same address without it, so that it is not in the browser's history."""
        request = Request(scope)
        cookie = f"mcprl-{scope['server'][1]}"  # a browser sends cookies to all ports of a host
        if self._is_token(request.query_params.get("token")):
            rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
            answer = RedirectResponse(request.url.replace(scheme="", netloc="", query=rest), status_code=303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="lax")
            return answer
        if self._is_token(request.cookies.get(cookie)):
            return self._app
        fix = "open the link that `mcprl dashboard` printed, with its token"
        return Refusal(401, "no-token", "the request lacks the token of this dashboard", fix).answer()

    def _is_token(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self._token.encode())


def _refusal(scope: Scope) -> Refusal | None:
    headers = Headers(scope=scope)
    server: tuple[str, int] | None = scope.get("server")
    own = {f"{name}:{server[1]}" for name in _OWN_NAMES} if server is not None else set[str]()
    if headers.get("host", "").lower() not in own:
        return Refusal(403, "foreign-host", "the request is for another host", "open the address that mcprl printed")
    origin = headers.get("origin")
    if origin is not None and not _is_own(origin, own):
        return Refusal(403, "foreign-origin", "the request comes from another page", "open the dashboard itself")
    if scope["method"] not in ("GET", "HEAD"):
        return Refusal(405, "read-only", "the dashboard only shows", "ask with GET")
    return None


def _is_own(origin: str, own: set[str]) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() in own
