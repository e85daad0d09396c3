"""The model that is trained: an adapter on a frozen base, an adapter on a base of 4 bits, or all weights."""

from __future__ import annotations

import copy
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging as transformers_logging

from mcprl.config import ModelConfig, RunConfig
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.learners.policy import Policy
from mcprl.learners.tree_attention import TREE_ATTENTION, require_sharable
from mcprl.records import Weights
from mcprl.seeds import derive_seed

__all__ = ["load_policy", "save_weights"]


def load_policy(config: RunConfig, device: torch.device) -> Policy:
    """The policy in its first version: an adapter starts as the identity, so it is the base model's exactly."""
    transformers_logging.disable_progress_bar()  # it would tear the run's own display
    base = _load_base(config, device)
    _require_plain_head(base, config.model.path)
    _silence_dropout(base)
    learner, algorithm = config.learner, config.algorithm
    if learner.checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    autocast = None
    if learner.tuning == "full":
        model: Any = base
        # Small steps are lost in 16 bits, so the weights are kept in 32 and rounded as they are used.
        autocast = torch.bfloat16 if config.model.dtype == "bfloat16" else None
    else:
        torch.manual_seed(derive_seed(config.seed, "adapter"))  # pyright: ignore[reportUnknownMemberType]
        adapter = LoraConfig(
            r=learner.lora_rank,
            lora_alpha=learner.lora_alpha,
            lora_dropout=0.0,  # dropout would make the learner's logprobs differ from the sampler's
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(base, adapter)
        # A set, written in the order of its hashes: two equal runs would leave two files.
        resolved = model.peft_config["default"]
        resolved.target_modules = sorted(resolved.target_modules)
    policy = Policy(model, critic=algorithm.has_critic, entropy_gradient=algorithm.entropy > 0, autocast=autocast).to(
        device
    )
    # transformers checkpoints in training mode only; nothing else differs between the two, without dropout.
    return policy.train(learner.checkpointing)


def _load_base(config: RunConfig, device: torch.device) -> Any:
    model, learner = config.model, config.learner
    more: dict[str, Any] = {"dtype": torch.float32 if learner.tuning == "full" else getattr(torch, model.dtype)}
    if learner.share_prefix:
        require_sharable(cast("Any", AutoConfig).from_pretrained(model.path), model.path)
        more["attn_implementation"] = TREE_ATTENTION
    if learner.tuning == "lora_4bit":
        more |= _four_bits()
    base: Any = AutoModelForCausalLM.from_pretrained(model.path, **more)  # pyright: ignore[reportUnknownMemberType]
    if learner.tuning == "lora_4bit":
        return cast("Any", peft).prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    return base.to(device)


def _four_bits() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise BadValueError(
            "learner.tuning is lora_4bit, and there is no CUDA device: 4-bit weights are computed with on a GPU only",
            fix="set learner.tuning to lora",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            "learner.tuning is lora_4bit, which needs bitsandbytes", fix="install mcprl[four-bit], or use tuning lora"
        )
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": quantised, "device_map": {"": 0}}


def _require_plain_head(base: Any, path: str) -> None:
    """Refuse models that do more to their logits than one product: scores would be those of another distribution."""
    config, head = base.config.get_text_config(), base.get_output_embeddings()
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_scale")
    bent = [name for name in names if getattr(config, name, None) not in (None, 1.0)]
    if getattr(head, "bias", None) is not None:
        bent.append("a bias of the head")
    if bent:
        raise BadValueError(
            f"{path} changes its logits behind the head ({', '.join(bent)}), which the learner does not reproduce",
            fix="train a model without it",
        )


def _silence_dropout(base: Any) -> None:
    for module in cast("nn.Module", base).modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            cast("Any", module).attention_dropout = 0.0


def save_weights(
    policy: Policy, version: int, folder: Path, *, model: ModelConfig, state: Mapping[str, Tensor] | None = None
) -> Weights:
    """Write a version of the weights so that its folder is either absent or whole; one that is there is replaced.

    An adapter is written in float32, whole weights in the dtype that samplers compute in. `state` are its tensors by
    name, if the policy holds only a share of each.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    trained: Any = policy.model
    if isinstance(trained, PeftModel):
        trained.save_pretrained(str(partial), selected_adapters=["default"], state_dict=state)  # pyright: ignore
        _put_in_place(partial, folder)
        return Weights(version=version, adapter=folder)
    tensors = _in_dtype(trained.state_dict(keep_vars=True) if state is None else state, getattr(torch, model.dtype))
    trained.save_pretrained(partial, state_dict=tensors)
    settings = copy.deepcopy(trained.config)
    settings.dtype = model.dtype  # of the files, not of the weights that are trained
    settings.save_pretrained(partial)
    # A folder that samplers and users can load by itself.
    AutoTokenizer.from_pretrained(model.path).save_pretrained(partial)  # pyright: ignore[reportUnknownMemberType]
    _put_in_place(partial, folder)
    return Weights(version=version, model=folder)


def _in_dtype(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors rounded, in the CPU's memory. Tied weights, one tensor under two names, stay one tensor."""
    different = {id(tensor): tensor.detach() for tensor in state.values()}
    made = {key: tensor.to("cpu", dtype if tensor.is_floating_point() else None) for key, tensor in different.items()}
    return {name: made[id(tensor)] for name, tensor in state.items()}


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.replaced")
    if replaced.exists():
        shutil.rmtree(replaced)
    if folder.exists():  # of a process that went further than the state it is resumed from
        folder.rename(replaced)
    partial.rename(folder)
    if replaced.exists():
        shutil.rmtree(replaced)
