"""The tiny model: random weights, two layers, the real Qwen3 vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_trajectories import TINY_QWEN3, make_config
from transformers import AutoModelForCausalLM

from mcprl.chat.grammars import Grammars
from mcprl.learners import TorchLearner


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """The base model, which no test may change."""
    if not (TINY_QWEN3 / "config.json").exists():
        pytest.skip("the tiny model is missing: run scripts/setup")
    return AutoModelForCausalLM.from_pretrained(TINY_QWEN3, dtype="float32").eval()


@pytest.fixture
def make_learner(tiny_model: Any, tmp_path: Path):
    """Make a learner; each gets a folder of weights of its own."""
    made: list[TorchLearner] = []

    def make(*, grammars: Grammars | None = None, **settings: Any) -> TorchLearner:
        folder = tmp_path / f"weights-{len(made)}"
        made.append(TorchLearner(make_config(**settings), folder=folder, grammars=grammars))
        return made[-1]

    return make
