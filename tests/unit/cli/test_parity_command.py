"""`mcprl parity` from its arguments to what it prints: a real server, sampler and learner, with and without a fault."""
# R8, R25

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.samplers.transformers import TransformersSampler

pytestmark = pytest.mark.process

EXAMPLES = (("Luz", "Bogota, America/Bogota"), ("Omar", "Dubai, Asia/Dubai"))


def example(name: str, place: str) -> list[dict]:
    """A question, the call that it takes, and the answer: an untrained model hardly calls without having seen one."""
    return [
        {"role": "user", "content": f"Where is {name}?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "find_person", "arguments": {"name": name}}}],
        },
        {"role": "tool", "content": f"{name}: {place}"},
        {"role": "assistant", "content": place},
    ]


@pytest.fixture
def recipe(tmp_path: Path, smollm2: Path) -> Path:
    """SmolLM2 without vLLM, our directory server over its standard streams, and two tasks."""
    tasks = [{"id": f"zone-of-{name}", "prompt": f"Where is {name}?", "answer": "Lima"} for name in ("ana", "hiro")]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(task | {"tools": ["find_person"]}) for task in tasks))
    preamble = [message for name, place in EXAMPLES for message in example(name, place)]
    (tmp_path / "preamble.json").write_text(json.dumps(preamble))
    entry = {"command": "mcprl", "args": ["serve", "directory"]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"directory": entry}}))
    settings = {
        "name": "small",
        "engine": "transformers",
        "model": {"path": str(smollm2), "renderer": "chatml", "dtype": "float32", "context_tokens": 1024},
        "tasks": {"train": "tasks.jsonl", "preamble": "preamble.json"},
        "servers": {"file": "servers.json"},
        "sampling": {
            "temperature": 0.7,
            "max_tokens": 40,
            "stop": ["</tool_call>"],
            "constrain": "act",
        },
        # A weight of 0 and a judge that nobody answers for: what episodes are worth is not asked.
        "rewards": {"answer": 0.0, "judge": {"url": "http://127.0.0.1:9/v1", "model": "none"}},
        "learner": {"max_parity_error": 1e-4},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "recipe.yaml"


def parity(recipe: Path, *arguments: str):
    return CliRunner().invoke(app, ["parity", str(recipe), *arguments], env={"COLUMNS": "160"})


def test_sampler_and_learner_agree_under_a_grammar_and_the_report_is_one_json_object(recipe):
    result = parity(recipe, "--prompts", "2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verdict"]["severity"] == "ok"
    assert (report["prompts"], report["alignment"]) == (2, 1.0)
    assert report["turns"] > 2
    assert report["forced_tokens"] > 0
    assert report["logprob_max_abs_error"] <= 1e-3
    assert all(token["text"] for token in report["worst"])
    assert "scoring the sampled tokens again" not in result.stderr


@torch.inference_mode()
def logprobs_at_1(model, request, completion) -> tuple[float, ...]:
    """What an engine reports that gives logprobs of the model and not of what it sampled from."""
    ids = [*request.prompt_ids, *completion.token_ids]
    logprob_TV = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), dim=-1)
    places = range(len(request.prompt_ids), len(ids))
    return tuple(float(logprob_TV[place - 1, ids[place]]) for place in places)


def test_a_sampler_that_ignores_the_temperature_is_named_and_the_command_exits_with_1(recipe, tiny_qwen3, monkeypatch):
    sample = TransformersSampler.sample

    async def leaves_temperature_out(self, request):
        completion = await sample(self, request)
        return dataclasses.replace(completion, logprobs=logprobs_at_1(self._model, request, completion))

    monkeypatch.setattr(TransformersSampler, "sample", leaves_temperature_out)
    settings = (f"model.path={tiny_qwen3}", "sampling.constrain='off'", "sampling.max_tokens=8")
    result = parity(recipe, "--prompts", "2", *(word for setting in settings for word in ("--set", setting)))
    assert result.exit_code == 1, result.output
    assert "scoring the sampled tokens again at temperature 1" in result.stderr
    assert "the sampler's logprobs ignore the temperature" in result.stdout
    assert "mean |Δlogprob|" in result.stdout
