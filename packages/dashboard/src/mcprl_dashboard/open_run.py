"""The data of a run. Its files are read, and its episodes are indexed, on first use."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from threading import Lock, RLock, Thread
from typing import Any, cast

from mcprl.errors import McprlError, NoRunError
from mcprl.records import Message, Task
from mcprl.runs.folder import lock_holder
from mcprl.runs.past_runs import PastRun, RunStatus, is_run, read_run
from mcprl.secrets import SECRETS
from mcprl.tasks import load_preamble, load_tasks
from mcprl_dashboard.answers import Refusal, level
from mcprl_dashboard.episode_index import CLOSE_S, EpisodeIndex, closed
from mcprl_dashboard.line_files import JsonLines, file_signature


class TaskPrompts:
    """The tasks of a file by id. The file is read again when it changes."""

    def __init__(self, task_file: str, preamble_file: str) -> None:
        self._task_file, self._preamble_file = Path(task_file), Path(preamble_file) if preamble_file else None
        self._changed: int | None = None
        self._tasks: dict[str, Task] = {}
        self._preamble: tuple[Message, ...] = ()
        self._why: str | None = None
        self._lock = Lock()

    def get(self, task_id: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return a task, or None and the reason."""
        with self._lock:
            self._refresh()
            task = self._tasks.get(task_id)
            if task is None:
                return None, self._why or f"the task file {self._task_file} has no task with this id"
            return {
                "preamble": list(self._preamble),
                "prompt": list(task.prompt),
                "difficulty": task.difficulty.value,
                "tools": None if task.tools is None else list(task.tools),
                "goal": asdict(task.goal),
            }, None

    def _refresh(self) -> None:
        try:
            changed = self._task_file.stat().st_mtime_ns
        except OSError as error:
            self._tasks, self._changed = {}, None
            self._why = f"the task file {self._task_file} cannot be read: {error.strerror}"
            return
        if changed == self._changed:
            return
        self._changed, self._why = changed, None
        try:
            self._tasks = {task.id: task for task in load_tasks(self._task_file)}
            self._preamble = tuple(load_preamble(self._preamble_file)) if self._preamble_file is not None else ()
        except McprlError as error:
            self._tasks, self._why = {}, error.what


_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Converts token ids to text with a model's tokenizer.json. Supports byte-level BPE and byte fallback."""

    def __init__(self, tokenizer_file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._added = {token: str(found.content).encode() for token, found in added.items()}
        decoder: Any = self._tokenizer.decoder
        self._byte_level = decoder is not None and "ByteLevel" in _kinds(json.loads(decoder.__getstate__()))
        self._bytes: dict[int, bytes] = {}

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        last = len(ids) - 1
        return [decoder.decode(self._bytes_of(token), place == last) for place, token in enumerate(ids)]

    def _bytes_of(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._added.get(token) or self._look_up(token)
        return known

    def _look_up(self, token: int) -> bytes:
        written = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        if written is None:
            return f"<unknown token {token}>".encode()
        if self._byte_level:
            alphabet = _byte_alphabet()
            return b"".join(alphabet.get(sign) or sign.encode() for sign in written)
        one_byte = _BYTE_TOKEN.fullmatch(written)
        return bytes([int(one_byte[1], 16)]) if one_byte else written.replace("\u2581", " ").encode()


def find_tokenizer(model: str) -> Path:
    """Find the tokenizer.json of a model, in its folder or in the hub's cache. Downloads nothing."""
    if model.startswith(("/", ".")):
        found = Path(model) / "tokenizer.json"
    elif _HUB_NAME.fullmatch(model):
        found = _in_hub_cache(model)
    else:
        found = None
    if found is None or not found.is_file():
        what = f"this machine has no tokenizer.json for the model {model}"
        raise Refusal(404, "no-tokenizer", what, "restore the model's folder, or download the model again")
    return found


def _in_hub_cache(model: str) -> Path | None:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    stored = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    try:
        revision = (stored / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return stored / "snapshots" / revision / "tokenizer.json" if re.fullmatch(r"[0-9a-f]{40}", revision) else None


def _kinds(decoder: dict[str, Any]) -> list[str]:
    """Return the types of a decoder and of its parts."""
    inner: list[dict[str, Any]] = decoder.get("decoders") or []
    return [str(decoder.get("type")), *(kind for each in inner for kind in _kinds(each))]


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, bytes]:
    """Return the byte of each character in byte-level BPE: printable Latin-1 maps to itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): bytes([byte]) for byte in printable}
    return signs | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)}


_COURSE = 60  # values of a sparkline
_SIGNATURE = ("config.yaml", "metrics.jsonl", "health.jsonl", "summary.json", "end.json", "lock")


class OpenRun:
    """All data of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.resolve().name
        self.metrics = JsonLines(path / "metrics.jsonl")
        self.health = JsonLines(path / "health.jsonl")
        self.timeline = JsonLines(path / "timeline.jsonl")
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
        """End running queries within this time. No index is opened after this."""
        with self._index_lock:
            index, self._closed = self._index, True
        if index is not None:
            index.close(within_s)

    @property
    def index(self) -> EpisodeIndex:
        """Return the index, and open it if needed. Raises Refusal if the run is closed."""
        with self._index_lock:
            if self._closed:
                raise closed()
            if self._index is None:
                self._index = EpisodeIndex(self.path)
            return self._index

    def prepare(self) -> None:
        """Start slow work in the background, because the user will probably look at the run's episodes next."""
        if not self._prepared:
            self._prepared = True
            Thread(target=self._prepare, name="prepare-run", daemon=True).start()

    def tasks(self) -> TaskPrompts:
        """The tasks in the task file that the run's settings name."""
        files = self._named("tasks", "train"), self._named("tasks", "preamble")
        with self._lock:
            if files not in self._tasks:
                self._tasks = {files: TaskPrompts(*files)}
            return self._tasks[files]

    def token_texts(self) -> TokenTexts:
        """Return the converter of token ids. Raises Refusal if the tokenizer is missing."""
        path = find_tokenizer(self._named("model", "path"))
        with self._token_lock:
            if path not in self._tokenizers:
                self._tokenizers = {path: TokenTexts(path)}
            return self._tokenizers[path]

    def status(self) -> PastRun:
        """Return the run's status, read again if one of the run's small files has changed or its process is gone."""
        with self._lock:
            signature = [file_signature(self.path / name) for name in _SIGNATURE]
            known = self._status
            # A process that is killed changes no file.
            killed = known is not None and known.state is RunStatus.RUNNING and not lock_holder(self.path)[0]
            if known is None or signature != self._signature or killed:
                known = self._status = read_run(self.path)
                self._signature = signature
            return known

    def settings(self) -> Mapping[str, Any]:
        return self.status().config

    def setting(self, *path: str) -> Any:
        """Return a setting by its path; None if the run does not have it."""
        found: Any = self.settings()
        for name in path:
            found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def episodes_per_step(self) -> int | None:
        group_size, groups = self.setting("episodes", "group_size"), self.setting("training", "tasks_per_step")
        return group_size * groups if isinstance(group_size, int) and isinstance(groups, int) else None

    def card(self) -> dict[str, Any]:
        """Return the run's entry in the list of runs."""
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
        """Return the run with its settings and limits."""
        run = self.status()
        text = SECRETS.redact(_read_text(self.path / "config.yaml"))
        return self.card() | {
            "config": level(SECRETS.redact_json(_as_json(run.config))),
            "config_yaml": text,
            "bounds": self.bounds(),
            "directory": str(self.path),
        }

    def _named(self, *path: str) -> str:
        found = self.setting(*path)
        return found if isinstance(found, str) else ""

    def _prepare(self) -> None:
        with contextlib.suppress(Refusal):  # closed in the meantime, or without a tokenizer
            self.index.refresh()
            self.token_texts()

    def bounds(self) -> dict[str, float | None]:
        """Return the limits to compare a step's figures with; None for limits that the run does not have."""
        return {
            "clip_low": self.setting("algorithm", "clip_low"),
            "clip_high": self.setting("algorithm", "clip_high"),
            "kl_target": self.setting("algorithm", "kl", "target"),
            "kl_cap": self.setting("algorithm", "kl", "cap"),
            "min_learnable_share": self.setting("algorithm", "min_learnable_share"),
        }


def _as_json(config: Mapping[str, Any]) -> Any:
    """Convert YAML values to JSON: YAML has dates, which JSON does not."""
    return json.loads(json.dumps(config, default=str))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


class RunList:
    """The runs of a folder. Each request finds new runs and closes removed ones."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise NoRunError(
                f"there is no folder {folder}",
                fix="pass the folder of a run or of all your runs; `mcprl train RECIPE` starts a run",
            )
        self._folder = folder
        self._open: dict[str, OpenRun] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Close all runs at the same time, within the time limit for one run."""
        until = time.monotonic() + CLOSE_S
        with self._lock:
            closing, self._open = list(self._open.values()), {}
        for run in closing:
            run.close(max(0.0, until - time.monotonic()))

    def all(self) -> list[OpenRun]:
        """Return every run that exists now."""
        paths = self._paths()
        self._let_go({path.resolve().name for path in paths})
        return [self._opened(path) for path in paths]

    def get(self, run_id: str) -> OpenRun:
        """Return a run by name. The name is only compared with existing ones, and never used in a path."""
        for path in self._paths():
            if path.resolve().name == run_id:
                return self._opened(path)
        raise Refusal(404, "no-run", f"the dashboard has no run {run_id[:100]!r}", "choose a run from the list of runs")

    def cards(self) -> list[dict[str, Any]]:
        """Return the list of runs, most recently changed first."""
        cards: list[dict[str, Any]] = []
        for run in self.all():
            with contextlib.suppress(NoRunError, FileNotFoundError):  # removed after it was listed
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
