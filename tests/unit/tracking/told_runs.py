"""A small run that trackers are told of, without a model: two steps of four episodes with two turns and a call each."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from episodes_seen import make_trajectory
from mcprl.config import ModelConfig, RunConfig, ServersConfig, TasksConfig, TrackingConfig
from mcprl.records import FinishReason, Observation, ToolCall, Trajectory, Turn
from mcprl.tracking.delivery import Outcome, Trackers
from mcprl.verdicts import Severity, Verdict

__all__ = ["KEY", "Listener", "episode", "make_config", "make_folder", "tell"]

KEY = "0123456789abcdef0123456789abcdef01234567"
STEPS, MEMBERS = 2, 4
_CALLING = Turn(
    text='<tool_call>{"name": "find_person"}</tool_call>',
    sampled_ids=(3, 4, 5),
    finish=FinishReason.STOP,
    weights_version=0,
    calls=(ToolCall(name="find_person", arguments={"name": "Ana"}),),
    observations=(Observation(tool="find_person", server="directory", text="Ana: Lima", latency_s=0.25),),
)
_ANSWER = Turn(text="Lima.", sampled_ids=(6,), finish=FinishReason.STOP, weights_version=0)


class Listener:
    """Keeps the sentences that a person would read, and how long the end of a run was held up."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.held_up_s = 0.0

    def stage(self, text: str) -> None:
        self.said.append(text)

    def episode_finished(self, step, outcome) -> None: ...

    def step_finished(self, step, metrics, verdicts) -> None: ...


def episode(step: int = 0, member: int = 0, **changes: Any) -> Trajectory:
    whole = {
        "step": step,
        "member": member,
        "reward": member / MEMBERS,
        "turns": (_CALLING, _ANSWER),
        "duration_s": 2.0,
    }
    return make_trajectory(**(whole | changes))


def make_folder(path: Path) -> Path:
    """The folder of a run that has ended, as far as trackers look at it, with its tasks beside."""
    run = path / "told"
    (run / "adapter").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    task = {"id": "meet-ana", "prompt": "Where is Ana?", "answer": {"contains": "Lima"}}
    (path / "tasks.jsonl").write_text(json.dumps(task))
    return run


def make_config(folder: Path, **tracking: Any) -> RunConfig:
    return RunConfig(
        name="told",
        model=ModelConfig(path="tiny/model"),
        tasks=TasksConfig(train=folder.parent / "tasks.jsonl"),
        servers=ServersConfig(file=folder.parent / "servers.json"),
        tracking=TrackingConfig.model_validate(tracking),
    )


async def tell(
    folder: Path, listener: Listener, *, ends: bool = True, until: threading.Event | None = None, **tracking: Any
) -> Mapping[str, Outcome]:
    """Tell a whole run, as fast as it goes, and end it when `until` is set. No word to a tracker may take time."""
    trackers = Trackers(make_config(folder, **tracking), listener)
    await trackers.start(folder)
    taken_s: list[float] = []
    bad = Verdict(severity=Severity.BAD, name="collapse", what="rewards are all the same", fix="raise the temperature")
    fine = Verdict(severity=Severity.OK, name="kl", what="KL is small", fix="")
    for step in range(STEPS):
        for member in range(MEMBERS):
            began = time.thread_time()
            trackers.episode_finished(step, episode(step, member))
            taken_s.append(time.thread_time() - began)
        metrics = {"reward": 0.25 + step, "kl": 0.01, "loss": float("nan")}
        trackers.step_finished(step, metrics, [bad, fine] if step == 1 else [fine])
    assert statistics.median(taken_s) < 0.01  # the longest may have met a garbage collection
    if until is not None:
        await asyncio.to_thread(until.wait, 60.0)
    if ends:
        trackers.run_ended({"updates": STEPS, "reward_last": 1.25})
    began = time.monotonic()
    outcomes = await trackers.close()
    listener.held_up_s = time.monotonic() - began
    return outcomes
