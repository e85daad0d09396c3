"""Supervised fine-tuning: what is imitated and what is not, in which order, when it stops, and RL from its adapter."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from test_open_run import Listener, make_config

sys.path.append(str(Path(__file__).resolve().parents[1] / "episodes"))

from staged_episodes import Face, FunctionTools, call, made_trajectory, made_turn, make_task
from staged_episodes import make_config as make_episode_config

from mcprl.chat import load_chat
from mcprl.config import SftConfig
from mcprl.episodes.demonstrations import Demonstrator
from mcprl.episodes.stage import make_sampler
from mcprl.errors import BadValueError, NoRunError
from mcprl.progress import Silent
from mcprl.records import Solution
from mcprl.runs.trajectories import read_trajectories, write_trajectories
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.seeds import derive_seed
from mcprl.training.loop import train
from mcprl.training.run import open_run
from mcprl.training.sft import Examples, best_step, has_stopped_improving, open_examples

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ECHO = {"type": "function", "function": {"name": "echo", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def chat(tiny_qwen3):
    return load_chat(str(tiny_qwen3), "chatml")


def solved(text: str, answer: str) -> Solution:
    return Solution(calls=(call("echo", text=text),), answer=answer)


def messages(text: str, answer: str) -> list[dict]:
    function = {"name": "echo", "arguments": json.dumps({"text": text})}
    return [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": text},
        {"role": "assistant", "content": answer},
    ]


def earlier_run(folder: Path, *trajectories, renderer: str = "chatml") -> Path:
    """The folder of a run that played these."""
    (folder / "trajectories").mkdir(parents=True)
    config = make_episode_config()
    model = config.model.model_copy(update={"renderer": renderer})
    (folder / "config.yaml").write_text(config.model_copy(update={"model": model}).to_yaml())
    write_trajectories(folder / "trajectories" / "step-00000.parquet", trajectories)
    return folder


def episode(task_id: str, member: int, **parts: float):
    """One whose tokens no other has."""
    made = made_trajectory(task_id, member, turns=[made_turn((call("echo", text=task_id), True))], parts=parts)
    return replace(made, token_ids=tuple(derive_seed(0, task_id, member, place) % 1000 for place in range(4)))


def gather(chat, folder: Path, tasks, *data, held_out=()) -> Examples:
    sft = SftConfig(data=tuple(map(str, data)), batch_size=2)
    config = make_episode_config().model_copy(update={"sft": sft})
    tools = FunctionTools(echo=lambda text: text)
    tools.tools = [Face("echo", parameters=PARAMETERS)]
    demonstrator = Demonstrator(config, chat=chat, leases=tools, preamble=(), grammars=None)
    stage = SimpleNamespace(chat=chat, demonstrator=demonstrator)
    return asyncio.run(open_examples(config, folder / "sft", stage, tasks, held_out, Silent()))


def names(found: Examples) -> list[str]:
    """The tasks of all conversations, held out or not."""
    return sorted(t.task_id for t in (*found.train, *found.validation))


def left_out(folder: Path) -> list[str]:
    return [json.loads(line)["why"] for line in (folder / "sft" / "left_out.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_no_episode_that_failed_its_checks_is_imitated(chat, tmp_path):
    tasks = [
        make_task("right", answer="blue", solution=solved("blue", "It is blue.")),
        make_task("wrong", answer="blue", solution=solved("blue", "It is red.")),
        make_task("shown", answer="blue"),
    ]
    rows = [
        {"task": "shown", "messages": messages("green", "It is blue."), "tools": [ECHO]},
        {"task": "shown", "messages": messages("green", "It is red."), "tools": [ECHO]},
        {"task": "gone", "messages": messages("green", "It is blue."), "tools": [ECHO]},
        {"task": "shown", "messages": messages("green", "It is blue.")[:-1], "tools": [ECHO]},
        {"task": "shown", "messages": "not a list"},
    ]
    (tmp_path / "shown.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = earlier_run(
        tmp_path / "run",
        episode("passed", 0, answer=1.0),
        episode("failed", 0, answer=0.0),
        episode("half", 0, answer=1.0, state=0.5),
        episode("unchecked", 0, efficiency=0.2),
    )
    found = gather(chat, tmp_path, tasks, "solutions", tmp_path / "shown.jsonl", run)
    assert names(found) == ["passed", "right", "shown"]
    reasons = left_out(tmp_path)
    assert len(reasons) == 8
    for words in (
        "solution of task wrong does not solve the task",
        "shown.jsonl:2, of task shown, does not solve the task",
    ):
        assert any(words in reason for reason in reasons), words
    for words in (
        "there is no task 'gone'",
        "shown.jsonl:5: not a conversation",
        "0 of task failed did not pass its checks",
    ):
        assert any(words in reason for reason in reasons), words
    assert sum("did not pass its checks" in reason for reason in reasons) == 3


def test_chats_are_imitated_as_they_are_and_the_same_tokens_once(chat, tmp_path):
    rows = [{"messages": messages(text, "Done."), "tools": [ECHO]} for text in ("a", "b", "a")]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = gather(chat, tmp_path, [make_task("unused")], tmp_path / "chats.jsonl")
    assert names(found) == ["chats.jsonl:1", "chats.jsonl:2"]
    assert left_out(tmp_path) == []


def test_episodes_of_earlier_runs_keep_their_tokens_and_get_the_temperature_of_the_recipe(chat, tmp_path):
    before = episode("a", 1, answer=1.0)
    (t,) = gather(chat, tmp_path, [make_task("a")], earlier_run(tmp_path / "run", before)).train
    assert (t.token_ids, t.sampled) == (before.token_ids, before.sampled)
    assert (before.temperature, t.temperature) == (1.0, 0.7)


def test_a_run_in_other_tokens_and_a_folder_that_is_no_run_are_refused(chat, tmp_path):
    other = earlier_run(tmp_path / "run", episode("a", 0, answer=1.0), renderer="qwen3")
    with pytest.raises(BadValueError, match="have different token ids"):
        gather(chat, tmp_path, [make_task("a")], other)
    (tmp_path / "folder").mkdir()
    with pytest.raises(NoRunError, match=r"has no config\.yaml"):
        gather(chat, tmp_path, [make_task("a")], tmp_path / "folder")


def test_nothing_to_imitate_is_an_error(chat, tmp_path):
    with pytest.raises(BadValueError, match="no conversations to imitate: 0 are usable"):
        gather(chat, tmp_path, [make_task("a")], "solutions")


def test_no_task_is_both_learned_and_held_out_and_validation_tasks_always_are(chat, tmp_path):
    run = earlier_run(tmp_path / "run", *(episode(f"t{n}", m, answer=1.0) for n in range(10) for m in range(2)))
    found = gather(chat, tmp_path, [], run, held_out=[make_task("t3")])
    sides = [{t.task_id for t in side} for side in (found.train, found.validation)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 2
    assert "t3" in sides[1]
    assert [task.id for task in found.tasks] == ["t3"]


def test_the_conversations_of_a_run_are_read_again_and_not_made_again(chat, tmp_path):
    task = make_task("a", answer="blue", solution=solved("blue", "It is blue."))
    first = gather(chat, tmp_path, [task], "solutions")
    again = gather(chat, tmp_path, [make_task("a", answer="red")], "solutions")
    assert again.train == first.train


def test_each_pass_has_every_conversation_once_in_an_order_of_its_own(chat, tmp_path):
    run = earlier_run(tmp_path / "run", *(episode(f"t{n}", 0, answer=1.0) for n in range(7)))
    found = gather(chat, tmp_path, [], run)
    batches = [[t.task_id for t in found.batch(step)] for step in range(6)]
    passes = [[name for batch in some for name in batch] for some in (batches[:3], batches[3:])]
    assert [sorted(own) for own in passes] == [[t.task_id for t in sorted(found.train, key=lambda t: t.task_id)]] * 2
    assert len(found.train) == 6
    assert passes[0] != passes[1]
    assert [t.task_id for t in found.batch(4)] == batches[4]


def test_fine_tuning_without_validation_tasks_starts_no_engine(tmp_path):
    config = make_config(tmp_path, *directory_tasks(tmp_path)).model_copy(update={"sft": SftConfig()})
    assert isinstance(make_sampler(config, tmp_path, None), ScriptedSampler)
    with_tasks = config.tasks.model_copy(update={"validation": tmp_path / "validation.jsonl"})
    for other in (config.for_rl(), config.model_copy(update={"tasks": with_tasks})):
        assert not isinstance(make_sampler(other, tmp_path, None), ScriptedSampler)


@pytest.mark.parametrize(
    ("losses", "best", "stopped"),
    [
        ([], None, False),
        ([3.0, None, 2.0], 3, False),
        ([1.0, 2.0, 2.0], 1, False),
        ([1.0, 2.0, 2.0, 2.0], 1, True),
        ([2.0, 1.0, 1.5, None, 1.5, 0.9], 6, False),
        ([1.0, 1.0, 1.0, 1.0], 1, True),
    ],
)
def test_a_run_stops_after_three_validations_without_a_better_loss(losses, best, stopped):
    steps = [{} if loss is None else {"validation_loss": loss} for loss in losses]
    assert best_step(steps) == best
    assert has_stopped_improving(steps) is stopped


def directory_tasks(folder: Path) -> list[dict]:
    tasks = []
    for name, place in (("Ana", "Lima"), ("Chen", "Shanghai"), ("Kayla", "London"), ("Hiro", "Tokyo")):
        tasks.append(
            {
                "id": name.lower(),
                "prompt": f"Where is {name}?",
                "tools": ["find_person"],
                "calls": [{"tool": "find_person", "arguments": {"name": name}}],
                "solution": {"calls": [{"name": "find_person", "arguments": {"name": name}}], "answer": f"In {place}."},
            }
        )
    (folder / "validation.jsonl").write_text(json.dumps(tasks[-1]))
    return tasks[:-1]


@pytest.mark.process
async def test_a_small_run_imitates_validates_and_rl_starts_from_its_adapter(tmp_path, small_qwen3):
    config = make_config(tmp_path, *directory_tasks(tmp_path), model=small_qwen3, steps=2)
    config = config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"validation": tmp_path / "validation.jsonl"}),
            "sampling": config.sampling.model_copy(update={"max_tokens": 48, "stop": ()}),
            "sft": SftConfig(steps=4, batch_size=3, learning_rate=3e-3),
        }
    )
    listener = Listener()
    async with open_run(config.for_sft(), listener) as run:
        await train(run)
    folder = tmp_path / "outputs" / "small-sft"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["imitation_loss"] for line in lines] == sorted(
        (line["imitation_loss"] for line in lines), reverse=True
    )
    assert [step for step, line in enumerate(lines) if "validation_loss" in line] == [0, 1, 2, 3]
    assert lines[3]["validation_loss"] < lines[1]["validation_loss"]
    # Two episodes of the one validation task, at each validation; they are recorded like any others.
    assert [len(listener.episodes), *(line["episodes"] for line in lines)] == [8, 2.0, 2.0, 2.0, 2.0]
    played = read_trajectories(folder / "trajectories" / "step-00003.parquet")
    assert {(t.task_id, version) for t in played for version in t.weights_version} == {("hiro", -1), ("hiro", 4)}
    adapter = folder / "adapter"
    assert (folder / "summary.json").exists()

    # With one token a turn there is little to sample, but it is sampled from the adapter, and the learner agrees.
    model = config.model.model_copy(update={"adapter": adapter})
    rl = config.model_copy(
        update={"model": model, "sampling": make_config(tmp_path, *directory_tasks(tmp_path)).sampling}
    )
    async with open_run(rl.for_rl(), listener) as run:
        start = {name: p.detach().clone() for name, p in run.learner.policy.model.named_parameters() if "lora_" in name}
        await train(run)
    saved = load_file(adapter / "adapter_model.safetensors")
    assert all((start[name.replace(".weight", ".default.weight")] == tensor).all() for name, tensor in saved.items())
    lines = [json.loads(line) for line in (tmp_path / "outputs" / "small" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["parity_logprob_max_abs_error"] for line in lines if "parity_tokens" in line) <= 1e-5
    assert len(lines) == 2


@pytest.mark.process
async def test_an_adapter_of_another_rank_is_refused_before_a_server_is_started(tmp_path):
    config = make_config(tmp_path, *directory_tasks(tmp_path))
    (tmp_path / "adapter").mkdir()
    text = {"r": 4, "lora_alpha": 32, "base_model_name_or_path": config.model.path}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(text))
    model = config.model.model_copy(update={"adapter": tmp_path / "adapter"})
    listener = Listener()
    with pytest.raises(BadValueError, match=r"set learner\.lora_rank to 4"):
        async with open_run(config.model_copy(update={"model": model}), listener):
            pass
    assert listener.stages == []
