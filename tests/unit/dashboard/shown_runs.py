"""Small runs for the dashboard to show, written by the same code as real ones, and a client that asks about them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from mcprl.config import RunConfig
from mcprl.errors import Fault
from mcprl.goals import Contains, Goal
from mcprl.records import FinishReason, Group, Observation, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.runs.folder import RunFolder, Span
from mcprl.tasks import write_tasks
from mcprl.verdicts import Severity, Verdict
from mcprl_dashboard.app import make_app
from mcprl_dashboard.open_run import RunList
from step_records import step_record

ROOT = Path(__file__).resolve().parents[3]
TASKS = ("find-ana", "ask/the time")
ADDRESS = "http://127.0.0.1:8123"
TOKEN = "the-token-of-this-dashboard"
FINE = Verdict(severity=Severity.OK, what="all is well", fix="")
BAD = Verdict(severity=Severity.BAD, what="all is lost", fix="begin anew", name="loss")


def make_episode(
    *,
    step: int = 0,
    task_id: str = TASKS[0],
    member: int = 0,
    reward: float = 0.0,
    text: str = "I do not know",
    tool: str | None = "find_person",
    fault: bool = False,
    stop: StopReason = StopReason.ANSWERED,
    parts: Mapping[str, float] | None = None,
    tokens: int = 4,
) -> Trajectory:
    """Two turns: a call if there is a tool, and an answer."""
    observed = Observation(
        tool=tool or "", server="directory", text="Ana: Lima", fault=Fault.POLICY if fault else None, latency_s=0.25
    )
    first = Turn(
        text="Let me see",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=step,
        calls=(ToolCall(name=tool, arguments={"name": "Zoë", "n": [1]}),) if tool else (),
        observations=(observed,) if tool else (),
    )
    answer = Turn(text=text, sampled_ids=(2,), finish=FinishReason.STOP, weights_version=step)
    context = (False,) * (tokens - 2)
    return Trajectory(
        task_id=task_id,
        step=step,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=tuple(range(5, 5 + tokens)),
        sampled=(*context, True, True),
        forced=(False,) * tokens,
        fixed=(False,) * tokens,
        logprobs=(*(0.0 for _ in context), -0.5, -1.5),
        turn_index=(*(-1 for _ in context), 0, 1),
        weights_version=(*(-1 for _ in context), step, step),
        turns=(first, answer),
        stop=stop,
        reward=reward,
        reward_parts={"answer": reward} if parts is None else parts,
        duration_s=1.5,
    )


def make_config(outputs: Path, model: Path, name: str = "shown") -> RunConfig:
    outputs.mkdir(parents=True, exist_ok=True)
    task_file = outputs / "tasks.jsonl"
    goal = Goal(answer=Contains(text="Lima"))
    tasks = [Task(id=task, prompt=({"role": "user", "content": f"{task}?"},), goal=goal) for task in TASKS]
    write_tasks(tasks, task_file)
    return RunConfig.model_validate(
        {
            "name": name,
            "model": {"path": str(model)},
            "tasks": {"train": str(task_file)},
            "servers": {"file": str(outputs / "servers.json"), "settings": {"directory": {"budget": {"calls": 10}}}},
            "episodes": {"group_size": 2},
            "algorithm": {"kl": {"coefficient": 0.1, "target": 0.02}},
            "training": {"outputs": str(outputs), "steps": 5, "tasks_per_step": 2},
        }
    )


def record(folder: RunFolder, step: int, episodes: list[Trajectory] | None = None) -> None:
    """A step of the run: by default two tasks by two members, of which the second succeeds."""
    played = episodes or [
        make_episode(step=step, task_id=task, member=member, reward=float(member), text=f"Ana is in Lima, {step}")
        for task in TASKS
        for member in range(2)
    ]
    groups = [
        Group(
            task=Task(id=task, prompt=({"role": "user", "content": "?"},), goal=Goal()),
            trajectories=tuple(sorted((t for t in played if t.task_id == task), key=lambda t: t.member)),
        )
        for task in dict.fromkeys(t.task_id for t in played)
    ]
    spans = [Span(step=step, activity="collect", start=float(step), end=step + 0.5)]
    metrics = {"reward": 0.5, "success_rate": 0.5, "loss": float("nan") if step == 0 else 0.1}
    folder.record_step(step, step_record(groups, metrics, [BAD if step == 1 else FINE], spans=spans))


def client_of(folder: Path, runs: list[RunList]) -> TestClient:
    """What asks the dashboard of a folder; its list of runs is added to those that the test closes."""
    runs.append(RunList(folder))
    return browser_of(make_app(runs[-1], asyncio.Event(), token=TOKEN))


def browser_of(app: ASGIApp, **options: Any) -> TestClient:
    """What asks an application as a browser does that has opened the printed link."""
    return TestClient(app, base_url=ADDRESS, cookies={"mcprl-8123": TOKEN}, **options)


def get(client: TestClient, path: str, **question: Any) -> dict[str, Any]:
    answer = client.get(path, params=question)
    assert answer.status_code == 200, answer.text
    return answer.json()
