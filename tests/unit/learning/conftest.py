"""The tiny model: random weights, two layers, the real Qwen3 vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_trajectories import TINY_QWEN3, make_config
from torch.nn.attention import flex_attention as flex_module
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcprl.grammar.masks import Grammars
from mcprl.learning import TorchLearner, attention


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """The base model, which no test may change."""
    if not (TINY_QWEN3 / "config.json").exists():
        pytest.skip("the tiny model is missing: run scripts/setup")
    return AutoModelForCausalLM.from_pretrained(TINY_QWEN3, dtype="float32").eval()


@pytest.fixture(scope="session")
def tokenizer(tiny_qwen3: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_qwen3)


@pytest.fixture
def make_learner(tiny_model: Any, tmp_path: Path):
    """Make a learner; each gets a folder of weights of its own."""
    made: list[TorchLearner] = []

    def make(*, grammars: Grammars | None = None, **settings: Any) -> TorchLearner:
        folder = tmp_path / f"weights-{len(made)}"
        made.append(TorchLearner(make_config(**settings), folder=folder, grammars=grammars))
        return made[-1]

    return make


@pytest.fixture
def flex_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The GPU's way to attend, on a CPU: all of it but the kernels. The graphs that torch makes for it."""
    made: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        made.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(flex_module.flex_attention, dynamic=True, backend=keep)
    monkeypatch.setattr(attention, "_compiled_flex", lambda: compiled)
    # torch has no kernel for the gradient on a CPU, and refuses to ask for one; the graph itself can be run.
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    return made
