"""A run put together: cheap checks before dear ones, and one whole small run on a real server and a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcprl.config import (
    AlgorithmConfig,
    EpisodesConfig,
    LearnerConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    TasksConfig,
    TrainingConfig,
)
from mcprl.errors import BadValueError, TaskFileError, UnknownToolError
from mcprl.records import LostEpisode, Trajectory
from mcprl.training import open_run, read_trajectories, train
from mcprl.training import run as run_module
from mcprl.training.run import make_sampler

TINY_QWEN3 = Path(__file__).resolve().parents[3] / ".cache" / "models" / "tiny-qwen3"


class Listener:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.episodes: list[tuple[int, Trajectory | LostEpisode]] = []
        self.steps: list[tuple[int, dict[str, float]]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def episode_finished(self, step, outcome) -> None:
        self.episodes.append((step, outcome))

    def step_finished(self, step, metrics) -> None:
        self.steps.append((step, dict(metrics)))


def make_config(folder: Path, *tasks: dict, **training) -> RunConfig:
    """A run on our directory server over its standard streams."""
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    entry = {"command": "mcprl", "args": ["serve", "directory"]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"directory": entry}}))
    return RunConfig(
        name="small",
        seed=1,
        model=ModelConfig(path=str(TINY_QWEN3), renderer="chatml", dtype="float32", context_tokens=512),
        tasks=TasksConfig(train=folder / "tasks.jsonl"),
        servers=ServersConfig(file=folder / "servers.json"),
        # A turn ends at the letter e, if one comes up: some episodes answer and some are cut, so there is variance.
        sampling=SamplingConfig(engine="transformers", max_tokens=2, stop=("e",)),
        episodes=EpisodesConfig(group_size=4),
        algorithm=AlgorithmConfig(minibatches=1),
        learner=LearnerConfig(lora_rank=2, max_parity_error=1e-3),
        training=TrainingConfig(**({"steps": 3, "tasks_per_step": 1, "outputs": folder / "outputs"} | training)),
    )


A_TASK = {"id": "a", "prompt": "?", "answer": {"any": True}}


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where anything dear is begun."""
    for name in ("make_sampler", "load_chat", "TorchLearner"):
        monkeypatch.setattr(run_module, name, lambda *_args, _name=name, **_options: pytest.fail(f"{_name} was called"))


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


def test_the_engine_of_the_configuration_makes_the_sampler(tmp_path):
    config = make_config(tmp_path, A_TASK)
    assert type(make_sampler(config, tmp_path, None)).__name__ == "TransformersSampler"
    config = config.model_copy(update={"sampling": SamplingConfig(engine="vllm")})
    assert type(make_sampler(config, tmp_path, None)).__name__ == "VllmSampler"


async def test_a_small_run_collects_learns_publishes_and_records_every_step(tmp_path):
    if not (TINY_QWEN3 / "config.json").exists():
        pytest.skip("the tiny model is missing: run scripts/setup")
    tools = ["find_person"]
    tasks = [
        {"id": name, "prompt": f"Where is {name}?", "tools": tools, "answer": {"any": True}} for name in ("Ana", "Chen")
    ]
    listener = Listener()
    async with open_run(make_config(tmp_path, *tasks), listener) as run:
        summary = await train(run)
    folder = tmp_path / "outputs" / "small"

    assert [step for step, _ in listener.steps] == [0, 1, 2]
    assert len(listener.episodes) == 12
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line["weights_version"] for line in lines] == [1.0, 2.0, 3.0]
    for step, line in enumerate(lines):
        read = read_trajectories(folder / "trajectories" / f"step-{step:05d}.parquet")
        assert sorted(t.member for t in read) == [0, 1, 2, 3]
        # Sampled from the weights that the step before left behind, and the learner agrees about them.
        assert {version for t in read for version in t.weights_version} == {-1, step}
        assert line["parity_logprob_max_abs_error"] <= 1e-5
        assert line["alignment"] == 1.0
    found = json.loads((folder / "summary.json").read_text())
    assert found == summary.as_dict()
    assert (found["updates"], found["episodes"]) == (3, 12)
    assert found["optimiser_steps"] >= 1
    assert sorted(path.name for path in (folder / "adapters").iterdir()) == ["v2", "v3"]
    last, final = (path / "adapter_model.safetensors" for path in (folder / "adapters" / "v3", folder / "adapter"))
    assert final.read_bytes() == last.read_bytes()
