"""Calibration keeps the tasks that a policy solves sometimes."""

from __future__ import annotations

import json

import pytest
import yaml

from mcprl.episodes.endpoint import EndpointSettings
from mcprl.errors import NoReachableToolError
from mcprl.evaluation.harness import make_request
from mcprl.goals import Contains, Goal
from mcprl.progress import Silent
from mcprl.records import Task
from mcprl.tasks import load_tasks, write_tasks
from mcprl_synthesis.calibrate import calibrate
from scripted_endpoint import endpoint, response

SERVER = {"mcpServers": {"directory": {"command": "python", "args": ["-m", "mcprl", "serve", "directory"]}}}


def said(body: dict, times: dict[str, int]) -> str:
    """What the policy answers: "always" and "never" say it; "sometimes" is right every second time."""
    asked = body["messages"][-1]["content"]
    times[asked] = times.get(asked, 0) + 1
    return "Lima" if "always" in asked or ("sometimes" in asked and times[asked] % 2) else "Paris"


async def calibrated(folder, names: dict[str, list[str]]):
    (folder / "servers.json").write_text(json.dumps(SERVER))
    for file, ids in names.items():
        tasks = [
            Task(
                id=name,
                prompt=({"role": "user", "content": f"Say it, {name}."},),
                goal=Goal(answer=Contains(text="Lima")),
                tools=("find_person",),
            )
            for name in ids
        ]
        write_tasks(tasks, folder / file)
    settings = {"name": "calibrated", "model": {"path": "none"}, "tasks": {"train": "train.jsonl"}}
    settings["servers"] = {"file": "servers.json"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(settings))
    times: dict[str, int] = {}

    def reply(number: int) -> bytes:
        message = {"role": "assistant", "content": said(served.requests[number][1], times)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 5}
        return response("200 OK", json.dumps({"choices": [choice], "usage": usage}))

    async with endpoint(reply) as served:
        model = EndpointSettings(url=served.url, model="policy")
        request = make_request(folder / "recipe.yaml", tasks=folder / "train.jsonl", episodes=4, endpoint=model)
        return await calibrate(request, folder, list(names), Silent())


@pytest.mark.process
async def test_tasks_that_are_always_or_never_solved_are_left_out_of_both_files(tmp_path):
    names = {
        "train.jsonl": ["always-1", "sometimes-1", "never-1", "sometimes-2"],
        "validation.jsonl": ["never-2", "sometimes-3"],
    }
    counted = await calibrated(tmp_path, names)
    assert counted == {"always": 1, "sometimes": 3, "never": 2}
    assert [task.id for task in load_tasks(tmp_path / "train.jsonl")] == ["sometimes-1", "sometimes-2"]
    assert [task.id for task in load_tasks(tmp_path / "validation.jsonl")] == ["sometimes-3"]
    assert json.loads((tmp_path / "calibration.json").read_text())["sometimes-1"] == [2, 4]


@pytest.mark.process
async def test_a_policy_that_solves_nothing_ends_in_an_error_that_names_the_figures(tmp_path):
    with pytest.raises(NoReachableToolError, match="0 of 2 tasks were always solved and 2 never"):
        await calibrated(tmp_path, {"train.jsonl": ["never-1", "never-2"]})
    assert len(load_tasks(tmp_path / "train.jsonl")) == 2
