"""Loads and saves the trained model (LoRA, 4-bit LoRA, or all weights) and the reference policy."""

from __future__ import annotations

import copy
import importlib.util
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.utils import logging as transformers_logging

from mcprl.config import KlConfig, ModelConfig, RunConfig
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.learning.attention import TREE_ATTENTION, require_sharable
from mcprl.learning.packing import Policy
from mcprl.learning.state import State, own_part
from mcprl.records import Weights
from mcprl.seeds import derive_seed

_LIVE, _KEPT = "default", "reference"


class Reference:
    """The reference policy: fixed, a moving average of the policy, or a copy made every `kl.lag` updates.

    With LoRA it is the base model or a second adapter, otherwise a copy of the whole policy. A fixed reference is the
    initial policy. With `starts_apart`, the initial policy is not the base model, because training starts from an
    adapter.
    """

    def __init__(self, policy: Policy, kl: KlConfig, *, starts_apart: bool = False) -> None:
        self.policy = policy
        self._kl = kl
        self._updates = 0
        self._is_bare = kl.reference == "base" and not starts_apart
        self.copy: Policy | None = None
        if not isinstance(policy.model, PeftModel):
            self.copy = copy.deepcopy(policy).requires_grad_(False).eval()
        elif not self._is_bare:
            model: Any = policy.model
            model.add_adapter(_KEPT, model.peft_config[_LIVE])
            model.set_adapter(_LIVE)
            self.become_policy()

    @contextmanager
    def in_place(self) -> Generator[Policy]:
        """Yield the reference as a policy that can score packs."""
        if self.copy is not None:
            yield self.copy
            return
        model: Any = self.policy.model
        if self._is_bare:
            with model.disable_adapter():
                yield self.policy
            return
        model.set_adapter(_KEPT, inference_mode=True)
        try:
            yield self.policy
        finally:
            model.set_adapter(_LIVE)

    def follow(self) -> dict[str, float]:
        """Move the reference after an update, as configured. Returns metrics."""
        self._updates += 1
        if self._kl.reference == "ema":
            self._average()
        elif self._kl.reference == "sync" and self._updates % self._kl.sync_every == 0:
            return {"reference_synced": 1.0, "reference_tensors_differing": float(self.become_policy())}
        return {"reference_synced": 0.0}

    @torch.no_grad()
    def become_policy(self) -> int:
        """Copy every tensor of the policy to the reference. Return how many tensors then differ, which must be 0."""
        # Another process has the weights of a model on the meta device.
        pairs = [(live, kept) for live, kept in self._pairs().values() if not live.is_meta]
        for live, kept in pairs:
            kept.copy_(live)
        return sum(not bool((live.to(kept.device) == kept).all()) for live, kept in pairs)

    def state(self) -> State:
        """Return the tensors in use, not copies. The state is empty if the reference is the base model."""
        if self._kl.reference == "base":
            return State(tensors={}, facts={})
        tensors = {f"reference/{name}": own_part(kept) for name, (_, kept) in self._pairs().items()}
        return State(tensors=tensors, facts={"reference_updates": self._updates})

    @torch.no_grad()
    def become(self, state: State) -> None:
        if self._kl.reference == "base":
            return
        self._updates = state.facts["reference_updates"]
        for name, own in self.state().tensors.items():
            own.copy_(state.tensors[name])

    @torch.no_grad()
    def _average(self) -> None:
        for live, kept in self._pairs().values():
            kept.lerp_(live.to(kept.device), 1.0 - self._kl.ema_decay)

    def _pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return each trained tensor of the policy with its counterpart in the reference.

        Quantised weights are frozen and shared by both, so they are not included.
        """
        live = dict(self.policy.model.named_parameters())
        if self.copy is not None:
            kept = dict(self.copy.model.named_parameters())
            return {name: (tensor, kept[name]) for name, tensor in live.items()}
        mark = f".{_LIVE}."
        return {name: (tensor, live[name.replace(mark, f".{_KEPT}.")]) for name, tensor in live.items() if mark in name}


def load_policy(config: RunConfig, device: torch.device, *, base: Any = None) -> Policy:
    """Load the policy at version 0: the base model with a new adapter, which changes nothing, or with model.adapter.

    If `base` is given, it is used as the base model. On the device "meta", the policy has shapes but no weights.
    """
    transformers_logging.disable_progress_bar()  # a progress bar would garble the run's display
    base = _load_base(config, device) if base is None else base
    _require_plain_head(base, config.model.path)
    _silence_dropout(base)
    learner, algorithm = config.learner, config.algorithm
    if learner.checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # Small steps are lost in 16 bits, so what is trained is stored in float32 and rounded only for computing.
    autocast = torch.bfloat16 if config.model.dtype == "bfloat16" else None
    if learner.tuning == "full":
        model: Any = base
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
        # This is a set, whose order depends on hashes, so two equal runs would write different files.
        resolved = model.peft_config["default"]
        resolved.target_modules = sorted(resolved.target_modules)
        for layer in model.modules():
            if isinstance(layer, BaseTunerLayer):
                setattr(layer, "cast_input_dtype_enabled", False)  # noqa: B010 - not typed; autocast casts the adapter
        if config.model.adapter is not None:
            _take_over(model, config.model.adapter)
    policy = Policy(model, critic=algorithm.has_critic, entropy_gradient=algorithm.entropy > 0, autocast=autocast).to(
        device
    )
    # transformers checkpoints activations in training mode only. Without dropout, training mode changes nothing else.
    return policy.train(learner.checkpointing)


def _take_over(model: Any, adapter: Path) -> None:
    """Copy the tensors of a saved adapter into a new one. Raises BadValueError if names or shapes differ."""
    saved: dict[str, Tensor] = load_file(adapter / "adapter_model.safetensors")
    own: dict[str, Tensor] = cast("Any", peft).get_peft_model_state_dict(model)
    unlike = [name for name in own.keys() | saved.keys() if _shape(own.get(name)) != _shape(saved.get(name))]
    if unlike:
        raise BadValueError(
            f"the tensors of adapter {adapter} differ from those of the adapter to train, for example {min(unlike)}",
            fix="set model.path and learner.lora_rank to the values with which the adapter was trained",
        )
    cast("Any", peft).set_peft_model_state_dict(model, saved)


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _load_base(config: RunConfig, device: torch.device) -> Any:
    model, learner = config.model, config.learner
    more: dict[str, Any] = {"dtype": torch.float32 if learner.tuning == "full" else getattr(torch, model.dtype)}
    if learner.share_prefix:
        require_sharable(cast("Any", AutoConfig).from_pretrained(model.path), model.path)
        more["attn_implementation"] = TREE_ATTENTION
    if learner.tuning == "lora_4bit":
        more |= _four_bits()
    if device.type == "meta":
        more["device_map"] = "meta"
    base: Any = AutoModelForCausalLM.from_pretrained(model.path, **more)  # pyright: ignore[reportUnknownMemberType]
    # A 4-bit base is on its device already. PEFT's prepare_model_for_kbit_training is not used, because it casts norms,
    # embeddings and head to float32; get_peft_model freezes the base anyway.
    return base if learner.tuning == "lora_4bit" else base.to(device)


def _four_bits() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise BadValueError(
            "learner.tuning is lora_4bit, but there is no CUDA device: 4-bit weights need a GPU",
            fix="set learner.tuning to lora",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            "learner.tuning is lora_4bit, which needs bitsandbytes",
            fix="install mcprl[four-bit], or set learner.tuning to lora",
        )
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": quantised, "device_map": {"": 0}}


def _require_plain_head(base: Any, path: str) -> None:
    """Raise BadValueError if the model transforms its logits after the head, because `Policy` does not do that."""
    config, head = base.config.get_text_config(), base.get_output_embeddings()
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_scale")
    bent = [name for name in names if getattr(config, name, None) not in (None, 1.0)]
    if getattr(head, "bias", None) is not None:
        bent.append("a bias on the head")
    if bent:
        raise BadValueError(
            f"{path} changes its logits after the head ({', '.join(bent)}), which the learner does not reproduce",
            fix="train a model that does not change its logits after the head",
        )


def require_plain_names(model: Any, path: str) -> None:
    """Raise BadValueError if the tensors in the model's files differ from those in memory, as MoE experts do."""
    if get_model_conversion_mapping(model, add_legacy=False):
        raise BadValueError(
            f"{path} has different tensors in its files and in memory, and vLLM knows only those in the files",
            fix="set sampling.vllm.weight_transfer to files",
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
    """Write a version of the weights atomically: the folder is absent or complete. Replaces an existing folder.

    An adapter is written in float32, full weights in the samplers' dtype. If the policy holds only shards, `state` maps
    names to the whole tensors.
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
    settings.dtype = model.dtype  # refers to the files, not to the trained weights
    settings.save_pretrained(partial)
    # With the tokenizer, samplers and users can load the folder directly.
    AutoTokenizer.from_pretrained(model.path).save_pretrained(partial)  # pyright: ignore[reportUnknownMemberType]
    _put_in_place(partial, folder)
    return Weights(version=version, model=folder)


def merge_adapter(model: str, adapter: Path, folder: Path, *, dtype: str) -> None:
    """Write the model with the adapter merged into it, and its tokenizer. Adds in float32 and rounds once."""
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)  # pyright: ignore[reportUnknownMemberType]
    merged: Any = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()  # pyright: ignore
    merged.to(getattr(torch, dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]


def _in_dtype(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors rounded to `dtype`, on the CPU. Tied weights (one tensor with two names) stay one tensor."""
    different = {id(tensor): tensor.detach() for tensor in state.values()}
    made = {key: tensor.to("cpu", dtype if tensor.is_floating_point() else None) for key, tensor in different.items()}
    return {name: made[id(tensor)] for name, tensor in state.items()}


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.replaced")
    if replaced.exists():
        shutil.rmtree(replaced)
    if folder.exists():  # left from after the checkpoint that the run resumed from
        folder.rename(replaced)
    partial.rename(folder)
    if replaced.exists():
        shutil.rmtree(replaced)
