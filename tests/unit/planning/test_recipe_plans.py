"""From a recipe to its workload: what is read, what is assumed and said to be, what budgets and GPUs allow."""
# R24

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from planned_runs import CONSTANTS

from mcprl.config import RunConfig
from mcprl.errors import ConfigFileError, ServerFileError
from mcprl.planning import Constants, assumed_shape, make_cluster, make_plan, model_size, read_constants, workload_of
from mcprl.planning.measured import MEASURED_FILE
from mcprl.planning.plan import Known
from mcprl.planning.servers import server_names
from mcprl.recipe import load_recipe
from mcprl.tasks import load_preamble, load_tasks

ROOT = Path(__file__).parents[3]
HELLO = ROOT / "recipes" / "hello-cpu.yaml"
QWEN = ROOT / "recipes" / "qwen3-fsdp2.yaml"
LLAMA_SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


def plan_of(config: RunConfig, *, gpus: int = 0, servers: tuple[str, ...] = ("time",), **known: float):
    return make_plan(
        config,
        load_tasks(config.tasks.train),
        load_preamble(config.tasks.preamble),
        servers=servers,
        gpus=gpus,
        known={name: Known(value=value, source="given") for name, value in known.items()},
    )


def test_every_constant_has_a_value_a_unit_and_how_it_was_measured():
    written = json.loads(MEASURED_FILE.read_text())
    assert set(written["constants"]) == {field.name for field in fields(Constants)}
    for constant in written["constants"].values():
        assert constant["value"] >= 0
        assert constant["unit"]
        assert constant["how"]
    constants, machine = read_constants()
    assert constants.cpu_sampler_tokens_per_s > 0
    assert "cores of" in machine


@pytest.mark.parametrize("text", [None, "", "{}", '{"machine": "x", "constants": {}}', "[]"])
def test_a_file_without_the_constants_is_an_error_that_says_how_to_measure_them(tmp_path, text):
    path = tmp_path / "measured.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigFileError, match="--write"):
        read_constants(path)


def test_what_is_not_known_of_an_episode_is_bounded_by_limits_and_said_to_be():
    config = load_recipe(HELLO)
    tasks, preamble = load_tasks(config.tasks.train), load_preamble(config.tasks.preamble)
    shape, reasons = assumed_shape(config, tasks, preamble, {"tool_s": 0.2, "turns": 3.0})
    assert (shape.turns, shape.tool_s, shape.calls) == (3.0, 0.2, 2.0)
    assert shape.turn_tokens == config.sampling.max_tokens
    assert shape.length_tokens == pytest.approx(config.model.context_tokens)
    assert set(reasons) == {"prompt_tokens", "turn_tokens", "observation_tokens", "calls"}


def test_turns_that_do_not_fit_into_the_context_are_shortened():
    config = load_recipe(HELLO, ["sampling.max_tokens=5000"])
    shape, _ = assumed_shape(config, load_tasks(config.tasks.train), (), {})
    assert shape.length_tokens <= config.model.context_tokens + 1e-6


def test_passes_without_gradients_and_the_pipeline_are_read_from_the_recipe():
    config = load_recipe(QWEN, ["training.pipeline=async", "training.max_staleness=2"])
    shape, _ = assumed_shape(config, load_tasks(config.tasks.train), (), {})
    workload = workload_of(config, shape, servers=["fmp"], weights_bytes=None)
    assert (workload.forward_passes, workload.staleness, workload.episodes) == (2, 2, 128)


def test_rates_and_prices_of_servers_are_read_from_the_recipe():
    settings = "{fmp: {rate: {calls: 30, per_s: 60}, budget: {usd: 5, usd_per_call: 0.01}}}"
    config = load_recipe(QWEN, [f"servers.settings={settings}"])
    plan = plan_of(config, servers=("fmp", "slack"), turns=3)
    fmp, slack = plan.workload.servers
    assert (fmp.calls_per_s, fmp.usd_per_call, slack.calls_per_s) == (0.5, 0.01, None)
    assert plan.run.usd == pytest.approx(200 * 128 * 2 / 2 * 0.01)
    assert any("budget.usd is 5" in warning and "after step 3" in warning for warning in plan.warnings)
    assert any(assumed.why == "calls are spread evenly over the servers" for assumed in plan.assumptions)


@pytest.mark.parametrize(
    ("gpus", "words"), [(0, []), (4, []), (6, ["2 of 6 GPUs stand idle"]), (2, ["learner.processes is 4"])]
)
def test_gpus_that_stand_idle_or_are_missing_are_named(gpus, words):
    warnings = plan_of(load_recipe(QWEN), gpus=gpus, sampler_tokens_per_s=1000, learner_tokens_per_s=1000).warnings
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


def test_a_rate_that_nobody_gave_is_that_of_a_cpu_scaled_to_the_model_and_says_so():
    plan = plan_of(load_recipe(QWEN), gpus=4)
    assumed = {assumption.name: assumption for assumption in plan.assumptions}
    constants, _ = read_constants()
    expected = constants.cpu_sampler_tokens_per_s * constants.cpu_parameters / 0.6e9
    assert assumed["sampler_tokens_per_s"].value == pytest.approx(expected)
    assert "no GPU was measured" in assumed["sampler_tokens_per_s"].why
    given = plan_of(load_recipe(QWEN), gpus=4, sampler_tokens_per_s=5000)
    assert given.cluster.sampler.tokens_per_s == 5000
    assert "sampler_tokens_per_s" not in {assumption.name for assumption in given.assumptions}


@pytest.mark.parametrize(
    ("overrides", "gpus", "units"),
    [
        (["learner.processes=4"], 4, (1, 4)),
        (["learner.processes=4"], 2, (1, 2)),
        (["learner.processes=1"], 0, (1, 1)),
        (["engine=skyrl"], 8, (8, 8)),
        (["engine=skyrl", "training.pipeline=async"], 8, (4, 4)),
        (["engine=skyrl", "training.pipeline=async"], 1, (1, 1)),
    ],
)
def test_gpus_are_shared_out_as_the_engine_does(overrides, gpus, units):
    skyrl = [
        "learner.processes=1",
        "learner.lora_alpha=32",
        "learner.max_grad_norm=null",
        "sampling.constrain=off",
        "skyrl.url=http://127.0.0.1:1",
        "skyrl.backend=fsdp",
    ]
    config = load_recipe(QWEN, [*(skyrl if "engine=skyrl" in overrides else []), *overrides])
    cluster = make_cluster(config, CONSTANTS, model_size("x-1B"), gpus=gpus, known={})
    assert (cluster.sampler_units, cluster.learner_units) == units


@pytest.mark.parametrize(
    ("path", "given", "parameters", "source"),
    [
        ("Qwen/Qwen3-0.6B", None, 0.6e9, "its name"),
        ("/models/smollm2-135m", None, 135e6, "its name"),
        ("Qwen/Qwen3-8B-Base", None, 8e9, "its name"),
        ("some/model", None, None, "not known"),
        ("some/model", 5e9, 5e9, "given"),
    ],
)
def test_the_size_of_a_model_is_given_or_read_in_its_name(path, given, parameters, source):
    size = model_size(path, given)
    assert (size.parameters, size.source, size.rank_parameters) == (parameters, source, None)


def test_the_size_of_a_model_is_counted_by_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_SHAPE))
    size = model_size(str(tmp_path))
    matrices = [(8, 8), (8, 4), (8, 4), (8, 8), (8, 16), (8, 16), (16, 8)]
    assert size.parameters == 32 * 8 + 2 * sum(a * b for a, b in matrices)
    assert size.rank_parameters == 2 * sum(a + b for a, b in matrices)
    config = load_recipe(QWEN)
    assert size.weights_bytes(config) == size.rank_parameters * 32 * 4
    full = load_recipe(ROOT / "recipes" / "qwen3-full-zero3.yaml")
    assert size.weights_bytes(full) == size.parameters * 2


def test_a_model_that_is_no_plain_decoder_is_not_counted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    assert model_size(str(tmp_path)).parameters is None


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


def test_a_workload_of_more_steps_costs_as_much_more():
    config = load_recipe(HELLO)
    plan = plan_of(config)
    assert plan.run_s == pytest.approx(plan.step.step_s * config.training.steps)
    longer = replace(plan.workload, steps=plan.workload.steps * 2)
    assert longer.episodes == plan.workload.episodes
