"""The built pages: index.html for every address of the dashboard, and the files that it loads. No data is in them."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from mcprl.dashboard.answers import Refusal

__all__ = ["asset", "index_page"]

_STATIC = Path(__file__).parent / "static"
_ASSET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_FOREVER = "public, max-age=31536000, immutable"  # the name of a built file changes with its content


def index_page(_: Request) -> Response:
    """The one page; its own script reads the address."""
    if not (_STATIC / "index.html").is_file():
        return PlainTextResponse(
            "The pages of the dashboard are not built.\nFix: run scripts/setup dashboard, and load this page again.\n",
            status_code=503,
        )
    return FileResponse(_STATIC / "index.html", media_type="text/html; charset=utf-8")


def asset(request: Request) -> Response:
    """A file that the page loads."""
    name = request.path_params["name"]
    path = _STATIC / "assets" / name
    if not _ASSET_NAME.fullmatch(name) or not path.is_file():
        raise Refusal(404, "no-file", "there is no such file", "load the page anew")
    return FileResponse(path, headers={"cache-control": _FOREVER})
