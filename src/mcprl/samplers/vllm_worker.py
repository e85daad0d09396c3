"""An extension of vLLM's worker that loads full weights from a folder, or merges an adapter into the base weights.

It runs in vLLM's process and is called through `/collective_rpc`. vLLM's own reload is not enough. vLLM packs weights
for its kernels when it loads them, but on a reload a tied output layer keeps its old packed copy of the embeddings. And
if tensors are missing from the folder, vLLM only warns.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_processing, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.transformers_utils.config import get_config  # pyright: ignore[reportUnknownVariableType]

from mcprl.samplers.model_folder import differing_settings

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
# With any of these entries in adapter_config.json, merging is more than W + scale · B A.
_FURTHER = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias")


class MergedAdapter:
    """Merges the LoRA adapter in a folder that PEFT wrote into base weights.

    adapter = MergedAdapter(Path("outputs/hello-cpu/weights/v3"))
    model.load_weights(adapter.added_to(base_weights))
    adapter.objections    # empty if the whole adapter was merged
    """

    def __init__(self, folder: Path) -> None:
        settings: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
        rank = settings["r"]
        self._scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        self._pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._objections = [f"its setting {name} is not supported" for name in _FURTHER if settings.get(name)]
        for key, down in tensors.items():
            layer = key.removeprefix(_PREFIX).removesuffix(_A)
            up = tensors.get(key.removesuffix(_A) + _B)
            if key.endswith(_A) and up is not None:
                self._pairs[f"{layer}.weight"] = (down, up)
            elif not key.endswith(_B):
                self._objections.append(f"its tensor {key} is not supported")

    @property
    def objections(self) -> list[str]:
        """Return why parts of the adapter were not added to any weight; empty if all were added."""
        return [*self._objections, *(f"the model has no weight {name}" for name in sorted(self._pairs))]

    def added_to(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights, with the adapter added to the layers that it changes."""
        for name, weight in weights:
            pair = self._pairs.pop(name, None)
            if pair is None:
                yield name, weight
            else:
                down, up = (part.to(weight.device, torch.float32) for part in pair)
                yield name, (weight.float() + self._scale * (up @ down)).to(weight.dtype)


class WholeWeights:
    """Mixin for vLLM's worker class.

    The methods return `objections`, which is empty if the weights can be used. An exception means that vLLM failed.
    """

    vllm_config: Any
    model_runner: Any

    def compare_model_folder(self, folder: str) -> dict[str, list[str]]:
        """Return as objections how the model in `folder` differs from the one that the server was started with."""
        started = get_config(self.vllm_config.model_config.model, trust_remote_code=False)
        new = get_config(folder, trust_remote_code=False)
        return {"objections": differing_settings(started.to_dict(), new.to_dict())}

    def load_model_folder(self, folder: str | None, adapter: str | None) -> dict[str, list[str]]:
        """Replace the weights with those in `folder`, or with those that the server was started with.

        The adapter in the folder `adapter`, if given, is merged into them. If there are objections, the result is a mix
        of old and new weights and must not be used.
        """
        addition = None if adapter is None else MergedAdapter(Path(adapter))
        model = self.model_runner.get_model()
        source = copy.copy(self.vllm_config.model_config)
        source.model = source.model if folder is None else folder
        wanted = parameter_names(model)
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            loader: Any = get_model_loader(self.vllm_config.load_config)
            weights = loader.get_all_weights(source, model)
            loaded = set(model.load_weights(weights if addition is None else addition.added_to(weights)))
            more = [] if addition is None else addition.objections
            return {"objections": finish_loading(model, source, wanted, loaded, *more)}


def parameter_names(model: Any) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def finish_loading(model: Any, config: Any, wanted: set[str], loaded: set[str], *more: str) -> list[str]:
    """Pack new weights for the kernels, unless there are objections. Return these: missing weights, then `more`."""
    objections = [f"{name} is missing" for name in sorted(wanted - loaded | _partly_loaded(model))] + list(more)
    if not objections:
        finalize_layerwise_processing(model, config)
        _pack_tied_heads(model)
    return objections


def _partly_loaded(model: Any) -> set[str]:
    """Return the layers that combine several tensors, such as q, k and v, but received only some of them.

    Embeddings are not checked, because a vocabulary may be padded.
    """
    partly: set[str] = set()
    for name, layer in model.named_modules():
        progress: Any = get_layerwise_info(layer)
        waits = progress.can_load() and 0 < progress.load_numel < progress.load_numel_total
        if waits and not isinstance(layer, VocabParallelEmbedding):
            partly.add(name)
    return partly


def _pack_tied_heads(model: Any) -> None:
    tables = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    for head in tables:
        tied = any(head is not table and head.weight is table.weight for table in tables)
        if isinstance(head, ParallelLMHead) and tied:
            head.quant_method.process_weights_after_loading(head)
