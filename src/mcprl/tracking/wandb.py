"""Weights & Biases: metrics and a few episodes per step, verdicts as a table and as alerts, the trained weights."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mcprl.tasks import load_tasks
from mcprl.tracking.reports import EpisodeReport, EpisodesOfSteps, RunEnded, RunStarted, StepReport, WandbLog
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.tracking.process import StatusWriter

_EPISODES_PER_STEP = 4
_VERDICTS_SHOWN = 200
_START_S, _GRAPHQL_S = 45.0, 20.0
_EPISODE_COLUMNS = ["step", "task", "member", "reward", "stop", "turns", "prompt", "conversation", "reward_parts"]
_VERDICT_COLUMNS = ["step", "severity", "rule", "what", "fix"]


class WandbTracker:
    """Reports to a W&B run. Its files are in the run's folder `wandb`; `wandb sync` sends anything left there.

    A resumed run keeps its id. The x-axis is our step, not W&B's, which cannot go back to repeat a step.
    """

    def __init__(self, run: RunStarted, status: StatusWriter) -> None:
        import wandb

        settings = run.tracking.wandb
        assert settings is not None
        self._wandb = cast("Any", wandb)
        self._run, self._status, self._ended = run, status, False
        self._episodes = EpisodesOfSteps()
        tasks = load_tasks(run.tasks)
        self._prompts = {task.id: str(task.prompt[-1]["content"]) if task.prompt else "" for task in tasks}
        self._verdicts: list[list[object]] = []
        own, is_known = _run_id(run.folder)
        entity, _, project = settings.project.rpartition("/")
        self._log = self._wandb.init(
            project=project,
            entity=entity or None,
            name=run.name,
            id=own,
            resume="allow" if is_known else None,
            dir=str(run.folder),
            config=dict(run.config),
            settings=self._wandb.Settings(
                silent=True,
                console="off",
                init_timeout=_START_S,
                x_graphql_timeout_seconds=_GRAPHQL_S,
                finish_timeout_raises=True,  # if WANDB_FINISH_TIMEOUT is set
                # This process is not the run, so its resources and code would mislead.
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
            ),
        )
        self._losses = WandbLog(Path(self._log.settings.log_internal))
        self._log.define_metric("step")
        self._log.define_metric("*", step_metric="step")

    def episode_finished(self, episode: EpisodeReport) -> None:
        self._episodes.add(episode)

    def step_finished(self, step: StepReport) -> None:
        entry: dict[str, Any] = {name: value for name, value in step.metrics.items() if math.isfinite(value)}
        episodes = self._episodes.take(step.step)
        if episodes:
            entry["rewards"] = self._wandb.Histogram([episode.reward for episode in episodes])
            rows = [self._row(episode) for episode in choose_episodes(episodes)]
            entry["episodes"] = self._wandb.Table(columns=_EPISODE_COLUMNS, data=rows)
        for verdict in step.verdicts:
            self._verdicts.append([step.step, verdict.severity.value, verdict.name, verdict.what, verdict.fix])
            if verdict.severity is Severity.BAD:
                text = f"step {step.step}: {verdict.what}" + (f". {verdict.fix}" if verdict.fix else "")
                self._log.alert(title=verdict.name or "health", text=text, level="WARN")
        if step.verdicts:
            del self._verdicts[:-_VERDICTS_SHOWN]  # the whole table is sent each time
            entry["verdicts"] = self._wandb.Table(columns=_VERDICT_COLUMNS, data=list(self._verdicts))
        self._log.log({"step": step.step, **entry})
        self._tell_losses()

    def run_ended(self, end: RunEnded) -> None:
        self._ended = True
        self._log.summary.update({f"summary/{name}": value for name, value in end.summary.items()})
        for kind in ("adapter", "model"):
            weights = self._run.folder / kind
            if weights.is_dir():
                artefact = self._wandb.Artifact(f"{self._run.name}-{kind}", type="model")
                artefact.add_dir(str(weights))
                self._log.log_artifact(artefact)

    def close(self) -> None:
        self._log.finish(exit_code=0 if self._ended else 1)
        self._tell_losses()

    def _tell_losses(self) -> None:
        for loss in self._losses.new_losses():
            self._status.say("trouble", loss)

    def _row(self, episode: EpisodeReport) -> list[object]:
        return [
            episode.step,
            episode.task_id,
            episode.member,
            episode.reward,
            episode.stop,
            len(episode.turns),
            self._prompts.get(episode.task_id, ""),
            episode.conversation,
            json.dumps(dict(episode.reward_parts)),
        ]


def choose_episodes(episodes: Sequence[EpisodeReport], count: int = _EPISODES_PER_STEP) -> list[EpisodeReport]:
    """Return up to `count` episodes: the best, the worst, then the second best, the second worst, and so on."""
    ordered = sorted(episodes, key=lambda episode: -episode.reward)
    chosen: list[EpisodeReport] = []
    while ordered and len(chosen) < count:
        chosen.append(ordered.pop(0 if len(chosen) % 2 == 0 else -1))
    return chosen


def _run_id(folder: Path) -> tuple[str, bool]:
    """Return the run's id in W&B, and whether it existed before."""
    path = folder / "wandb" / "run-id"
    if path.exists():
        return path.read_text().strip(), True
    path.parent.mkdir(exist_ok=True)
    made = secrets.token_hex(4)
    path.write_text(f"{made}\n")
    return made, False
