"""The training loop: collect groups, make a batch, update the policy, publish the weights, record the step."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import psutil

from mcprl.checks.health import Health
from mcprl.config import RunConfig
from mcprl.episodes import Collector, episode_metrics, succeeded
from mcprl.episodes.stage import MeteredSampler, ToolFigures
from mcprl.errors import NoCheckpointError
from mcprl.learning import Learner
from mcprl.learning.algorithms import make_batch, next_coefficient
from mcprl.learning.learner import OnGpu
from mcprl.progress import Watcher
from mcprl.records import Batch, Readings, Trajectory, Update, Weights
from mcprl.runs.checkpoints import Checkpoints, Damaged, RunState, deal_ids, write_state
from mcprl.runs.folder import RunFolder, RunStopped, StepRecord, Timeline
from mcprl.runs.journal import EpisodeJournal
from mcprl.runs.resuming import Conditions
from mcprl.runs.summary import Summary
from mcprl.tasks import Dealer
from mcprl.tools.stats import StatsDocument, merge_stats, write_stats
from mcprl.training.pipeline import CollectedStep, Pipeline
from mcprl.training.sft import Examples, best_step, has_stopped_improving, mean_loss
from mcprl.training.shutdown import Shutdown

T = TypeVar("T")


async def train(run: Run) -> Summary:
    """Train for all configured steps, and write the weights and a summary to the run's folder.

    Raises RunStopped, after saving, if the run was asked to stop.
    """
    with run.shutdown.orderly():
        try:
            for step in run.steps():
                collected = await run.take(step)
                with run.clock.span(step, "update"):
                    batch = make_batch(
                        step,
                        collected.groups,
                        run.config.algorithm,
                        await run.read(collected.trajectories),
                        kl_coefficient=run.kl_coefficient,
                        demonstrations=collected.demonstrations,
                        demonstration_weight=collected.demonstration_weight,
                    )
                    update = await run.update(batch)
                await run.publish(update)
                await run.record(await run.validate(collected, step), batch, update)
            await run.return_to_best()
        except RunStopped as stopped:
            raise RunStopped(await run.leave(update_given_up=isinstance(stopped, UpdateGivenUp))) from None
        run.folder.record_spans(run.clock.take())
        run.folder.finish(await run.learner.fetch(run.weights), run.summary.as_dict())
    return run.summary


class UpdateGivenUp(RunStopped):
    """The learner did not finish its update before the shutdown deadline. Its weights may be ahead of the last step."""


# The shares of the shutdown time that running episodes and a running update may use.
_EPISODES_SHARE, _UPDATE_SHARE = 0.3, 0.6
_KL_HORIZON = 10  # in this many updates the KL coefficient changes by at most about a fifth


class StepClock(Timeline):
    """The timeline of a run, and a timer for the time between steps."""

    def __init__(self) -> None:
        super().__init__()
        self._lap_began = time.monotonic()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        began, self._lap_began = self._lap_began, time.monotonic()
        return self._lap_began - began


class GpuTurns:
    """Lets vLLM and the learner take turns on the same GPUs. The learner has the first turn.

    The one whose turn ends leaves the GPUs before the other one returns, so they never use the GPUs at the same time.
    """

    def __init__(self, sampler: MeteredSampler, learner: OnGpu) -> None:
        self._sampler, self._learner = sampler, learner
        self._is_learning = True

    async def sample(self, weights: Weights) -> None:
        """Let vLLM sample from `weights`."""
        if self._is_learning:
            await self._learner.leave_gpu()
            self._is_learning = False
        await self._sampler.wake(weights)

    async def learn(self) -> None:
        if not self._is_learning:
            await self._sampler.sleep()
            self._is_learning = True
            await self._learner.return_to_gpu()


@dataclass(slots=True, kw_only=True)
class Run:
    """An open training run: its components, and the operations that a step consists of.

    In supervised fine-tuning, `examples` is set, and episodes are run only for validation.

    Four fields change during the run. `step` is the number of finished steps, `saved_step` that of the newest
    checkpoint. `weights` are the newest. `kl_coefficient` is adjusted after updates if `algorithm.kl.target` is set.
    """

    config: RunConfig
    conditions: Conditions
    folder: RunFolder
    checkpoints: Checkpoints
    journal: EpisodeJournal
    watcher: Watcher
    shutdown: Shutdown
    order: Dealer
    tool_figures: ToolFigures
    earlier_figures: tuple[StatsDocument, ...]
    collector: Collector
    pipeline: Pipeline
    sampler: MeteredSampler
    learner: Learner
    health: Health
    summary: Summary
    clock: StepClock
    kl_coefficient: float
    weights: Weights
    examples: Examples | None = None
    turns: GpuTurns | None = None
    step: int = 0
    saved_step: int = 0

    def steps(self) -> Generator[int]:
        """Yield the remaining steps. Raises RunStopped before the next step if the run was asked to stop."""
        self.clock.lap()
        while self.step < self.config.training.steps and not has_stopped_improving(self.summary.steps):
            if self.shutdown.requested:
                raise RunStopped
            yield self.step

    async def take(self, step: int) -> CollectedStep:
        if self.turns is not None and self.examples is None:
            await self._unless_given_up(self.turns.sample(self.weights))
        return await self.shutdown.unless_stopped(self.pipeline.take(step), share=0.0)

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        self._refuse_stale(trajectories)
        await self._let_learn()
        return await self._unless_given_up(self.learner.read(trajectories))

    async def update(self, batch: Batch) -> Update:
        await self._let_learn()
        return await self._unless_given_up(self.learner.update(batch))

    async def publish(self, update: Update) -> None:
        """Publish new weights to the sampler, and adjust the KL coefficient."""
        with self.clock.span(update.step, "publish"):
            if update.weights.version != self.weights.version:
                self.weights = update.weights
                # A run that is stopping samples no more turns.
                if not self.shutdown.requested and (self.examples is None or self._validates_after(update.step)):
                    await self._unless_given_up(self._let_sample())
                self.folder.drop_old_weights(self.weights)
        kl = self.config.algorithm.kl
        if kl.target is not None and "kl_reference" in update.metrics:
            self.kl_coefficient = next_coefficient(
                self.kl_coefficient, update.metrics["kl_reference"], target=kl.target, horizon=_KL_HORIZON
            )

    async def _let_learn(self) -> None:
        if self.turns is not None:
            await self._unless_given_up(self.turns.learn())

    async def _let_sample(self) -> None:
        """Let the sampler use the newest weights."""
        await (self.sampler.publish(self.weights) if self.turns is None else self.turns.sample(self.weights))

    def _saves_after(self, step: int) -> bool:
        training = self.config.training
        return (step + 1) % training.checkpoint_every == 0 or step + 1 == training.steps

    def _validates_after(self, step: int) -> bool:
        return self.examples is not None and self._saves_after(step)

    async def validate(self, collected: CollectedStep, step: int) -> CollectedStep:
        """If a validation is due after this step of supervised fine-tuning, add its loss and episodes to the step."""
        if self.examples is None or not self._validates_after(step):
            return collected
        if held_out := self.examples.validation:
            await self._let_learn()
            loss = mean_loss(held_out, await self._unless_given_up(self.learner.score(held_out)), self.config)
            collected = replace(collected, validation_loss=loss)
        if not self.examples.tasks:
            return collected
        with self.clock.span(step, "collect"):
            started = time.monotonic()
            if self.turns is not None:
                await self.turns.sample(self.weights)
            collecting = self.collector.collect(
                self.examples.tasks, step, lambda outcome: self.watcher.episode_finished(step, outcome)
            )
            played = await self._unless_given_up(collecting)
        return replace(collected, all_groups=played, collect_s=time.monotonic() - started)

    async def return_to_best(self) -> None:
        """After supervised fine-tuning, return to the weights with the lowest validation loss."""
        best = best_step(self.summary.steps)
        if best is None or best == self.step:
            return
        self.watcher.stage(f"returning to step {best}, which had the lowest validation loss")
        checkpoint = self.checkpoints.verify(best)
        if isinstance(checkpoint, Damaged):
            raise NoCheckpointError(
                f"the checkpoint of step {best}, which had the lowest validation loss, is damaged: {checkpoint.why}",
                fix=f"resume from an earlier checkpoint with --from STEP; the last step is {self.step}",
            )
        self.weights = await self.learner.load_state(checkpoint.path)

    async def record(self, collected: CollectedStep, batch: Batch, update: Update) -> None:
        """Compute the metrics and health verdicts of a step, write its record, and save a checkpoint if one is due."""
        played, spans, step_s = collected.all_groups, self.clock.take(), self.clock.lap()
        took_s = {span.activity: span.end - span.start for span in spans}
        last_save_s = self.summary.steps[-1].get("save_s", 0.0) if self.summary.steps else 0.0
        self.order.note({g.task.id: [succeeded(t.reward_parts) for t in g.trajectories] for g in played})
        metrics = {
            **(episode_metrics(played, collected.collect_s) if played else {}),
            **collected.metrics,
            **update.metrics,
            "wait_s": collected.wait_s,
            "weights_version": float(self.weights.version),
            "server_restarts": float(self.tool_figures.restarts),
            "sampler_restarts": float(self.sampler.restarts),
            "step_s": step_s,
            "save_s": took_s.get("save", last_save_s),
            "sampler_idle_share": max(0.0, 1.0 - self.sampler.occupancy.take() / step_s),
            "learner_idle_share": max(0.0, 1.0 - took_s["update"] / step_s),
            **await resource_metrics(),
        }
        # Episodes of a validation are not trained on, so most rules about episodes do not apply.
        verdicts = self.health.judge(metrics if self.examples is None else update.metrics, update.skipped)
        record = StepRecord(
            played=played, batch=batch, ratios=update.ratios, spans=spans, metrics=metrics, verdicts=verdicts
        )
        await asyncio.to_thread(self.folder.record_step, update.step, record)
        write_stats(self.folder.path, merge_stats([*self.earlier_figures, self.tool_figures.stats()]))
        self.summary.add(metrics, verdicts)
        self.step = update.step + 1
        if self._saves_after(update.step):
            await self.save()
        self.watcher.step_finished(update.step, metrics, verdicts)

    async def save(self) -> None:
        """Save a checkpoint between two steps. If that fails, earlier checkpoints are unchanged."""
        state = RunState(
            step=self.step,
            settings=self.conditions.settings,
            model=self.conditions.model,
            weights_version=self.weights.version,
            kl_coefficient=self.kl_coefficient,
            order=self.order.state(),
            health=self.health.state(),
            open_deals=deal_ids(self.pipeline.open_deals),
        )
        with self.clock.span(self.step - 1, "save"):
            partial = self.checkpoints.begin(self.step)
            await self.learner.save_state(partial)
            write_state(partial, state)
            await asyncio.to_thread(self.checkpoints.commit, self.step)
            self.saved_step = self.step
            self.journal.forget_before(self.step)  # the checkpoint covers these episodes
            kept, best = self.config.training.keep_checkpoints, best_step(self.summary.steps)
            also = self.health.steps_to_return_to | (set[int]() if best is None else {best})
            await asyncio.to_thread(self.checkpoints.retain, kept, also=also)

    async def leave(self, *, update_given_up: bool) -> str:
        """After a request to stop, let episodes finish for a while, then save. Return a message on what was saved."""
        self.watcher.stage("stopping: letting episodes finish, then saving")
        try:
            await self.shutdown.unless_stopped(self.collector.drain(), share=_EPISODES_SHARE)
        except RunStopped:
            await self.pipeline.close()  # cancels unfinished episodes
        if not update_given_up and self.saved_step != self.step:
            await self.save()
        journaled = sum(len(self.journal.finished(step)) for step in self.journal.steps if step >= self.saved_step)
        saved = f"{journaled} finished episodes"
        if self.saved_step:
            saved = f"step {self.saved_step}'s checkpoint and {journaled} finished episodes of later steps"
        return (
            f"stopped by {self.shutdown.cause} after step {self.step} of {self.config.training.steps}; "
            f"{saved} are saved" + ("; the interrupted update will be repeated" if update_given_up else "")
        )

    async def _unless_given_up(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await self.shutdown.unless_stopped(work, share=_UPDATE_SHARE)
        except RunStopped:
            self.shutdown.leaves_work = True
            raise UpdateGivenUp from None

    def _refuse_stale(self, trajectories: Sequence[Trajectory]) -> None:
        """Raise ValueError if a token is older than `training.max_staleness` allows.

        Such a token would make the objective wrong. The pipeline ensures that there are none.
        """
        bound = self.weights.version - self.config.training.max_staleness
        for t in trajectories:
            oldest = min(version for version, sampled in zip(t.weights_version, t.sampled, strict=True) if sampled)
            if oldest < bound:
                raise ValueError(
                    f"episode {t.member} of task {t.task_id} in step {t.step} has tokens that "
                    f"version {oldest} of the weights sampled; the oldest allowed is {bound}"
                )


_GIB = 2**30
_GPU_QUERY = ("--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")
_GPU_DEADLINE_S = 5.0


async def resource_metrics() -> Mapping[str, float]:
    """Measure the memory of this process and its children, free memory, CPU load, and the use of all GPUs together.

    {"memory_trainer_gib": 2.1, "memory_children_gib": 3.4, "memory_free_gib": 12.8, "cpu_load": 1.9}
    """
    own = psutil.Process()
    children = [_rss(child) for child in own.children(recursive=True)]
    return {
        "memory_trainer_gib": own.memory_info().rss / _GIB,
        "memory_children_gib": sum(children) / _GIB,
        "memory_free_gib": psutil.virtual_memory().available / _GIB,
        "cpu_load": psutil.getloadavg()[0],
        **await _gpu_metrics(),
    }


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # the process has ended in the meantime
        return 0


async def _gpu_metrics() -> dict[str, float]:
    """Read GPU metrics from nvidia-smi. Returns {} if it is not installed, and {"gpu_silent": 1.0} if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    process = await asyncio.create_subprocess_exec(
        program, *_GPU_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_GPU_DEADLINE_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"gpu_silent": 1.0}
    try:
        rows = [[float(cell) for cell in line.split(",")] for line in output.decode().splitlines() if line.strip()]
    except ValueError:  # small and virtual GPUs report "[N/A]"
        rows = []
    if process.returncode != 0 or not rows:
        return {"gpu_silent": 1.0}
    used, total, busy = (sum(column) for column in zip(*rows, strict=True))
    return {
        "gpu_memory_gib": used / 1024,
        "gpu_memory_total_gib": total / 1024,
        "gpu_busy_share": busy / len(rows) / 100,
    }
