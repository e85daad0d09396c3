"""What a resumed run makes of changes: each setting takes effect or is refused by name, and no episode is mixed in."""
# R27

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

from crashing.small_runs import small_run
from mcprl.config import RunConfig
from mcprl.errors import BudgetExceededError, NoCheckpointError, NoRunError, OtherStateError, RunInUseError
from mcprl.learning.optimizer import Optimisation
from mcprl.records import LostEpisode, ToolCall, Trajectory
from mcprl.runs.checkpoints import RunState
from mcprl.runs.folder import RunFolder
from mcprl.runs.resuming import Conditions, changed_settings, find_resume_point, refuse_fixed_settings
from mcprl.runs.trajectories import read_trajectories
from mcprl.tools import Toolbox
from mcprl.tools.stats import merge_stats, read_stats, write_stats
from mcprl.training.loop import Run, train
from mcprl.training.run import open_run

BELLS = Path(__file__).resolve().parents[3] / "bench" / "crashing" / "bells.py"
SCHEMA = RunConfig.model_json_schema()
# What is compared by its content, not by its name.
LOCATIONS = {"model.path", "model.adapter", "tasks.train", "servers.file", "servers.cassette"}
# What has to hold before and after the change of a setting.
BESIDE: dict[str, dict[str, Any]] = {
    "algorithm.refill_rounds": {"algorithm.advantages": "grpo"},
    "engine": {
        "algorithm.advantages": "grpo",
        "algorithm.kl.reference": "sync",
        "learner.max_grad_norm": None,
        "sampling.stop": [],
    },
    "training.max_staleness": {"algorithm.old_logprobs": "recomputed"},
    "placement.learner.colocated": {"engine": "vllm"},
    "sampling.vllm.weight_transfer": {"engine": "vllm", "learner.tuning": "full"},
    **{
        f"placement.sampler.{name}": {"engine": "vllm"}
        for name in ("replicas", "tensor_parallel", "devices", "urls", "key_env")
    },
}
# Changes that need a second one, or that the type does not suggest.
CHANGES: dict[str, dict[str, Any]] = {
    "algorithm.advantages": {"algorithm.advantages": "rloo"},
    "engine": {"engine": "skyrl"},
    "algorithm.loss": {"algorithm.loss": "gspo"},
    "algorithm.ratio_gate": {"algorithm.ratio_gate": [0.5, 2.0]},
    "episodes.max_turns": {"episodes.max_turns": {"easy": 2, "medium": 3, "hard": 4}},
    "placement.learner.devices": {"placement.learner.devices": [1]},
    "placement.sampler.devices": {"placement.sampler.devices": [1]},
    "placement.sampler.urls": {"placement.sampler.urls": ["http://127.0.0.1:9"]},
    "rewards.functions": {"rewards.functions": {"own": {"function": "rewards.py:own", "weight": 1.0}}},
    "servers.cassette_mode": {"servers.cassette_mode": "replay", "servers.cassette": "c.sqlite"},
    "servers.settings": {"servers.settings": {"bells": {"replicas": 2}}},
    "skyrl.backend_config": {"skyrl.backend_config": {"max_lora_adapters": 3}},
    "tracking.tracker": {"tracking.tracker": "tracker.py:Mine"},
}


def leaves(
    settings: dict[str, Any], schema: dict[str, Any] = SCHEMA, above: str = ""
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every setting: its name, its value in `settings`, and its schema."""
    for key, described in schema["properties"].items():
        of_section = _section(described)
        if of_section is not None and isinstance(settings.get(key), dict):
            yield from leaves(settings[key], of_section, f"{above}{key}.")
        else:
            yield f"{above}{key}", settings.get(key), described


def _section(described: dict[str, Any]) -> dict[str, Any] | None:
    for option in (described, *described.get("anyOf", ()), *described.get("allOf", ())):
        if "$ref" in option:
            return SCHEMA["$defs"][option["$ref"].rpartition("/")[2]]
    return None


def candidates(value: Any, described: dict[str, Any]) -> Iterator[Any]:
    """Other values that a setting may take."""
    for option in (described, *described.get("anyOf", ())):
        yield from (other for other in option.get("enum", ()) if other != value)
        match option.get("type"):
            case "boolean":
                yield not value
            case "integer":
                yield from (1 if value is None else value + 1, 2, 64)
            case "number":
                yield from (0.25 if value is None else value * 0.5 + 0.125, 0.5, 2.0)
            case "string":
                yield from (f"{value or ''}x", "/x", "http://127.0.0.1:9/v1")
            case "array":
                yield from (["x"], [{"match": "x"}])
            case "null" if value is not None:
                yield None
            case _:
                pass
    section = _section(described)
    if section is not None and value is None:
        wanted = {name: next(candidates(None, section["properties"][name])) for name in section.get("required", ())}
        yield wanted


def put(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of the settings with some of them changed."""
    copy = json.loads(json.dumps(settings))
    for name, value in changes.items():
        section = copy
        *path, last = name.split(".")
        for key in path:
            section = section[key]
        section[last] = value
    return copy


def changed_config(settings: dict[str, Any], name: str, value: Any, described: dict[str, Any]) -> RunConfig:
    for changes in [CHANGES[name]] if name in CHANGES else ({name: other} for other in candidates(value, described)):
        with contextlib.suppress(ValidationError):
            return RunConfig.model_validate(put(settings, changes))
    raise AssertionError(f"no other value of {name} was found: add one to CHANGES")


def optimisation_of(config: RunConfig) -> Optimisation:
    torch.manual_seed(0)
    policy = nn.Linear(2, 2)
    policy.value_head = nn.Linear(2, 1) if config.algorithm.has_critic else None
    return Optimisation(policy, config)  # pyright: ignore[reportArgumentType]


def rates(optimisation: Optimisation) -> list[tuple[float, float]]:
    return [(group["lr"], group["weight_decay"]) for group in optimisation.optimiser.param_groups]


def stepped(optimisation: Optimisation, steps: int = 3) -> Optimisation:
    for _ in range(steps):
        for parameter in optimisation.parameters:
            parameter.grad = torch.ones_like(parameter)
        optimisation.step()
    return optimisation


def refusal_of(settings: dict[str, Any], changed: RunConfig) -> str | None:
    try:
        refuse_fixed_settings(settings, changed, steps_done=1)
    except OtherStateError as error:
        return str(error)
    return None


def test_every_setting_takes_effect_or_is_refused_by_name(tmp_path, record_property):
    small = small_run(tmp_path, "critic").model_dump(mode="json")
    outcomes: dict[str, str] = {}
    for name, value, described in leaves(small):
        settings = put(small, BESIDE.get(name, {}))
        before = stepped(optimisation_of(RunConfig.model_validate(settings))).state()
        changed = changed_config(settings, name, value, described)
        if name in LOCATIONS:
            assert name not in changed_settings(settings, changed.model_dump(mode="json"))
            outcomes[name] = "by content"
            continue
        told = changed_settings(settings, changed.model_dump(mode="json"))
        assert any(leaf == name or leaf.startswith(f"{name}.") for leaf in told), f"{name} is not told"
        refusal = refusal_of(settings, changed)
        if refusal is not None:
            assert name in refusal
            outcomes[name] = "refused"
            continue
        outcomes[name] = "takes effect"
        # What was saved must not come back: a restored optimizer is one of the new settings, three steps on.
        restored = optimisation_of(changed)
        restored.become(before)
        assert rates(restored) == rates(stepped(optimisation_of(changed))), name
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("takes effect", "refused", "by content")}
    for kind, count in counts.items():
        record_property(f"settings_{kind.replace(' ', '_')}", count)
    refused = {name for name, outcome in outcomes.items() if outcome == "refused"}
    assert refused == {
        "algorithm.advantages",
        "algorithm.kl.reference",
        "engine",
        "learner.lora_alpha",
        "learner.lora_rank",
        "learner.sharding",
        "learner.tuning",
        "model.dtype",
        "name",
        "sft",  # a run of RL does not become one of supervised fine-tuning
        "tasks.order",
        "training.outputs",
    }
    assert counts["takes effect"] > 70


def test_a_checkpoint_restores_nothing_that_a_setting_says():
    """Whoever adds to what a checkpoint holds has to say here that no setting is overruled by it."""
    assert {field.name for field in fields(RunState)} == {
        "format",
        "health",
        "kl_coefficient",  # unless algorithm.kl.coefficient or algorithm.kl.target has changed
        "model",
        "open_deals",  # unless the journal does not fit
        "order",
        "settings",
        "step",
        "weights_version",
    }


def test_steps_that_are_done_cannot_be_taken_back(tmp_path):
    config = small_run(tmp_path, "critic")
    settings = config.model_dump(mode="json")
    fewer = RunConfig.model_validate(settings | {"training": settings["training"] | {"steps": 2}})
    refuse_fixed_settings(settings, fewer, steps_done=2)
    with pytest.raises(OtherStateError, match=r"training\.steps from 5 to 2 \(3 steps are already done\)"):
        refuse_fixed_settings(settings, fewer, steps_done=3)


def test_a_run_with_settings_of_another_version_is_refused(tmp_path):
    config = small_run(tmp_path, "critic")
    settings = config.model_dump(mode="json")
    older = settings | {"training": settings["training"] | {"pipeline": "sync"}}
    with pytest.raises(OtherStateError, match=r"training\.pipeline no longer exists"):
        refuse_fixed_settings(older, config, steps_done=1)
    older = settings | {"training": settings["training"] | {"steps": -1}}
    with pytest.raises(OtherStateError, match=r"training\.steps is no longer valid"):
        refuse_fixed_settings(older, config, steps_done=1)


class BrokenOffError(Exception):
    pass


class Listener:
    """Ends the run at the first episode of a step, as a crash would."""

    def __init__(self, break_off_at: int | None = None) -> None:
        self.break_off_at = break_off_at
        self.stages: list[str] = []
        self.metrics: list[dict[str, float]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if step == self.break_off_at:
            raise BrokenOffError

    def step_finished(self, step: int, metrics: Any, verdicts: Any) -> None:
        self.metrics.append(dict(metrics))


@pytest.fixture(scope="module")
def broken_off(small_qwen3, tmp_path_factory) -> Path:
    """A run of two steps that broke off in its second, with finished episodes in its journal."""
    folder = tmp_path_factory.mktemp("run")
    config = small_run(folder, "critic", model=small_qwen3, steps=2)

    async def play() -> None:
        async with open_run(config, Listener(break_off_at=1)) as run:
            await train(run)

    with pytest.raises(BrokenOffError):
        asyncio.run(play())
    return folder


@pytest.fixture
def run_folder(broken_off, tmp_path) -> Path:
    shutil.copytree(broken_off, tmp_path, dirs_exist_ok=True)
    return tmp_path


async def resumed(place: Path, *overrides: str) -> tuple[Run, Listener, SimpleNamespace]:
    """Resume the run to its end. What the journal held before, and what of it was used."""
    path = place / "outputs" / "critic"
    journaled = {line for file in (path / "journal").glob("*.jsonl") for line in file.read_text().splitlines()}
    took = {json.loads(line.partition(" ")[2])["duration_s"] for line in journaled}
    listener = Listener()
    folder = RunFolder.open(path)
    resume_point = find_resume_point(folder, overrides)
    async with open_run(resume_point.config, listener, folder=folder, resume_point=resume_point) as run:
        await train(run)
    played = read_trajectories(path / "trajectories" / "step-00001.parquet")
    used = {t.duration_s for t in played} & took
    return run, listener, SimpleNamespace(journaled=len(took), used=len(used))


@pytest.mark.process
class TestARealRun:
    async def test_without_a_change_uses_the_finished_episodes(self, run_folder):
        _, listener, episodes = await resumed(run_folder)
        assert episodes.journaled > 0
        assert episodes.used == episodes.journaled
        assert not any("again" in stage for stage in listener.stages)
        # All steps are done now. The advice of the refusal adds some.
        with RunFolder.open(run_folder / "outputs" / "critic") as folder:
            with pytest.raises(NoRunError) as raised:
                find_resume_point(folder)
            (advised,) = re.findall(r"--set (\S+),", raised.value.fix)
            assert find_resume_point(folder, [advised]).config.training.steps == 102

    async def test_learns_at_the_rates_and_the_kl_coefficient_it_is_given(self, run_folder):
        run, listener, episodes = await resumed(
            run_folder,
            "learner.learning_rate=3e-5",
            "learner.schedule=constant",
            "learner.warmup_steps=0",
            "algorithm.critic.learning_rate=7e-5",
            "algorithm.kl.coefficient=0.5",
            "algorithm.kl.target=null",
        )
        assert listener.metrics[-1]["learning_rate"] == pytest.approx(3e-5)
        optimiser = run.learner.optimisation.optimiser  # pyright: ignore[reportAttributeAccessIssue]
        assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([3e-5, 7e-5])
        assert run.kl_coefficient == 0.5
        assert episodes.used == 0

    async def test_plays_again_what_was_played_with_other_tasks(self, run_folder):
        other = run_folder / "other.jsonl"
        tasks = [json.loads(line) for line in (run_folder / "tasks.jsonl").read_text().splitlines()]
        other.write_text("\n".join(json.dumps(task | {"prompt": f"Please: {task['prompt']}"}) for task in tasks))
        _, listener, episodes = await resumed(run_folder, f"tasks.train={other}")
        assert episodes.used == 0
        assert "rerunning the finished episodes, because of changes in the tasks" in listener.stages

    async def test_plays_again_what_was_played_with_other_tools(self, run_folder):
        servers = json.loads((run_folder / "servers.json").read_text())
        other = run_folder / "bells.py"
        other.write_text(BELLS.read_text().replace("Ring a bell.", "Ring a bell, loudly."))
        servers["mcpServers"]["bells"]["args"] = [str(other)]
        (run_folder / "other.json").write_text(json.dumps(servers))
        _, listener, episodes = await resumed(run_folder, f"servers.file={run_folder / 'other.json'}")
        assert episodes.used == 0
        assert ("rerunning the finished episodes, because of changes in the tools, the servers") in listener.stages

    async def test_plays_again_what_was_played_with_another_seed(self, run_folder):
        _, _, episodes = await resumed(run_folder, "seed=12")
        assert episodes.used == 0

    async def test_refuses_a_model_in_which_one_bit_has_changed(self, run_folder, small_qwen3):
        model = run_folder / "model"
        shutil.copytree(small_qwen3, model)
        weights = bytearray((model / "model.safetensors").read_bytes())
        weights[-1000] ^= 1
        (model / "model.safetensors").write_bytes(weights)
        with pytest.raises(OtherStateError, match="differs from the model that the run started with"):
            await resumed(run_folder, f"model.path={model}")

    async def test_makes_the_folders_that_are_missing(self, run_folder):
        run = run_folder / "outputs" / "critic"
        for name in ("weights", "logs", "tokens"):
            shutil.rmtree(run / name)
        _, listener, _ = await resumed(run_folder)
        assert len(listener.metrics) == 1
        assert (run / "summary.json").exists()

    async def test_scores_with_a_reward_function_and_plays_again_what_older_code_scored(self, run_folder):
        code = run_folder / "code" / "rewards.py"
        code.parent.mkdir()
        code.write_text("def own(episode):\n    return len(episode.calls) / 10\n")
        function = f"rewards.functions={{own: {{function: '{code}:own', weight: 1.0}}}}"
        _, listener, episodes = await resumed(run_folder, function)
        assert episodes.used == 0
        played = read_trajectories(run_folder / "outputs" / "critic" / "trajectories" / "step-00001.parquet")
        assert {t.reward_parts["own"] == len([c for turn in t.turns for c in turn.calls]) / 10 for t in played} == {
            True
        }
        assert "reward_part_own" in listener.metrics[-1]

    def test_can_be_resumed_once_the_advice_of_its_errors_is_followed(self, run_folder):
        run = run_folder / "outputs" / "critic"
        with pytest.raises(NoRunError, match="pass the folder of a run"):
            RunFolder.open(run_folder)
        with RunFolder.open(run) as folder:
            with pytest.raises(RunInUseError, match="wait for that process to end"):
                RunFolder.open(run)
            with pytest.raises(OtherStateError, match=r"restore the previous value of learner\.lora_rank"):
                find_resume_point(folder, ["learner.lora_rank=64"])
            with pytest.raises(
                NoCheckpointError,
                match=r"no checkpoint of step 7; the run has checkpoints of steps: 1\. Fix: use one of these steps",
            ):
                find_resume_point(folder, from_step=7)
        with RunFolder.open(run) as folder:
            assert find_resume_point(folder, from_step=1).step == 1

    async def test_a_run_stopped_by_its_budget_ends_well_once_it_is_shortened(self, run_folder):
        folder = RunFolder.open(run_folder / "outputs" / "critic")
        resume_point = find_resume_point(folder, ["training.steps=1", "servers.settings.bells.budget.calls=0"])
        async with open_run(resume_point.config, Listener(), folder=folder, resume_point=resume_point) as run:
            await train(run)
        assert run.step == 1

    async def test_counts_the_calls_before_it_towards_its_budgets(self, run_folder):
        folder = RunFolder.open(run_folder / "outputs" / "critic")
        stats = read_stats(folder.path)
        stats["servers"]["bells"]["calls"] = 5
        write_stats(folder.path, stats)
        resume_point = find_resume_point(folder, ["training.steps=1", "servers.settings.bells.budget.calls=5"])
        async with open_run(resume_point.config, Listener(), folder=folder, resume_point=resume_point) as run:
            toolbox = cast("Toolbox", run.tool_figures)
            async with toolbox.lease(None) as lease:
                with pytest.raises(BudgetExceededError, match="used 5 of 5 calls"):
                    await lease.call(ToolCall(name="ring", arguments={"bell": "low"}))
            assert merge_stats([*run.earlier_figures, toolbox.stats()])["servers"]["bells"]["calls"] == 5

    async def test_continues_without_its_metrics(self, run_folder):
        run = run_folder / "outputs" / "critic"
        (run / "metrics.jsonl").unlink()
        _, listener, _ = await resumed(run_folder)
        assert "metrics.jsonl has no line for 1 of 1 steps; the summary omits them" in listener.stages
        assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1]
        summary = json.loads((run / "summary.json").read_text())
        assert summary["reward_first"] == summary["reward_last"] == listener.metrics[-1]["reward"]


@pytest.mark.process
async def test_a_run_without_its_journal_folder_can_be_resumed(broken_off, tmp_path):
    shutil.copytree(broken_off, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "outputs" / "critic"
    shutil.rmtree(run / "journal")
    shutil.rmtree(run / "trajectories")
    with RunFolder.open(run) as folder:
        assert find_resume_point(folder).journaled == 0
    assert (run / "trajectories").is_dir()


def test_conditions_are_read_as_they_were_written(tmp_path):
    conditions = Conditions(settings={"a": {"b": 1}}, tasks="1", tools="2", servers="3", model="4", code="5")
    conditions.write(tmp_path / "conditions.json")
    assert Conditions.read(tmp_path / "conditions.json") == conditions
    assert Conditions.read(tmp_path / "none.json") is None
