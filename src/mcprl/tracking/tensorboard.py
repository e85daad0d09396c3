"""TensorBoard: metrics as scalars and rewards as a histogram, in the run's folder `tensorboard`. Needs no torch."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, cast

from mcprl.tracking.reports import EpisodeReport, EpisodesOfSteps, RunEnded, RunStarted, StepReport

if TYPE_CHECKING:
    from mcprl.tracking.process import StatusWriter


class TensorboardTracker:
    """Writes event files. A resumed run adds new files, and TensorBoard shows them as one run."""

    def __init__(self, run: RunStarted, status: StatusWriter) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._episodes = EpisodesOfSteps()
        self._writer = cast("Any", EventFileWriter)(str(run.folder / "tensorboard"))

    def episode_finished(self, episode: EpisodeReport) -> None:
        self._episodes.add(episode)

    def step_finished(self, step: StepReport) -> None:
        from tensorboard.plugins.histogram import summary_v2 as histograms
        from tensorboard.plugins.scalar import summary_v2 as scalars

        make_scalar, make_histogram = cast("Any", scalars).scalar_pb, cast("Any", histograms).histogram_pb
        for name, value in step.metrics.items():
            if math.isfinite(value):
                self._write(step.step, make_scalar(name, value))
        rewards = [episode.reward for episode in self._episodes.take(step.step)]
        if rewards:
            self._write(step.step, make_histogram("rewards", rewards))
        # Flush, so that the step is visible at once.
        self._writer.flush()

    def run_ended(self, end: RunEnded) -> None: ...

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, summary: object) -> None:
        from tensorboard.compat.proto import event_pb2

        self._writer.add_event(cast("Any", event_pb2).Event(wall_time=time.time(), step=step, summary=summary))
