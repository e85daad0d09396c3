"""A run as the dashboard has it open: its files followed, its episodes indexed, each when it is first asked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock, RLock, Thread
from typing import Any, cast

from mcprl.dashboard.answers import Refusal, level
from mcprl.dashboard.episode_index import CLOSE_S, EpisodeIndex
from mcprl.dashboard.line_files import LineFile
from mcprl.dashboard.shared_database import closed
from mcprl.dashboard.task_prompts import TaskPrompts
from mcprl.dashboard.token_texts import TokenTexts, find_tokenizer
from mcprl.redact import SECRETS
from mcprl.training.past_runs import PastRun, RunStatus, lock_holder, read_run

__all__ = ["OpenRun", "file_signature"]

_COURSE = 60  # values of a sparkline
_SIGNATURE = ("config.yaml", "metrics.jsonl", "health.jsonl", "summary.json", "lock")


class OpenRun:
    """Everything that is asked of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.resolve().name
        self.metrics = LineFile(path / "metrics.jsonl")
        self.health = LineFile(path / "health.jsonl")
        self.timeline = LineFile(path / "timeline.jsonl")
        self._lock = RLock()
        self._index: EpisodeIndex | None = None
        self._index_lock = Lock()
        self._closed = False
        self._status: PastRun | None = None
        self._signature: object = None
        self._prepared = False
        self._tasks: dict[tuple[str, str], TaskPrompts] = {}
        self._token_lock = Lock()
        self._tokenizers: dict[Path, TokenTexts] = {}

    def close(self, within_s: float = CLOSE_S) -> None:
        """End what is asked of its episodes, within that time. No index is opened after this."""
        with self._index_lock:
            index, self._closed = self._index, True
        if index is not None:
            index.close(within_s)

    @property
    def index(self) -> EpisodeIndex:
        """Raises Refusal where the run is closed."""
        with self._index_lock:
            if self._closed:
                raise closed()
            if self._index is None:
                self._index = EpisodeIndex(self.path)
            return self._index

    def prepare(self) -> None:
        """Begin with what takes a while, in the background: whoever looks at a run looks at its episodes next."""
        if not self._prepared:
            self._prepared = True
            Thread(target=self._prepare, name="prepare-run", daemon=True).start()

    def tasks(self) -> TaskPrompts:
        """The tasks that the run is set to."""
        files = self._named("tasks", "train"), self._named("tasks", "preamble")
        with self._lock:
            if files not in self._tasks:
                self._tasks = {files: TaskPrompts(*files)}
            return self._tasks[files]

    def token_texts(self) -> TokenTexts:
        """Raises Refusal where the tokenizer is not there."""
        path = find_tokenizer(self._named("model", "path"))
        with self._token_lock:
            if path not in self._tokenizers:
                self._tokenizers = {path: TokenTexts(path)}
            return self._tokenizers[path]

    def status(self) -> PastRun:
        """Where the run stands. It is read again when one of its small files changes, or its process is gone."""
        with self._lock:
            signature = [file_signature(self.path / name) for name in _SIGNATURE]
            known = self._status
            # A process that is killed changes no file.
            killed = known is not None and known.state is RunStatus.RUNNING and not lock_holder(self.path / "lock")[0]
            if known is None or signature != self._signature or killed:
                known = self._status = read_run(self.path)
                self._signature = signature
            return known

    def settings(self) -> Mapping[str, Any]:
        return self.status().config

    def setting(self, *path: str) -> Any:
        """A setting by the names on the way to it; None where the run does not have it."""
        found: Any = self.settings()
        for name in path:
            found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def episodes_per_step(self) -> int | None:
        group_size, groups = self.setting("episodes", "group_size"), self.setting("training", "tasks_per_step")
        return group_size * groups if isinstance(group_size, int) and isinstance(groups, int) else None

    def card(self) -> dict[str, Any]:
        """The run in a list of runs."""
        run = self.status()
        rewards, rates = run.rewards, run.course("success_rate")
        worst = run.verdicts[0] if run.verdicts else None
        return {
            "id": self.id,
            "name": run.recipe or self.id,
            "state": run.state.value,
            "why": run.why or None,
            "step": run.steps_done,
            "steps": run.steps_wanted,
            "started": run.started,
            "updated": run.changed,
            "model": run.model,
            "engine": self.setting("engine"),
            "reward": list(rewards[-_COURSE:]),
            "success": list(rates[-_COURSE:]),
            "reward_last": rewards[-1] if rewards else None,
            "success_last": rates[-1] if rates else None,
            "worst": None if worst is None else asdict(worst),
        }

    def details(self) -> dict[str, Any]:
        """The run by itself: its settings, and what the figures are held against."""
        run = self.status()
        text = SECRETS.redact(_read_text(self.path / "config.yaml"))
        return self.card() | {
            "config": level(SECRETS.redact_json(_as_json(run.config))),
            "config_yaml": text,
            "bounds": self.bounds(),
            "episodes_per_step": self.episodes_per_step,
            "group_size": self.setting("episodes", "group_size"),
            "summary": _read_object(self.path / "summary.json"),
            "directory": str(self.path),
            "pid": run.pid,
            "size_bytes": run.size_bytes,
        }

    def _named(self, *path: str) -> str:
        found = self.setting(*path)
        return found if isinstance(found, str) else ""

    def _prepare(self) -> None:
        with contextlib.suppress(Refusal):  # closed meanwhile, or without a tokenizer
            self.index.refresh()
            self.token_texts()

    def bounds(self) -> dict[str, float | None]:
        """What the figures of a step are held against; None where nothing holds them."""
        clip_low, clip_high = self.setting("algorithm", "clip_low"), self.setting("algorithm", "clip_high")
        gate: Any = self.setting("algorithm", "ratio_gate") or [None, None]
        return {
            "clip_low": clip_low,
            "clip_high": clip_high,
            "ratio_low": 1 - clip_low if isinstance(clip_low, int | float) else None,
            "ratio_high": 1 + clip_high if isinstance(clip_high, int | float) else None,
            "gate_low": gate[0],
            "gate_high": gate[1],
            "kl_target": self.setting("algorithm", "kl", "target"),
            "kl_cap": self.setting("algorithm", "kl", "cap"),
            "min_learnable_share": self.setting("algorithm", "min_learnable_share"),
            "min_learnable_tokens": self.setting("algorithm", "min_learnable_tokens"),
            "max_importance": self.setting("algorithm", "max_importance"),
            "max_parity_error": self.setting("learner", "max_parity_error"),
        }


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _as_json(config: Mapping[str, Any]) -> Any:
    """YAML has dates, which JSON does not."""
    return json.loads(json.dumps(config, default=str))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
