"""Checks of model and adapter folders before loading: that they are complete and match the model in use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcprl.config import LearnerConfig
from mcprl.errors import BadValueError

_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8

# Entries of config.json that affect neither the tensors nor the computation.
_IRRELEVANT = frozenset(
    (
        *("_name_or_path", "bos_token_id", "dtype", "eos_token_id", "pad_token_id"),
        *("torch_dtype", "transformers_version", "use_cache"),
    )
)


def check_files(folder: Path) -> None:
    """Raise BadValueError if the folder's config.json or weights are missing, truncated or unreadable."""
    problem = _problem_of(folder)
    if problem is not None:
        raise BadValueError(
            f"{folder} does not contain a complete model: {problem}",
            fix="publish the folder only after save_pretrained has finished, and check that the disk is not full",
        )


# The renderer for each model_type in config.json that has its own renderer.
_FAMILIES = {"qwen3": "qwen3", "qwen3_moe": "qwen3"}
_CHATML = ("<|im_start|>", "<|im_end|>")


def renderer_of(folder: Path) -> str | None:
    """Return model.renderer for a model folder: its family's renderer, or chatml, or template. None if none fits."""
    try:
        kind = json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError):
        return None
    if kind in _FAMILIES:
        return _FAMILIES[kind]
    files = [folder / name for name in ("tokenizer.json", "tokenizer_config.json")]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
    if any(all(token in text for token in _CHATML) for text in texts):
        return "chatml"
    has_template = (folder / "chat_template.jinja").is_file() or any('"chat_template"' in text for text in texts)
    return "template" if has_template else None


def differing_settings(running: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe the differences between the settings of two models.

    Entries that only one of them has are ignored, because they depend on library versions.

    >>> differing_settings({"hidden_size": 64, "use_cache": True}, {"hidden_size": 32, "use_cache": False})
    ['hidden_size is 32 instead of 64']
    """
    shared = sorted((running.keys() & new.keys()) - _IRRELEVANT)
    return [f"{key} is {new[key]!r} instead of {running[key]!r}" for key in shared if new[key] != running[key]]


def adapter_settings(adapter: Path | None) -> list[str]:
    """Return the settings with which a sampler can load the adapter, even if the recipe trains something else."""
    if adapter is None:
        return []
    return ["learner.tuning=lora", f"learner.lora_rank={_adapter_config(adapter)['r']}", "model.adapter=null"]


def check_base_model(adapter: Path | None, model: str) -> None:
    """Raise BadValueError if the adapter was trained for a model other than `model`, as far as this can be checked.

    If the adapter names a folder that does not exist here, it is accepted: the machine that trained it may have kept
    the same model at another path.
    """
    base = None if adapter is None else _adapter_config(adapter).get("base_model_name_or_path")
    if base is None or base == model:
        return
    files = [Path(location) / "config.json" for location in (base, model)]
    if all(file.is_file() for file in files):
        differences = differing_settings(*(json.loads(file.read_bytes()) for file in files))
    else:
        differences = (
            [] if Path(base).is_absolute() or Path(model).is_absolute() else ["their Hugging Face names differ"]
        )
    if differences:
        raise BadValueError(
            f"the adapter {adapter} was trained on {base}, but model.path is {model}: {'; '.join(differences[:3])}",
            fix="use the config.yaml of the adapter's run as the recipe, or set model.path to the adapter's model",
        )


def check_adapter(adapter: Path, model: str, learner: LearnerConfig) -> None:
    """Raise BadValueError if training cannot start from the adapter: its model, rank or scale differs."""
    check_base_model(adapter, model)
    config = _adapter_config(adapter)
    saved = {"learner.lora_rank": config["r"], "learner.lora_alpha": config.get("lora_alpha")}
    own = {"learner.lora_rank": learner.lora_rank, "learner.lora_alpha": learner.lora_alpha}
    if saved != own:
        raise BadValueError(
            f"model.adapter {adapter} was trained with {saved}, but the recipe has {own}",
            fix=" and ".join(f"set {name} to {value}" for name, value in saved.items() if own[name] != value),
        )


def _adapter_config(adapter: Path) -> dict[str, Any]:
    path = adapter / "adapter_config.json"
    fix = "use the folder of a LoRA adapter, such as outputs/hello-cpu/adapter"
    try:
        config = json.loads(path.read_bytes())
        config["r"]
    except OSError as error:
        raise BadValueError(f"adapter {adapter}: {path.name} cannot be read: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadValueError(f"adapter {adapter}: {path.name} does not contain an adapter rank", fix=fix) from error
    return config


def _problem_of(folder: Path) -> str | None:
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    index = folder / _INDEX
    shards: dict[str, set[str]] = {}
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError):
            return f"{_INDEX} cannot be read"
        for tensor, file in weight_map.items():
            shards.setdefault(file, set()).add(tensor)
    else:
        shards = {file.name: set() for file in folder.glob("*.safetensors")}
    if not shards:
        return "it has no *.safetensors file"
    for name, tensors in sorted(shards.items()):
        found = _tensors_in(folder / name)
        if found is None:
            return f"{name} is missing, truncated or not a safetensors file"
        if not found or not tensors <= found:
            return f"{name} is missing {min((f'at least tensor {t}' for t in tensors - found), default='all tensors')}"
    return None


def _tensors_in(file: Path) -> set[str] | None:
    """Return the names of the tensors in a safetensors file, or None if the file is incomplete.

    The file has 8 bytes with the length of the header, the header as JSON, and exactly the bytes that the header
    describes.
    """
    try:
        with file.open("rb") as opened:
            header_bytes = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            if header_bytes > file.stat().st_size:
                return None
            header: dict[str, dict[str, Any]] = json.loads(opened.read(header_bytes))
    except (OSError, ValueError):
        return None
    header.pop("__metadata__", None)
    data_bytes = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    whole = file.stat().st_size == _LENGTH_BYTES + header_bytes + data_bytes
    return set(header) if whole else None
