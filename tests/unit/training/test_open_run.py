"""A run put together: cheap checks before dear ones, and one whole small run on a real server and a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcprl.config import (
    AlgorithmConfig,
    EpisodesConfig,
    KlConfig,
    LearnerConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    TasksConfig,
    TrainingConfig,
    WarmStartConfig,
)
from mcprl.episodes import stage
from mcprl.episodes.stage import make_sampler
from mcprl.errors import BadValueError, TaskFileError, UnknownToolError
from mcprl.records import LostEpisode, Trajectory
from mcprl.runs.trajectories import read_trajectories
from mcprl.training import run as run_module
from mcprl.training.loop import train
from mcprl.training.run import open_run


class Listener:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.episodes: list[tuple[int, Trajectory | LostEpisode]] = []
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.packs: list[tuple[int, int]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def episode_finished(self, step, outcome) -> None:
        self.episodes.append((step, outcome))

    def pack_finished(self, done: int, total: int) -> None:
        self.packs.append((done, total))

    def step_finished(self, step, metrics, verdicts) -> None:
        self.steps.append((step, dict(metrics)))


def make_config(folder: Path, *tasks: dict, model: Path = Path("none"), **training) -> RunConfig:
    """A run on our directory server over its standard streams."""
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    entry = {"command": "mcprl", "args": ["serve", "directory"]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"directory": entry}}))
    return RunConfig(
        name="small",
        seed=1,
        model=ModelConfig(path=str(model), renderer="chatml", dtype="float32", context_tokens=1024),
        tasks=TasksConfig(train=folder / "tasks.jsonl"),
        servers=ServersConfig(file=folder / "servers.json"),
        # A turn ends at the letter e, if one comes up: some episodes answer and some are cut, so there is variance.
        engine="transformers",
        sampling=SamplingConfig(max_tokens=2, stop=("e",)),
        episodes=EpisodesConfig(group_size=4),
        algorithm=AlgorithmConfig(minibatches=1, min_learnable_tokens=1),
        learner=LearnerConfig(lora_rank=2, max_parity_error=1e-4),
        training=TrainingConfig(**({"steps": 3, "tasks_per_step": 1, "outputs": folder / "outputs"} | training)),
    )


A_TASK = {"id": "a", "prompt": "?", "answer": {"any": True}}


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where anything dear is begun."""
    for module, name in ((stage, "make_sampler"), (stage, "open_kit"), (run_module, "open_learner")):
        monkeypatch.setattr(module, name, lambda *_args, _name=name, **_options: pytest.fail(f"{_name} was called"))


@pytest.mark.process
@pytest.mark.parametrize("field", [{"tools": ["find_persn"]}, {"calls": [{"tool": "find_persn"}]}])
async def test_a_task_that_names_an_unknown_tool_stops_the_run_before_a_model_is_loaded(tmp_path, no_model, field):
    config = make_config(
        tmp_path,
        {"id": "good", "prompt": "?", "answer": {"any": True}},
        {"id": "d03", "prompt": "?", "answer": {"any": True}, **field},
    )
    listener = Listener()
    with pytest.raises(UnknownToolError, match=r"'find_persn', which task d03 needs \(did you mean 'find_person'\?\)"):
        async with open_run(config, listener):
            pass
    assert listener.stages == ["starting the tool servers"]


async def test_a_bad_task_file_stops_the_run_before_a_server_is_started(tmp_path, no_model):
    listener = Listener()
    with pytest.raises(TaskFileError):
        async with open_run(make_config(tmp_path, {"id": "a"}), listener):
            pass
    assert listener.stages == []
    assert not (tmp_path / "outputs").exists()


async def test_more_tasks_a_step_than_there_are_stops_the_run_before_a_server_is_started(tmp_path, no_model):
    listener = Listener()
    with pytest.raises(BadValueError, match=r"training\.tasks_per_step is 2"):
        async with open_run(make_config(tmp_path, A_TASK, tasks_per_step=2), listener):
            pass
    assert listener.stages == []


async def test_a_warm_start_without_solutions_stops_the_run_before_a_server_is_started(tmp_path, no_model):
    config, listener = make_config(tmp_path, A_TASK), Listener()
    warm = config.algorithm.model_copy(update={"warm_start": WarmStartConfig(weight=1.0)})
    with pytest.raises(BadValueError, match="none of the 1 tasks has a solution"):
        async with open_run(config.model_copy(update={"algorithm": warm}), listener):
            pass
    assert listener.stages == []
    assert not (tmp_path / "outputs").exists()


def test_the_engine_of_the_configuration_makes_the_sampler(tmp_path):
    config = make_config(tmp_path, A_TASK)
    assert type(make_sampler(config, tmp_path, None)).__name__ == "TransformersSampler"
    config = config.model_copy(update={"engine": "vllm"})
    assert type(make_sampler(config, tmp_path, None)).__name__ == "VllmSampler"


@pytest.mark.process
async def test_a_small_run_with_critic_reference_and_refill_trains_all_weights(small_qwen3, tmp_path):
    tasks = [{"id": name, "prompt": f"Where is {name}?", "answer": {"any": True}} for name in ("Ana", "Chen")]
    config = make_config(tmp_path, *tasks, model=small_qwen3, steps=2)
    algorithm = AlgorithmConfig(
        advantages="gae",
        old_logprobs="recomputed",
        ratio_gate=(0.25, 4.0),
        entropy=0.01,
        min_learnable_tokens=1,
        minibatches=1,
        kl=KlConfig(coefficient=0.02, target=0.3, cap=3.0, reference="ema"),
    )
    config = config.model_copy(
        update={"algorithm": algorithm, "learner": LearnerConfig(tuning="full", max_parity_error=1e-4)}
    )
    async with open_run(config, Listener()) as run:
        await train(run)
    folder = tmp_path / "outputs" / "small"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["weights_version"] for line in lines] == [1.0, 2.0]
    assert (folder / "model" / "model.safetensors").stat().st_size > 500_000
    # The sampler took over the whole weights, and the learner agrees about what they said.
    assert max(line["parity_logprob_max_abs_error"] for line in lines) <= 1e-5
    assert lines[0]["kl_reference"] == pytest.approx(0.0, abs=1e-8)
    assert lines[1]["kl_reference"] > 0.0
    # Far below its target, the divergence lets the coefficient fall by a fiftieth an update.
    assert [line["kl_coefficient"] for line in lines] == pytest.approx([0.02, 0.02 * 0.98])
    for line in lines:
        assert {"value_loss", "explained_variance", "importance_mean", "gated_fraction", "entropy"} <= set(line)


@pytest.mark.process
async def test_a_small_run_imitates_solutions_while_it_is_warm(small_qwen3, tmp_path):
    arguments = {"name": "Ana"}
    task = {
        "id": "ana",
        "prompt": "Where is Ana?",
        "tools": ["find_person"],
        "calls": [{"tool": "find_person", "arguments": arguments}],
        "solution": {"calls": [{"name": "find_person", "arguments": arguments}], "answer": "In Lima."},
    }
    config = make_config(tmp_path, task, model=small_qwen3, steps=3)
    algorithm = config.algorithm.model_copy(update={"warm_start": WarmStartConfig(weight=1.0, steps=2)})
    sampling = SamplingConfig(max_tokens=48)
    config = config.model_copy(
        update={"algorithm": algorithm, "sampling": sampling, "episodes": EpisodesConfig(group_size=2)}
    )
    async with open_run(config, Listener()) as run:
        await train(run)
    metrics = tmp_path / "outputs" / "small" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line.get("demonstration_weight", 0.0) for line in lines] == [1.0, 0.5, 0.0]
    assert lines[1]["imitation_loss"] < lines[0]["imitation_loss"]


@pytest.mark.process
async def test_a_small_run_collects_learns_publishes_and_records_every_step(small_qwen3, tmp_path):
    tools = ["find_person"]
    tasks = [
        {"id": name, "prompt": f"Where is {name}?", "tools": tools, "answer": {"any": True}} for name in ("Ana", "Chen")
    ]
    listener = Listener()
    async with open_run(make_config(tmp_path, *tasks, model=small_qwen3), listener) as run:
        summary = await train(run)
    folder = tmp_path / "outputs" / "small"

    assert [step for step, _ in listener.steps] == [0, 1, 2]
    assert len(listener.episodes) == 12
    assert listener.packs == [(1, 1)] * 3
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    version = 0
    for step, line in enumerate(lines):
        read = read_trajectories(folder / "trajectories" / f"step-{step:05d}.parquet")
        assert sorted(t.member for t in read) == [0, 1, 2, 3]
        # Sampled from the weights that the step before left behind, and the learner agrees about them.
        assert {own for t in read for own in t.weights_version} == {-1, version}
        version += not line["update_skipped"]
        assert line["weights_version"] == version
        assert line["parity_logprob_max_abs_error"] <= 1e-5
        assert line["alignment"] == 1.0
    found = json.loads((folder / "summary.json").read_text())
    assert found == summary.as_dict()
    assert (found["updates"], found["episodes"]) == (version, 12)
    assert found["optimiser_steps"] == version >= 1
    assert (folder / "health.jsonl").read_text().count("\n") >= 3
    last = folder / "weights" / f"v{version}" / "adapter_model.safetensors"
    final = folder / "adapter" / "adapter_model.safetensors"
    assert final.read_bytes() == last.read_bytes()
