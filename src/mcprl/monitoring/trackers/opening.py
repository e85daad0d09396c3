"""The trackers of a run: which are configured, whether their libraries are there, and the one face the run sees."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mcprl.config import RunConfig, TrackingConfig
from mcprl.durable import write_file
from mcprl.errors import MissingExtraError, StorageError
from mcprl.monitoring.trackers.delivery import Delivery, Outcome
from mcprl.monitoring.trackers.reports import (
    Report,
    episode_report,
    run_ended,
    run_started,
    step_report,
)
from mcprl.records import LostEpisode, Trajectory
from mcprl.redact import SECRETS, looks_secret
from mcprl.tools.keys import load_keys, register_secrets
from mcprl.training.watching import Watcher
from mcprl.verdicts import Verdict

__all__ = ["Trackers", "require_trackers", "tracker_environment"]

# What each needs: a module that its extra brings. The extra has the tracker's name.
_MODULES = {
    "wandb": "wandb",
    "weave": "weave",
    "tensorboard": "tensorboard",
    "opentelemetry": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
# Variables that a library reads by itself, keys among them.
_VARIABLES = {
    "wandb": ("WANDB_",),
    "weave": ("WANDB_", "WEAVE_", "WF_"),
    "tensorboard": (),
    "opentelemetry": ("OTEL_",),
}
_OTLP_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# What fails in a library is its user's affair and not its maker's; and nobody follows links that stand in a log.
_QUIET = {"WANDB_ERROR_REPORTING": "false", "WEAVE_PRINT_CALL_LINK": "false"}
# What a library logs is how we hear of what it gives up; nobody may silence that.
_HEARD = {"WEAVE_LOG_LEVEL": "INFO"}
# Of the time that a run has to stop in: it ends itself when all of it is over.
_SHARE_WHEN_STOPPED = 0.2


class Trackers:
    """Passes on what a run tells: to its watcher as it is, and to each tracker through a delivery of its own.

    async with Trackers(config, console) as trackers, open_run(config, trackers) as run:
        await trackers.start(run.folder.path)
        summary = await train(run)
        trackers.run_ended(summary.as_dict())

    On leaving, what became of the deliveries is written to tracking.json in the folder of the run.
    """

    def __init__(self, config: RunConfig, watcher: Watcher, *, is_stopping: Callable[[], bool] = lambda: False) -> None:
        require_trackers(config.tracking)
        self._config = config
        self._watcher = watcher
        self._is_stopping = is_stopping
        self._folder: Path | None = None
        self._ended_at: float | None = None
        self._deliveries: list[Delivery] = []

    async def start(self, folder: Path) -> None:
        """Start the processes of the trackers that are configured. None of them is waited for."""
        self._folder = folder
        keys = load_keys(self._config.servers.env_file)
        started = run_started(self._config, folder)
        for kind in self._config.tracking.named:
            delivery = Delivery(kind, self._watcher.stage)
            environment = tracker_environment(kind, self._config.tracking, keys)
            await delivery.start(started, environment=environment, logs=folder / "logs")
            self._deliveries.append(delivery)

    def stage(self, text: str) -> None:
        self._watcher.stage(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._watcher.episode_finished(step, outcome)
        if isinstance(outcome, Trajectory):
            self._hear(partial(episode_report, outcome, time.time()))

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        self._watcher.step_finished(step, metrics, verdicts)
        self._hear(partial(step_report, step, metrics, verdicts))

    def run_ended(self, summary: Mapping[str, Any]) -> None:
        """The run has reached its end, and its folder has all that it leaves behind. From now on time runs out."""
        self._ended_at = time.monotonic()
        for delivery in self._deliveries:
            delivery.hear_last(partial(run_ended, summary))

    async def close(self) -> Mapping[str, Outcome]:
        """Let all of them send what is left, at the same time."""
        since_end_s = 0.0 if self._ended_at is None else time.monotonic() - self._ended_at
        flush_s = max(0.0, self._config.tracking.flush_s - since_end_s)
        if self._is_stopping():
            flush_s = min(flush_s, _SHARE_WHEN_STOPPED * self._config.training.shutdown_s)
        closing, self._deliveries = self._deliveries, []
        outcomes = await asyncio.gather(*(delivery.close(flush_s) for delivery in closing))
        found = {delivery.kind: outcome for delivery, outcome in zip(closing, outcomes, strict=True)}
        if found and self._folder is not None:
            note = {kind: asdict(outcome) for kind, outcome in found.items()}
            try:
                write_file(self._folder / "tracking.json", (json.dumps(note, indent=2) + "\n").encode())
            except StorageError as error:
                self._watcher.stage(f"tracking: what became of it cannot be written down: {error.what}")
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _hear(self, make: Callable[[], Report]) -> None:
        for delivery in self._deliveries:
            delivery.hear(make)


def require_trackers(tracking: TrackingConfig) -> None:
    """Raises MissingExtraError where the library of a configured tracker is not installed."""
    for kind in tracking.named:
        if not _is_installed(_MODULES[kind]):
            raise MissingExtraError(f"tracking.{kind} is on, which needs a library", fix=f"install mcprl[{kind}]")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # the package around it is missing


def tracker_environment(kind: str, tracking: TrackingConfig, keys: Mapping[str, str]) -> dict[str, str]:
    """The environment of a tracker's process: ours without keys, and those that are its own, made known as secrets.

    `keys` is what `load_keys` gives: the environment, completed by the file of keys.
    """
    own = {name: value for name, value in keys.items() if name.startswith(_VARIABLES[kind])}
    for name, value in own.items():
        if looks_secret(name):
            SECRETS.add(name, value)
    for name in _OTLP_HEADERS:
        for header in own.get(name, "").split(","):
            key, _, value = header.partition("=")
            register_secrets(kind, {"headers": {key.strip(): value.strip()}})
    for url in (
        tracking.wandb.url if tracking.wandb is not None else None,
        tracking.opentelemetry.endpoint if tracking.opentelemetry is not None else None,
    ):
        register_secrets(kind, {"url": url})
    ours = {name: value for name, value in os.environ.items() if not looks_secret(name)}
    environment = {**_QUIET, **ours, **own, **_HEARD}
    if tracking.wandb is not None and tracking.wandb.url is not None:
        environment["WANDB_BASE_URL"] = tracking.wandb.url
    return environment
