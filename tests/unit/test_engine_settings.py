"""Settings that engine skyrl cannot serve are refused when the recipe is read, with an alternative."""
# R24

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mcprl.config import LearnerConfig, RunConfig

FIT: dict[str, Any] = {
    "model": {"path": "model", "renderer": "qwen3"},
    "tasks": {"train": Path("tasks.jsonl")},
    "servers": {"file": Path("servers.json")},
    "sampling": {"constrain": "off"},
    "learner": {},
    "algorithm": {},
    "training": {},
    "skyrl": {},
}
ASYNC: dict[str, dict[str, Any]] = {
    "training": {"max_staleness": 1},
    "algorithm": {"old_logprobs": "recomputed"},
}
URL = {"url": "http://cluster:8000"}

# A section's settings, and the words of the refusal: what is lacking, and the alternative.
UNFIT = {
    "value head": ({"algorithm": {"advantages": "gae"}}, "a value head", "grpo"),
    "entropy bonus": ({"algorithm": {"entropy": 0.01}}, "entropy bonus", "clip_high"),
    "EMA reference": (
        {"algorithm": {"kl": {"coefficient": 0.1, "reference": "ema"}}},
        "a moving average",
        "sync (a periodic copy of the policy)",
    ),
    "all weights": ({"learner": {"tuning": "full"}}, "learner.tuning=full", "lora"),
    "adapter scale": ({"learner": {"lora_alpha": 16}}, "an adapter scale", "to 32"),
    "clipping": ({"learner": {"max_grad_norm": 1.0}}, "learner.max_grad_norm=1", "leave it out"),
    "processes": ({"learner": {"processes": 2}}, "learner.processes", "set it to 1"),
    "temperature": ({"sampling": {"temperature": 0.7, "constrain": "off"}}, "at a temperature other than 1", "to 1.0"),
    "grammars": ({"sampling": {"constrain": "calls"}}, "grammars", "off"),
    "async on jax": (ASYNC, "sampling from older weights", "to 0"),
    "fsdp started here": ({"skyrl": {"backend": "fsdp"}}, "backend fsdp on a server that mcprl starts", "skyrl.url"),
}


def configured(engine: str, changed: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"name": "run", "engine": engine, **FIT, **changed})


def test_a_recipe_of_defaults_is_accepted_and_the_server_clips_gradients():
    config = configured("skyrl", {})
    assert config.learner.max_grad_norm is None
    assert RunConfig.model_validate(config.model_dump()) == config  # a resumed run reads all settings
    assert configured("skyrl", {"learner": LearnerConfig(lora_rank=4)}).learner == LearnerConfig(
        lora_rank=4, max_grad_norm=None
    )
    assert configured("vllm", {}).learner.max_grad_norm == 1.0


def test_an_explicit_norm_is_refused_however_it_is_given():
    with pytest.raises(ValidationError, match=r"max_grad_norm=1, .*no field"):
        configured("skyrl", {"learner": LearnerConfig(max_grad_norm=1.0)})


def test_texts_that_end_a_turn_are_accepted():
    assert configured("skyrl", {"sampling": {"stop": ("</tool_call>",)}}).sampling.stop == ("</tool_call>",)


@pytest.mark.parametrize("case", UNFIT)
def test_what_the_engine_lacks_is_refused_with_the_alternative(case):
    changed, lacking, instead = UNFIT[case]
    with pytest.raises(ValidationError) as refusal:
        configured("skyrl", changed)
    assert lacking in str(refusal.value)
    assert instead in str(refusal.value)


@pytest.mark.parametrize("case", [case for case in UNFIT if case != "processes"])
def test_the_same_settings_are_accepted_with_another_engine(case):
    assert configured("vllm", UNFIT[case][0]).engine == "vllm"


def test_all_that_is_lacking_is_named_at_once():
    with pytest.raises(ValidationError) as refusal:
        configured("skyrl", {"algorithm": {"advantages": "gae"}, "sampling": {"temperature": 0.5, "constrain": "off"}})
    assert "engine skyrl does not support a value head" in str(refusal.value)
    assert "at a temperature other than 1" in str(refusal.value)


@pytest.mark.parametrize("backend", ["fsdp", "megatron", "hosted"])
def test_other_backends_sample_from_older_weights_than_they_train(backend):
    config = configured("skyrl", {"skyrl": {"backend": backend, **URL}, **ASYNC})
    assert config.training.max_staleness == 1
