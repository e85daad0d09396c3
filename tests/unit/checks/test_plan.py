"""The plan of a recipe against independent calculations: amounts, time, bottleneck, memory, disk; what is assumed."""
# R24

from __future__ import annotations

import heapq
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcprl.checks.plan import (
    MEASURED_FILE,
    Constants,
    EpisodeShape,
    Figure,
    Plan,
    learned_tokens,
    make_plan,
    model_size,
    read_constants,
    server_names,
)
from mcprl.config import RunConfig
from mcprl.errors import BadValueError, ServerFileError
from mcprl.recipe import load_recipe
from mcprl.tasks import load_preamble, load_tasks

ROOT = Path(__file__).parents[3]
HELLO = ROOT / "recipes" / "hello-cpu.yaml"
QWEN = ROOT / "recipes" / "qwen3-fsdp2.yaml"
FULL = ROOT / "recipes" / "qwen3-full-zero3.yaml"
CONSTANTS = Constants(
    machine="a machine with round numbers",
    driver_turn_s=0.001,
    worker_turn_s=0.005,
    driver_base_bytes=100e6,
    driver_episode_bytes=1e5,
    worker_base_bytes=200e6,
    worker_episode_bytes=2e5,
    trajectory_token_bytes=40,
    cpu_parameters=100e6,
    cpu_sampler_tokens_per_s=200,
    cpu_learner_tokens_per_s=400,
)
EPISODE = {"turns": 4, "prompt_tokens": 100, "turn_tokens": 20, "observation_tokens": 30, "calls": 3, "tool_s": 1.0}
KNOWN = {**EPISODE, "sampler_tokens_per_s": 2000, "learner_tokens_per_s": 8000}
SMALL = [
    "training.tasks_per_step=8",
    "episodes.group_size=4",
    "episodes.max_concurrent=32",
    "workers.count=2",
]
LLAMA_SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


def plan_of(config: RunConfig, *, gpus: int = 0, constants: Constants = CONSTANTS, **known: float) -> Plan:
    figures = {name: Figure(value=value, source="given") for name, value in known.items()}
    tasks, preamble = load_tasks(config.tasks.train), load_preamble(config.tasks.preamble)
    return make_plan(config, tasks, preamble, gpus=gpus, known=figures, constants=constants)


def small(*overrides: str) -> RunConfig:
    return load_recipe(HELLO, [*SMALL, *overrides])


def busy(plan: Plan) -> dict[str, float]:
    return {part.name: part.busy_s for part in plan.parts}


# --- amounts


@given(
    st.builds(
        EpisodeShape,
        turns=st.integers(1, 20),
        prompt_tokens=st.integers(1, 2000),
        turn_tokens=st.integers(1, 500),
        observation_tokens=st.integers(0, 500),
        calls=st.integers(0, 20),
        tool_s=st.floats(0, 10),
    )
)
def test_the_tokens_of_an_episode_are_those_counted_turn_by_turn(shape):
    length, sampled = shape.prompt_tokens, 0
    for turn in range(int(shape.turns)):
        length += (shape.observation_tokens if turn else 0) + shape.turn_tokens
        sampled += shape.turn_tokens
    assert (shape.length_tokens, shape.sampled_tokens) == (length, sampled)


def test_a_step_amounts_to_its_episodes_and_a_run_to_its_steps():
    plan = plan_of(small("training.steps=10"), **KNOWN)
    step = plan.step
    assert (step.episodes, step.turns, step.calls) == (32, 128, 96)
    assert (step.sampled_tokens, step.prompt_tokens) == (32 * 80, 32 * (100 + 3 * 30))
    assert step.trajectory_bytes == 32 * 270 * 40
    assert (plan.run.calls, plan.run.seconds) == (960, pytest.approx(10 * step.seconds))


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        (["learner.tokens_per_pack=780"], 8 * (100 + 4 * 170)),
        (["learner.tokens_per_pack=9000"], 8 * (100 + 4 * 170)),
        (["learner.tokens_per_pack=440"], 8 * (2 * 100 + 4 * 170)),
        (["learner.tokens_per_pack=779"], 8 * (2 * 100 + 4 * 170)),
        (["learner.share_prefix=false"], 8 * 4 * 270),
        (["learner.share_prefix=false", "algorithm.old_logprobs=recomputed"], 8 * 4 * 270 * 4 / 3),
    ],
)
def test_the_learner_computes_a_shared_prompt_once_per_pack(overrides, tokens):
    config = small("algorithm.old_logprobs=sampled", "algorithm.kl.coefficient=0", *overrides)
    assert learned_tokens(config, EpisodeShape(**EPISODE)) == pytest.approx(tokens)


def test_rates_and_prices_of_servers_are_read_from_the_recipe():
    fmp = "{fmp: {rate: {calls: 30, per_s: 60}, budget: {usd: 5, usd_per_call: 0.01}}}"
    config = load_recipe(QWEN, [f"servers.settings={fmp}"])
    share = 1 / len(server_names(config.servers))
    plan = plan_of(config, turns=3)
    calls = 128 * 2 * share
    assert busy(plan)["rate of fmp"] == pytest.approx(calls / 0.5)
    assert plan.run.usd == pytest.approx(200 * calls * 0.01)
    (warning,) = plan.warnings
    assert "budget.usd is 5" in warning
    assert f"after step {int(5 / (calls * 0.01))}" in warning
    assert plan.figures["server_share"] == Figure(
        value=share, source="calls are spread evenly over the servers", assumed=True
    )


# --- time


def played(*, episodes: int, alive: int, turns: int, services: list[tuple[float, int]], wait_s: float) -> float:
    """When the last episode ends: `turns` times through all stations in order, then a wait, event by event.

    A station has so many units, and serves whoever came first.
    """
    free = [[0.0] * units for _, units in services]
    # (when it arrives, its number, turns done, station it arrives at)
    events = [(0.0, number, 0, 0) for number in range(alive)]
    begun, last = alive, 0.0
    while events:
        now, who, done, at = heapq.heappop(events)
        if at < len(services):
            begins = max(now, heapq.heappop(free[at]))
            heapq.heappush(free[at], begins + services[at][0])
            heapq.heappush(events, (begins + services[at][0], who, done, at + 1))
        elif done + 1 < turns:
            heapq.heappush(events, (now + wait_s, who, done + 1, 0))
        else:
            last = max(last, now + wait_s)
            if begun < episodes:
                heapq.heappush(events, (now + wait_s, begun, 0, 0))
                begun += 1
    return last


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.floats(0, 2))
def test_collecting_takes_at_least_the_predicted_time_and_at_most_all_work_in_a_row(
    tasks, places, turns, workers, tool_s
):
    config = small(f"training.tasks_per_step={tasks}", f"episodes.max_concurrent={places}", f"workers.count={workers}")
    known = {**EPISODE, "turns": turns, "calls": turns, "tool_s": tool_s, "sampler_tokens_per_s": 1e15}
    plan = plan_of(config, **known)
    episodes, alive = 4 * tasks, min(places, 4 * tasks)
    services = [(CONSTANTS.worker_turn_s, workers), (CONSTANTS.driver_turn_s, 1)]
    took_s = played(episodes=episodes, alive=alive, turns=turns, services=services, wait_s=tool_s)
    path_s = turns * (tool_s + CONSTANTS.worker_turn_s + CONSTANTS.driver_turn_s)
    in_a_row_s = math.ceil(episodes / alive) * path_s + busy(plan)["workers"] + busy(plan)["driver"]
    assert plan.collect_s <= took_s * (1 + 1e-9)
    assert took_s <= in_a_row_s * (1 + 1e-9)


def test_a_sync_step_is_collected_and_then_learned_from():
    plan = plan_of(small(), **KNOWN)
    # All 32 at once: three calls of a second, 80 tokens at 2000 / 32 a second, 4 turns of 6 ms.
    assert plan.collect_s == pytest.approx(3 + 80 / 62.5 + 4 * 0.006)
    assert plan.update_s == pytest.approx(plan.step.learned_tokens / 8000)
    assert plan.step.seconds == plan.collect_s + plan.update_s


def test_an_async_step_takes_as_long_as_the_busiest_part_or_a_share_of_both():
    recomputed = "algorithm.old_logprobs=recomputed"
    ahead = ["training.max_staleness=1", "episodes.max_concurrent=64"]
    plan = plan_of(small(recomputed, *ahead), **KNOWN)
    assert plan.step.seconds < plan_of(small(recomputed), **KNOWN).step.seconds
    assert plan.step.seconds == pytest.approx(max(plan.parts[0].busy_s, (plan.collect_s + plan.update_s) / 2))


FAST = {"sampler_tokens_per_s": 1e7, "learner_tokens_per_s": 1e7}


@pytest.mark.parametrize(
    ("overrides", "known", "part"),
    [
        ([], {}, "concurrent episodes"),
        ([], {"learner_tokens_per_s": 50}, "learner"),
        (["training.tasks_per_step=100", "episodes.max_concurrent=400"], {"sampler_tokens_per_s": 50}, "sampler"),
        (["training.tasks_per_step=800", "episodes.max_concurrent=4000"], FAST, "workers"),
        (["training.tasks_per_step=8000", "episodes.max_concurrent=40000", "workers.count=100"], FAST, "driver"),
    ],
)
def test_the_bottleneck_is_the_busiest_part(overrides, known, part):
    plan = plan_of(small(*overrides), **{**KNOWN, **known})
    assert plan.parts[0].name == part
    assert plan.parts[0].busy_s == max(busy(plan).values())


def test_a_run_without_workers_does_their_work_itself():
    plan = plan_of(small("workers.count=0"), **KNOWN)
    assert busy(plan)["driver"] == pytest.approx(32 * 4 * 0.006)
    assert not {"workers"} & (busy(plan).keys() | plan.memory_bytes.keys())


SKYRL = [
    "engine=skyrl",
    "learner.processes=1",
    "learner.lora_alpha=32",
    "learner.max_grad_norm=null",
    "sampling.constrain=off",
    "skyrl.url=http://127.0.0.1:1",
    "skyrl.backend=fsdp",
]


@pytest.mark.parametrize(
    ("overrides", "gpus", "units"),
    [
        (["learner.processes=4"], 4, (4, 4)),  # in turns
        (["learner.processes=4"], 6, (2, 4)),
        (["learner.processes=4"], 8, (4, 4)),
        (["learner.processes=4"], 2, (2, 2)),
        (["learner.processes=4", "placement.sampler.urls=['http://a:1','http://b:1','http://c:1']"], 4, (3, 4)),
        (["learner.processes=1"], 0, (1, 1)),
        (SKYRL, 8, (8, 8)),
        ([*SKYRL, "training.max_staleness=1"], 8, (4, 4)),
        ([*SKYRL, "training.max_staleness=1"], 3, (1, 2)),
        ([*SKYRL, "training.max_staleness=1"], 1, (1, 1)),
    ],
)
def test_gpus_are_divided_as_the_engine_does(overrides, gpus, units):
    plan = plan_of(load_recipe(QWEN, overrides), gpus=gpus)
    found = {part.name: part.units for part in plan.parts}
    assert (found["sampler"], found["learner"]) == units


# --- what is assumed


def test_every_constant_has_a_value_a_unit_and_how_it_was_measured():
    written = json.loads(MEASURED_FILE.read_text())
    assert {"machine", *written["constants"]} == {field.name for field in fields(Constants)}
    for constant in written["constants"].values():
        assert constant["value"] > 0
        assert constant["unit"]
        assert constant["how"]
    assert "cores of" in read_constants().machine


def test_what_is_not_known_of_an_episode_is_bounded_by_limits_and_marked_as_assumed():
    config = load_recipe(HELLO)
    figures = plan_of(config, tool_s=0.2, turns=3.0).figures
    shape = EpisodeShape(**{name: figures[name].value for name in EPISODE})
    assert (shape.turns, shape.tool_s, shape.calls) == (3.0, 0.2, 2.0)
    assert shape.turn_tokens == config.sampling.max_tokens
    assert shape.length_tokens == pytest.approx(config.model.context_tokens)
    assert {name for name in EPISODE if figures[name].assumed} == set(EPISODE) - {"turns", "tool_s"}


def test_turns_that_do_not_fit_into_the_context_are_shortened():
    config = load_recipe(HELLO, ["sampling.max_tokens=5000"])
    figures = plan_of(config).figures
    shape = EpisodeShape(**{name: figures[name].value for name in EPISODE})
    assert shape.length_tokens <= config.model.context_tokens + 1e-6


def test_a_rate_that_nobody_gave_is_that_of_a_cpu_scaled_to_the_model_and_says_so():
    sampler = plan_of(load_recipe(QWEN), gpus=4).figures["sampler_tokens_per_s"]
    assert sampler.value == pytest.approx(200 * 100e6 / 0.6e9)
    assert sampler.assumed
    assert "no GPU was measured" in sampler.source
    given_rate = plan_of(load_recipe(QWEN), gpus=4, sampler_tokens_per_s=5000).figures["sampler_tokens_per_s"]
    assert given_rate == Figure(value=5000, source="given")


# --- memory, disk and the size of a model


def test_memory_grows_with_workers_and_live_episodes():
    memory = plan_of(small(), **KNOWN).memory_bytes
    assert memory["driver"] == 100e6 + 32 * 1e5
    assert memory["workers"] == 2 * 200e6 + 32 * 2e5


@pytest.mark.parametrize(
    ("path", "given", "parameters", "source"),
    [
        ("Qwen/Qwen3-0.6B", None, 0.6e9, "from its name"),
        ("/models/smollm2-135m", None, 135e6, "from its name"),
        ("Qwen/Qwen3-8B-Base", None, 8e9, "from its name"),
        ("some/model", None, None, "unknown"),
        ("some/model", 5e9, 5e9, "given"),
    ],
)
def test_the_size_of_a_model_is_given_or_read_from_its_name(path, given, parameters, source):
    size = model_size(path, given)
    assert (size.parameters, size.source, size.rank_parameters) == (parameters, source, None)


def test_the_size_of_a_model_is_counted_from_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_SHAPE))
    size = model_size(str(tmp_path))
    matrices = [(8, 8), (8, 4), (8, 4), (8, 8), (8, 16), (8, 16), (16, 8)]
    parameters, rank = 32 * 8 + 2 * sum(a * b for a, b in matrices), 2 * sum(a + b for a, b in matrices)
    assert (size.parameters, size.rank_parameters) == (parameters, rank)
    lora, full = load_recipe(QWEN), load_recipe(FULL)
    # Weights and two moments of 4 bytes in a checkpoint; gradients, too, in memory.
    assert size.checkpoint_bytes(lora) == rank * 32 * 12
    assert size.checkpoint_bytes(full) == parameters * 12
    assert size.memory_bytes(lora, on_gpu=True) == {"sampler": 0, "learner": parameters * 2 + rank * 32 * 16}
    assert size.memory_bytes(full, on_gpu=True) == {"sampler": 0, "learner": parameters * 16}


def test_each_learner_process_holds_its_share_of_the_model():
    assert plan_of(load_recipe(QWEN), gpus=4).memory_bytes["learner"] == pytest.approx(0.6e9 * 2 / 4)


def test_a_model_of_unknown_architecture_is_not_counted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    size = model_size(str(tmp_path))
    assert size.parameters is None
    assert size.memory_bytes(load_recipe(QWEN), on_gpu=True) is None


def test_a_config_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadValueError, match=r"config\.json"):
        model_size(str(tmp_path))


# --- servers


def test_the_names_of_servers_are_read_without_their_keys(tmp_path):
    file = tmp_path / "servers.json"
    servers = {"paid": {"command": "x", "env": {"KEY": "${NOT_SET}"}}, "off": {"command": "y", "disabled": True}}
    file.write_text(json.dumps({"mcpServers": servers}))
    config = load_recipe(HELLO).servers.model_copy(update={"file": file})
    assert server_names(config) == ("paid",)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mcpServers": {}}', '{"mcpServers": 3}'])
def test_a_file_that_names_no_server_is_refused(tmp_path, text):
    file = tmp_path / "servers.json"
    file.write_text(text)
    with pytest.raises(ServerFileError):
        server_names(load_recipe(HELLO).servers.model_copy(update={"file": file}))
