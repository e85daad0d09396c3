"""Checks that a folder has a complete model, and the same one as the model in use, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcprl.errors import BadValueError

__all__ = ["check_files", "differing_settings", "renderer_of"]

_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8

# Entries of a config.json that change neither the tensors nor the computation.
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
            f"{folder} does not have a complete model: {problem}",
            fix="publish a folder that save_pretrained finished writing; check for a full disk",
        )


# Model types of config.json whose family has a renderer of its own.
_FAMILIES = {"qwen3": "qwen3", "qwen3_moe": "qwen3"}
_CHATML = ("<|im_start|>", "<|im_end|>")


def renderer_of(folder: Path) -> str | None:
    """The model.renderer that fits the model in a folder: its family, chatml or template; None if none does."""
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
    """The differences between two models' settings. Entries that only one has depend on library versions and pass.

    >>> differing_settings({"hidden_size": 64, "use_cache": True}, {"hidden_size": 32, "use_cache": False})
    ['hidden_size is 32 instead of 64']
    """
    shared = sorted((running.keys() & new.keys()) - _IRRELEVANT)
    return [f"{key} is {new[key]!r} instead of {running[key]!r}" for key in shared if new[key] != running[key]]


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
        return "it has no *.safetensors"
    for name, tensors in sorted(shards.items()):
        found = _tensors_in(folder / name)
        if found is None:
            return f"{name} is missing, truncated or not a safetensors file"
        if not found or not tensors <= found:
            return f"{name} lacks tensors, for example {min(tensors - found, default='all')}"
    return None


def _tensors_in(file: Path) -> set[str] | None:
    """The names in the file's header: 8 bytes of length, JSON, then exactly the bytes that it describes."""
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
