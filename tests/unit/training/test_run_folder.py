"""The folder of a run: its name, and that what is read back is what was written."""
# R27, R28

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcprl.config import RunConfig
from mcprl.errors import Fault
from mcprl.goals import Goal
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Group, Observation, StopReason, Task, ToolCall, Trajectory, Turn, Weights
from mcprl.training import RunFolder, read_trajectories
from mcprl.verdicts import Severity, Verdict

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "hello-cpu.yaml"

numbers = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(min_value=0.0, max_value=1e6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    name=st.text(max_size=8),
    arguments=st.dictionaries(st.text(max_size=6), values, max_size=3),
    problem=st.none() | st.text(max_size=12),
)
observations = st.builds(
    Observation,
    tool=st.text(max_size=8),
    server=st.none() | st.text(max_size=8),
    text=st.text(max_size=30),
    fault=st.sampled_from([None, Fault.POLICY]),
    latency_s=seconds,
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    kinds = draw(st.text(alphabet="csfx", max_size=10))
    count = len(kinds)
    column = st.lists(st.integers(-1, 10), min_size=count, max_size=count).map(tuple)
    turns = st.builds(
        Turn,
        text=st.text(max_size=30),
        sampled_ids=st.lists(st.integers(0, 200_000), max_size=4).map(tuple),
        finish=st.sampled_from(FinishReason),
        weights_version=st.integers(0, 99),
        calls=st.lists(calls, max_size=2).map(tuple),
        observations=st.lists(observations, max_size=2).map(tuple),
        reward=numbers,
    )
    return Trajectory(
        task_id="task",
        step=draw(st.integers(0, 10**6)),
        member=0,
        attempt=draw(st.integers(0, 9)),
        temperature=draw(st.floats(0.01, 2.0)),
        token_ids=tuple(draw(st.lists(st.integers(0, 200_000), min_size=count, max_size=count))),
        sampled=tuple(kind != "c" for kind in kinds),
        forced=tuple(kind == "f" for kind in kinds),
        fixed=tuple(kind == "x" for kind in kinds),
        logprobs=tuple(draw(st.floats(-50.0, 0.0)) if kind != "c" else 0.0 for kind in kinds),
        turn_index=draw(column),
        weights_version=draw(column),
        turns=tuple(draw(st.lists(turns, max_size=3))),
        stop=draw(st.sampled_from(StopReason)),
        reward=draw(numbers),
        reward_parts=draw(st.dictionaries(st.text(max_size=6), numbers, max_size=3)),
        duration_s=draw(seconds),
        grammar=draw(st.none() | st.text(max_size=30)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 200_000), max_size=3))),
    )


def group_of(made: list[Trajectory]) -> Group:
    task = Task(id="task", prompt=({"role": "user", "content": "?"},), goal=Goal())
    return Group(task=task, trajectories=tuple(replace(t, member=i) for i, t in enumerate(made)))


def make_config(outputs: Path, name: str = "hello") -> RunConfig:
    return load_recipe(RECIPE, [f"training.outputs={outputs}", f"name={name}"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(make_config(tmp_path))


@given(st.lists(st.lists(trajectories(), min_size=2, max_size=3), min_size=1, max_size=2))
@settings(deadline=None, max_examples=60)
def test_trajectories_read_back_are_those_written(tmp_path_factory, made):
    folder = RunFolder.create(make_config(tmp_path_factory.mktemp("outputs")))
    groups = [group_of(members) for members in made]
    folder.record_step(3, groups, {}, [])
    read = read_trajectories(folder.path / "trajectories" / "step-00003.parquet")
    assert read == [t for group in groups for t in group.trajectories]
    for trajectory in read:
        assert isinstance(trajectory.stop, StopReason)
        assert all(isinstance(turn, Turn) for turn in trajectory.turns)


@pytest.mark.parametrize("levels", [100, 220, 400])
def test_arguments_nested_as_deep_as_a_policy_likes_are_recorded(folder, levels):
    nested: object = "core"
    for _ in range(levels):
        nested = [nested]
    turn = Turn(
        text="",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=(ToolCall(name="f", arguments={"x": nested}),),
        observations=(Observation(tool="f", server=None, text="no", fault=Fault.POLICY),),
    )
    made = Trajectory(
        task_id="task",
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        token_ids=(0, 1),
        sampled=(False, True),
        forced=(False, False),
        fixed=(False, False),
        logprobs=(0.0, -1.0),
        turn_index=(-1, 0),
        weights_version=(-1, 0),
        turns=(turn,),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )
    folder.record_step(0, [group_of([made, made])], {}, [])
    read = read_trajectories(folder.path / "trajectories" / "step-00000.parquet")
    assert json.dumps(read[0].turns[0].calls[0].arguments) == json.dumps({"x": nested})


def test_a_second_run_of_a_name_gets_a_number_and_touches_nothing_of_the_first(tmp_path):
    config = make_config(tmp_path / "new" / "outputs")
    made = [RunFolder.create(config) for _ in range(3)]
    (made[0].path / "mark").touch()
    assert [folder.path.name for folder in made] == ["hello", "hello-2", "hello-3"]
    RunFolder.create(config)
    assert (made[0].path / "mark").exists()


def test_a_folder_is_ready_for_weights_logs_and_trajectories(folder):
    assert {path.name for path in folder.path.iterdir()} == {"config.yaml", "logs", "trajectories", "weights"}
    assert (folder.weights, folder.logs) == (folder.path / "weights", folder.path / "logs")


def test_outputs_that_can_be_no_folder_are_an_error_and_no_endless_search(tmp_path):
    (tmp_path / "outputs").symlink_to(tmp_path / "nowhere" / "at all")
    with pytest.raises(OSError, match="outputs"):
        RunFolder.create(make_config(tmp_path / "outputs"))


def test_the_configuration_in_the_folder_is_that_of_the_run(tmp_path):
    config = make_config(tmp_path)
    folder = RunFolder.create(config)
    assert load_recipe(folder.path / "config.yaml") == config


def test_each_step_adds_one_line_of_metrics(folder):
    for step in range(2):
        folder.record_step(step, [], {"reward": step / 4, "loss": -0.5}, [])
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 0, "reward": 0.0, "loss": -0.5},
        {"step": 1, "reward": 0.25, "loss": -0.5},
    ]


def test_only_the_last_two_versions_are_kept(folder):
    for version in range(1, 6):
        (folder.weights / f"v{version}").mkdir()
        folder.drop_old_weights(Weights(version=version, adapter=folder.weights / f"v{version}"))
        kept = sorted(path.name for path in folder.weights.iterdir())
        assert kept == [f"v{v}" for v in range(max(1, version - 1), version + 1)]


def test_the_end_of_a_run_leaves_the_last_adapter_and_the_summary(folder):
    adapter = folder.weights / "v3"
    adapter.mkdir()
    (adapter / "weights").write_text("w")
    folder.finish(Weights(version=3, adapter=adapter), {"updates": 3})
    assert (folder.path / "adapter" / "weights").read_text() == "w"
    assert json.loads((folder.path / "summary.json").read_text()) == {"updates": 3}


def test_the_end_of_a_run_that_trained_all_weights_leaves_a_model(folder):
    model = folder.weights / "v3"
    model.mkdir()
    (model / "weights").write_text("w")
    folder.finish(Weights(version=3, model=model), {})
    assert (folder.path / "model" / "weights").read_text() == "w"
    assert not (folder.path / "adapter").exists()


def test_the_verdicts_on_each_step_are_recorded_in_words(folder):
    bad = Verdict(severity=Severity.BAD, what="all is lost", fix="begin anew", name="loss")
    fine = Verdict(severity=Severity.OK, what="all is well", fix="")
    folder.record_step(0, [], {}, [bad, fine])
    folder.record_step(1, [], {}, [fine])
    lines = [json.loads(line) for line in (folder.path / "health.jsonl").read_text().splitlines()]
    assert [(line["step"], line["severity"], line["fix"]) for line in lines] == [
        (0, "bad", "begin anew"),
        (0, "ok", ""),
        (1, "ok", ""),
    ]


def test_a_run_that_never_learned_leaves_no_adapter(folder):
    folder.finish(Weights(version=0), {})
    assert not (folder.path / "adapter").exists()
