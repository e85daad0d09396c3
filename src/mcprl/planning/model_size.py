"""How large a model is, from its config.json or from its name, without loading it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mcprl.config import RunConfig
from mcprl.errors import BadValueError

__all__ = ["ModelSize", "model_size"]

_NAMED_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE)
_SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Parameters of a model, and of an adapter of rank 1 on all its linear layers; None where they are not known.

    ModelSize(parameters=134_515_008, rank_parameters=305_280, source="config.json")
    """

    parameters: float | None
    rank_parameters: float | None
    source: str

    def weights_bytes(self, config: RunConfig) -> float | None:
        """What a publication moves: an adapter in float32, or all weights in the model's dtype."""
        if config.learner.tuning == "full":
            width = 4 if config.model.dtype == "float32" else 2
            return None if self.parameters is None else self.parameters * width
        return None if self.rank_parameters is None else self.rank_parameters * config.learner.lora_rank * 4


def model_size(path: str, given: float | None = None) -> ModelSize:
    """The size of a model: given, else counted by its config.json, else read in its name (Qwen3-0.6B)."""
    shape = _read_shape(Path(path) / "config.json")
    if shape is not None:
        counted, rank_parameters = _count(shape)
        if given is None:
            return ModelSize(parameters=counted, rank_parameters=rank_parameters, source="config.json")
        return ModelSize(parameters=given, rank_parameters=rank_parameters, source="given")
    if given is not None:
        return ModelSize(parameters=given, rank_parameters=None, source="given")
    named = _NAMED_SIZE.search(Path(path).name)
    if named is None:
        return ModelSize(parameters=None, rank_parameters=None, source="not known")
    scale = 1e9 if named[2].lower() == "b" else 1e6
    return ModelSize(parameters=float(named[1]) * scale, rank_parameters=None, source="its name")


def _read_shape(path: Path) -> dict[str, Any] | None:
    try:
        read: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadValueError(f"cannot read {path}: {error}", fix="fetch the model again") from error
    shape = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    return shape if all(isinstance(shape.get(name), int) for name in _SHAPE) else None


def _count(shape: dict[str, Any]) -> tuple[float, float]:
    """Parameters of a decoder with gated layers, as Llama, Qwen and SmolLM have, norms and biases left out."""
    hidden, inner, layers, heads, vocabulary = (int(shape[name]) for name in _SHAPE)
    head = int(shape.get("head_dim") or hidden // heads)
    queries, keys = heads * head, int(shape.get("num_key_value_heads") or heads) * head
    # (inputs, outputs) of q, k, v, o, gate, up, down
    linear = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    linear += [(hidden, inner), (hidden, inner), (inner, hidden)]
    embeddings = vocabulary * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return embeddings + layers * sum(a * b for a, b in linear), layers * sum(a + b for a, b in linear)
