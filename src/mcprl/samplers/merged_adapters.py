"""A LoRA adapter added to the weights that it was trained on: W + scale · B A, in float32.

A layer that computes an adapter apart multiplies by B and A for every token. Where that costs more than it should, as
in vLLM on a CPU, adding them up once a version is the faster way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

__all__ = ["MergedAdapter"]

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
# Entries of an adapter_config.json that make W + scale · B A not the whole truth.
_FURTHER = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias")


class MergedAdapter:
    """The adapter in a folder that PEFT wrote.

    adapter = MergedAdapter(Path("outputs/hello-cpu/weights/v3"))
    model.load_weights(adapter.added_to(base_weights))
    adapter.objections    # nothing, once all of it was added
    """

    def __init__(self, folder: Path) -> None:
        settings: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
        rank = settings["r"]
        self._scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        self._pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._objections = [f"its setting {name} is not understood" for name in _FURTHER if settings.get(name)]
        for key, down in tensors.items():
            layer = key.removeprefix(_PREFIX).removesuffix(_A)
            up = tensors.get(key.removesuffix(_A) + _B)
            if key.endswith(_A) and up is not None:
                self._pairs[f"{layer}.weight"] = (down, up)
            elif not key.endswith(_B):
                self._objections.append(f"its tensor {key} is not understood")

    @property
    def objections(self) -> list[str]:
        """What of the adapter was not added to any weight, in words."""
        return [*self._objections, *(f"there is no {name} to add it to" for name in sorted(self._pairs))]

    def added_to(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights, each layer that the adapter has with it added."""
        for name, weight in weights:
            pair = self._pairs.pop(name, None)
            if pair is None:
                yield name, weight
            else:
                down, up = (part.to(weight.device, torch.float32) for part in pair)
                yield name, (weight.float() + self._scale * (up @ down)).to(weight.dtype)
