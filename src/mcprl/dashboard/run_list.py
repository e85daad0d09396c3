"""Which runs are shown: those in a folder of runs, or one. A run is known by the name of its folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container
from pathlib import Path
from threading import Lock
from typing import Any

from mcprl.dashboard.answers import Refusal
from mcprl.dashboard.episode_index import CLOSE_S
from mcprl.dashboard.open_run import OpenRun
from mcprl.errors import NoRunError
from mcprl.training.past_runs import is_run

__all__ = ["RunList"]


class RunList:
    """The runs of a folder. New ones are found when they are asked for, and what is gone is let go."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise NoRunError(
                f"there is no folder {folder}",
                fix="name the folder of a run or of your runs; mcprl train RECIPE starts the first one",
            )
        self._folder = folder
        self._open: dict[str, OpenRun] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Close all of them, which together take no longer than one may."""
        until = time.monotonic() + CLOSE_S
        with self._lock:
            closing, self._open = list(self._open.values()), {}
        for run in closing:
            run.close(max(0.0, until - time.monotonic()))

    def all(self) -> list[OpenRun]:
        """Every run that is there now."""
        paths = self._paths()
        self._let_go({path.resolve().name for path in paths})
        return [self._opened(path) for path in paths]

    def get(self, run_id: str) -> OpenRun:
        """The run of a name. The name is compared with those there are, and never becomes part of a path."""
        for path in self._paths():
            if path.resolve().name == run_id:
                return self._opened(path)
        raise Refusal(404, "no-run", f"there is no run {run_id[:100]!r} here", "choose one of the list of runs")

    def cards(self) -> list[dict[str, Any]]:
        """The list of runs, the last changed first."""
        cards: list[dict[str, Any]] = []
        for run in self.all():
            with contextlib.suppress(NoRunError, FileNotFoundError):  # removed since it was listed
                cards.append(run.card())
        return sorted(cards, key=lambda card: (-card["updated"], card["id"]))

    def _paths(self) -> list[Path]:
        if is_run(self._folder):
            return [self._folder]
        return [path for path in self._folder.iterdir() if path.is_dir() and is_run(path)]

    def _let_go(self, kept: Container[str]) -> None:
        with self._lock:
            gone = [self._open.pop(run_id) for run_id in list(self._open) if run_id not in kept]
        for run in gone:
            run.close()

    def _opened(self, path: Path) -> OpenRun:
        with self._lock:
            run_id = path.resolve().name
            if run_id not in self._open:
                self._open[run_id] = OpenRun(path)
            return self._open[run_id]
