"""What mcprl adds to vLLM's worker: whole weights from a folder, or an adapter added to its own.

It runs in vLLM's process, see `/collective_rpc`. vLLM packs weights for its kernels when it loads them, and its own
reload does not do all of that again: the copy that a tied output layer packs of the embeddings stays the old one, and
tensors that a folder lacks are only warned of.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_processing, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.transformers_utils.config import get_config  # pyright: ignore[reportUnknownVariableType]

from mcprl.samplers.merged_adapters import MergedAdapter
from mcprl.samplers.model_folder import differing_settings

__all__ = ["WholeWeights"]


class WholeWeights:
    """Mixed into vLLM's worker class. What a method objects to is its answer; an exception is a fault of the server."""

    vllm_config: Any
    model_runner: Any

    def compare_model_folder(self, folder: str) -> dict[str, list[str]]:
        """Where the model in `folder` is another than the one that the server was started with."""
        started = get_config(self.vllm_config.model_config.model, trust_remote_code=False)
        new = get_config(folder, trust_remote_code=False)
        return {"objections": differing_settings(started.to_dict(), new.to_dict())}

    def load_model_folder(self, folder: str | None, adapter: str | None) -> dict[str, list[str]]:
        """Load the weights in `folder`, or those that the server was started with, in place of the present ones.

        The adapter in the folder `adapter`, if there is one, is added to them. Where something is missing, the weights
        are a mixture afterwards and must not be used.
        """
        addition = None if adapter is None else MergedAdapter(Path(adapter))
        model = self.model_runner.get_model()
        source = copy.copy(self.vllm_config.model_config)
        source.model = source.model if folder is None else folder
        wanted = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            loader: Any = get_model_loader(self.vllm_config.load_config)
            weights = loader.get_all_weights(source, model)
            loaded = set(model.load_weights(weights if addition is None else addition.added_to(weights)))
            objections = [f"it lacks {name}" for name in sorted(wanted - loaded | _partly_loaded(model))]
            objections += [] if addition is None else addition.objections
            if not objections:
                finalize_layerwise_processing(model, source)
                _pack_tied_heads(model)
        return {"objections": objections}


def _partly_loaded(model: Any) -> set[str]:
    """Layers made of several tensors, such as q, k and v, that got only some of them. Vocabularies are padded."""
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
