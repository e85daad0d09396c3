"""A real browser at a real dashboard, and what it must never have seen: dialogs, errors, requests to elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

__all__ = ["Visit", "dashboard", "visit"]

_SERVE = (
    "import sys, pathlib; from mcprl_dashboard.app import serve; serve(pathlib.Path(sys.argv[1]), open_browser=False)"
)
_HURTS = ("serious", "critical")


@contextmanager
def dashboard(folder: Path) -> Generator[str]:
    """The printed link of a dashboard of a folder, served by a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        yield next(word for word in said.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class Visit:
    """A page of the dashboard, and all that went wrong on it. `address` is that of the dashboard, without a path."""

    def __init__(self, page: Page, link: str) -> None:
        self.page = page
        self.address = "{0.scheme}://{0.netloc}".format(urlsplit(link))
        self.wrong: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._refuse)
        page.on("request", self._look)

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def faults(self, axe: str) -> list[str]:
        """What axe finds that keeps people from using the page, in words."""
        self.page.evaluate(axe)
        found: dict[str, Any] = self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{fault['id']}: {fault['help']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for fault in found["violations"]
            if fault["impact"] in _HURTS
            for node in fault["nodes"][:3]
        ]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _refuse(self, dialog: Dialog) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _look(self, request: Request) -> None:
        asked = urlsplit(request.url)
        if f"{asked.scheme}://{asked.netloc}" != self.address:
            self.wrong.append(f"request: {request.url[:200]}")


@contextmanager
def visit(
    browser: Browser, link: str, *, theme: str = "light", width: int = 1440, height: int = 900
) -> Generator[Visit]:
    """A page after the printed link was opened. Nothing may have gone wrong on it in the end."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    try:
        made = Visit(context.new_page(), link)
        made.page.goto(link)
        yield made
        assert made.wrong == []
    finally:
        context.close()
