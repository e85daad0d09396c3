"""What the options of `mcprl eval` request, and the errors if they contradict each other."""

from __future__ import annotations

import json

import pytest

from mcprl.cli.options import endpoint_settings
from mcprl.episodes.endpoint import EndpointSettings
from mcprl.errors import BadValueError
from mcprl.evaluation import harness
from mcprl.evaluation.harness import GREEDY_TEMPERATURE, make_request
from mcprl.evaluation.outcomes import TaskSuite


@pytest.fixture
def recipe(root):
    return root / "recipes" / "hello-cpu.yaml"


@pytest.fixture
def tasks(root):
    return root / "recipes" / "hello" / "tasks.jsonl"


def test_a_recipe_is_evaluated_on_the_tasks_that_are_named(recipe, tasks):
    request = make_request(recipe=recipe, tasks=tasks, episodes=3, sample=2)
    assert (request.suite.name, request.episodes, request.sample) == ("hello-cpu", 3, 2)
    assert len(request.suite.tasks()) == 4


def test_without_tasks_to_validate_by_the_fix_names_an_option(recipe):
    with pytest.raises(BadValueError, match=r"has no tasks\.validation") as raised:
        make_request(recipe=recipe, overrides=["tasks.validation=null"])
    assert "--tasks" in raised.value.fix


def test_faults_are_injected_only_where_they_are_asked_for(recipe, tasks):
    assert make_request(recipe=recipe, tasks=tasks).config.episodes.injected_errors == 0.0
    changed = make_request(recipe, tasks=tasks, overrides=["episodes.injected_errors=0.25"])
    assert changed.config.episodes.injected_errors == 0.25


def test_greedy_is_a_temperature_near_0(recipe, tasks):
    request = make_request(recipe=recipe, tasks=tasks, greedy=True)
    assert request.config.sampling.temperature == GREEDY_TEMPERATURE


def test_another_model_is_seen_from_where_the_command_was_typed(recipe, tasks, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    at = {name: make_request(recipe=recipe, tasks=tasks, model=name) for name in ("mine", "./mine", "org/hub")}
    assert at["mine"].config.model.path == at["./mine"].config.model.path == str(tmp_path / "mine")
    assert at["org/hub"].config.model.path == "org/hub"


def test_the_sampler_is_started_for_the_rank_of_the_adapter(recipe, tasks, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 64}))
    request = make_request(recipe, tasks=tasks, adapter=tmp_path, overrides=["learner.tuning=full"])
    learner = request.config.learner
    assert (learner.tuning, learner.lora_rank) == ("lora", 64)


def test_an_adapter_of_another_model_is_refused(recipe, tasks, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 64, "base_model_name_or_path": "some/model"}))
    with pytest.raises(BadValueError, match=r"was trained on some/model, but model\.path is another/model"):
        make_request(recipe, tasks=tasks, adapter=tmp_path, overrides=["model.path=another/model"])


@pytest.mark.parametrize("text", [None, "[]", "{}", "no JSON"])
def test_a_folder_that_is_no_adapter_is_refused(recipe, tasks, tmp_path, text):
    if text is not None:
        (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(BadValueError, match="adapter_config"):
        make_request(recipe=recipe, tasks=tasks, adapter=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({}, "nothing to evaluate"),
        ({"suite": "bfcl-multi-turn", "tasks": "x.jsonl"}, "has its own tasks"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, what):
    with pytest.raises(BadValueError, match=what):
        make_request(**arguments)


def test_a_suite_needs_no_recipe_but_a_model(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(harness, "named_suite", lambda name: TaskSuite(name, []))
    request = make_request(suite="some", overrides=["model.path=./mine"])
    assert (request.config.name, request.config.model.path) == ("some", str(tmp_path / "mine"))
    with pytest.raises(BadValueError, match=r"'model' is missing"):
        make_request(suite="some")


def test_a_model_at_an_endpoint_leaves_the_recipes_model_alone(recipe, tasks, tmp_path):
    endpoint = EndpointSettings(url="http://127.0.0.1:1/v1", model="org/big")
    request = make_request(recipe, tasks=tasks, endpoint=endpoint)
    assert request.endpoint == endpoint
    assert request.config.model.path == make_request(recipe, tasks=tasks).config.model.path
    with pytest.raises(BadValueError, match="has its own weights"):
        make_request(recipe, tasks=tasks, endpoint=endpoint, adapter=tmp_path)


def options(url="http://127.0.0.1:1/v1", model="m", price=None, max_usd=None, per_minute=None, body=None):
    return endpoint_settings(url, model, "MY_KEY", price, max_usd, per_minute, body)


def test_fields_of_the_body_are_json_or_text():
    made = options(body=["max_tokens=null", "seed=3", "effort=low"])
    assert made.body == {"max_tokens": None, "seed": 3, "effort": "low"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": None}, "needs the name of a model"),
        ({"url": None, "max_usd": 1.0}, "need --endpoint"),
        ({"body": ["seed"]}, "is not KEY=VALUE"),
    ],
)
def test_options_of_an_endpoint_that_contradict_each_other_are_refused(given, said):
    assert options(url=None) is None
    with pytest.raises(BadValueError, match=said):
        options(**given)
