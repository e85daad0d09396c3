"""Places of a run at which its process ends itself by SIGKILL, by phase. They are patched in: the run knows nothing.

A kill of the process loses what it holds in memory and nothing that the system was given. So what matters is between
which two calls it comes, and not when: each place is before, after or in the middle of one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

__all__ = ["PLACES", "Place", "arm", "place_called"]

_TRAINING = "mcprl.training"
_RUNS = "mcprl.runs"
_TORCH_LEARNER = "mcprl.learning.torch_learner:TorchLearner"
_TRANSFORMERS = "mcprl.samplers.transformers:TransformersSampler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A call to be killed at, in at most its `latest`-th time, counted from the start of the process.

    Place(phase="updating", call="mcprl.learning.optimizer:Optimisation.step", when="before", latest=3)
    """

    phase: str
    call: str
    when: str
    latest: int = 1

    @property
    def name(self) -> str:
        return f"{self.when} {self.call}"


def _both(phase: str, call: str, latest: int = 1) -> list[Place]:
    return [Place(phase=phase, call=call, when=when, latest=latest) for when in ("before", "after")]


PLACES: tuple[Place, ...] = (
    *_both("collecting", f"{_TRANSFORMERS}._sample", 24),
    *_both("collecting", "mcprl.tools.toolbox:ToolLease.call", 16),
    Place(phase="collecting", call="mcprl.episodes.loop:EpisodeRunner.run", when="after", latest=7),
    Place(phase="mid-journal", call=f"{_RUNS}.journal:os.write", when="half", latest=5),
    *_both("mid-journal", f"{_RUNS}.journal:os.fsync", 5),
    Place(phase="mid-journal", call=f"{_RUNS}.journal:EpisodeJournal.add", when="after", latest=8),
    *_both("updating", f"{_TORCH_LEARNER}._read", 2),
    Place(phase="updating", call=f"{_TRAINING}.loop:make_batch", when="after", latest=2),
    *_both("updating", "mcprl.learning.optimizer:Optimisation.step", 4),
    Place(phase="updating", call="mcprl.learning.models:Reference.follow", when="after", latest=2),
    Place(phase="mid-save", call=f"{_RUNS}.checkpoints:Checkpoints.begin", when="after"),
    Place(phase="mid-save", call="mcprl.learning.state:save_file", when="after"),
    *_both("mid-save", f"{_TRAINING}.loop:write_state"),
    Place(phase="mid-save", call=f"{_RUNS}.checkpoints:sync_file", when="before", latest=3),
    *_both("mid-save", f"{_RUNS}.checkpoints:write_file"),
    Place(phase="mid-save", call=f"{_RUNS}.checkpoints:sync_folder", when="before", latest=2),
    *_both("mid-save", f"{_RUNS}.journal:EpisodeJournal.forget_before"),
    *_both("mid-save", f"{_RUNS}.checkpoints:Checkpoints.retain"),
    Place(phase="mid-save", call=f"{_RUNS}.checkpoints:shutil.rmtree", when="half"),
    *_both("publishing", f"{_TORCH_LEARNER}._write_weights", 2),
    *_both("publishing", f"{_TRANSFORMERS}._put_in_force", 2),
    *_both("publishing", f"{_RUNS}.folder:RunFolder.drop_old_weights", 2),
    Place(phase="publishing", call=f"{_RUNS}.folder:RunFolder.record_step", when="before", latest=2),
    Place(phase="publishing", call=f"{_RUNS}.folder:write_trajectories", when="after", latest=2),
    Place(phase="publishing", call=f"{_RUNS}.folder:_append", when="half", latest=4),
    *_both("publishing", f"{_RUNS}.folder:_append", 4),
    Place(phase="restoring", call=f"{_RUNS}.folder:shutil.rmtree", when="half"),
    *_both("restoring", f"{_TRAINING}.run:compare_conditions"),
    *_both("restoring", f"{_RUNS}.folder:write_file", 3),
    *_both("restoring", f"{_RUNS}.folder:RunFolder.cut_to"),
    *_both("restoring", f"{_TORCH_LEARNER}._load_state"),
    Place(phase="finishing", call=f"{_RUNS}.folder:RunFolder.finish", when="before"),
    *_both("finishing", f"{_RUNS}.folder:shutil.copytree"),
    Place(phase="finishing", call=f"{_RUNS}.folder:_copy_folder", when="after"),
)


def place_called(name: str) -> Place:
    return next(place for place in PLACES if place.name == name)


def arm(place: Place, time: int) -> None:
    """From now on, the process ends when it comes to the place for the time-th time."""
    module_name, _, path = place.call.partition(":")
    *owners, last = path.split(".")
    module: Any = importlib.import_module(module_name)
    if owners and inspect.ismodule(getattr(module, owners[0])):
        # Its own view of a library, so that nobody else's calls count.
        view = _View(getattr(module, owners[0]))
        setattr(module, owners[0], view)
        owner: Any = view
    else:
        owner = getattr(module, owners[0]) if owners else module
    setattr(owner, last, _killing(getattr(owner, last), place.when, time, _HALVES.get(last)))


class _View:
    """A module, some of whose functions can be others."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _killing(plain: Callable[..., Any], when: str, time: int, half: Callable[..., None] | None) -> Callable[..., Any]:
    calls = 0

    def is_time() -> bool:
        nonlocal calls
        calls += 1
        return calls == time

    @wraps(plain)
    def killing(*args: Any, **options: Any) -> Any:
        now = is_time()
        if now and when == "half":
            assert half is not None
            half(*args)
        if now and when != "after":
            _end()
        result = plain(*args, **options)
        if now:
            _end()
        return result

    @wraps(plain)
    async def killing_later(*args: Any, **options: Any) -> Any:
        now = is_time()
        if now and when != "after":
            _end()
        result = await plain(*args, **options)
        if now:
            _end()
        return result

    return killing_later if inspect.iscoroutinefunction(plain) else killing


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _write_half(descriptor: int, data: bytes) -> None:
    os.write(descriptor, data[: len(data) // 2])


def _append_half(path: Path, objects: Any) -> None:
    with path.open("ab") as file:
        file.write(b'{"step": ' + f"{objects[0]['step']}, ".encode())


def _remove_half(folder: Path) -> None:
    paths = sorted(folder.rglob("*"), reverse=True)
    for path in paths[: (len(paths) + 1) // 2]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


_HALVES: dict[str, Callable[..., None]] = {"write": _write_half, "_append": _append_half, "rmtree": _remove_half}
