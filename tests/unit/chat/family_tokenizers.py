"""Tokenizers for families of models whose own cannot be had offline.

The vocabulary is Qwen's (its first merges, so that it loads fast); only the markers are the family's, special or not
as in the family's own tokenizer. Which tokens a plain text falls into is therefore Qwen's; which texts are single
tokens, and what those do to a chat, is the family's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_MERGES = 3_000

__all__ = ["FAMILIES", "TEMPLATE", "Markers", "write_tokenizer"]


@dataclass(frozen=True)
class Markers:
    """The added tokens of a family.

    Markers(eos="<|eot_id|>", special=("<|start_header_id|>", "<|eot_id|>"), plain=("<think>",))
    """

    eos: str
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()


_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>")
_RESPONSE = ("<tool_response>", "</tool_response>")
_ARGUMENT = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_QWEN = Markers("<|im_end|>", (*_CHATML, *_VISION), (*_CALL, *_RESPONSE, *_THINK))
_GLM_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM = Markers(
    "<|endoftext|>",
    (*_GLM_ROLES, "<|endoftext|>", "[MASK]", "[gMASK]", "<sop>", "<eop>", "/nothink"),
    (*_THINK, *_CALL, *_RESPONSE, *_ARGUMENT),
)
_NEMOTRON = Markers(
    "<|im_end|>",
    ("<s>", "</s>", "<|im_start|>", "<|im_end|>", *(f"<SPECIAL_{i}>" for i in range(20, 120))),
    (*_THINK, *_CALL, *_RESPONSE),
)
_DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{part}▁{edge}｜>" for part in ("calls", "call", "outputs", "output") for edge in ("begin", "end")
)
_DEEPSEEK = Markers(
    "<｜end▁of▁sentence｜>",
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
    ("<｜User｜>", "<｜Assistant｜>", *_THINK, *_DEEPSEEK_TOOLS, "<｜tool▁sep｜>"),
)
_DEEPSEEK_TASKS = tuple(f"<｜{task}｜>" for task in ("action", "query", "authority", "domain", "title", "read_url"))
_DEEPSEEK_V4 = Markers(
    _DEEPSEEK.eos,
    (*_DEEPSEEK.special, "<｜latest_reminder｜>"),
    ("<｜User｜>", "<｜Assistant｜>", *_THINK, "｜DSML｜", *_DEEPSEEK_TASKS),
)
_KIMI = Markers(
    "<|im_end|>",
    ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    tuple(f"<|tool_call{part}|>" for part in ("s_section_begin", "s_section_end", "_begin", "_end", "_argument_begin")),
)
_KIMI_25 = Markers(
    _KIMI.eos,
    (*_KIMI.special, "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
    (*_KIMI.plain, *_THINK),
)
_LAGUNA = Markers("〈|EOS|〉", ("〈|EOS|〉", "<assistant>", "</assistant>"), (*_THINK, *_CALL))
_MINIMAX = Markers(
    "[e~[", ("]~!b[", "]~b]", "]!d~[", "]!p~[", "[e~["), ("<minimax:tool_call>", "</minimax:tool_call>", *_THINK)
)
_LLAMA_TEXT = ("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>")
_LLAMA_TURN = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>")
_LLAMA = Markers(
    "<|eot_id|>",
    (*_LLAMA_TEXT, *_LLAMA_TURN, "<|python_tag|>", *(f"<|reserved_special_token_{i}|>" for i in range(240))),
)
_GEMMA_PARTS = ("turn", "channel", "tool", "tool_call", "tool_response", "image")
_GEMMA_EDGES = tuple(edge for part in _GEMMA_PARTS for edge in (f"<|{part}>", f"<{part}|>"))
_GEMMA = Markers(
    "<eos>",
    ("<pad>", "<eos>", "<bos>", "<|think|>", "<|image|>", '<|"|>', *_GEMMA_EDGES),
)
_HY_ROLES = ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant", "reasoning_mode")
_HY_TAGS = ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")
_HY = Markers(
    "<｜hy_eos:opensource｜>",
    tuple(f"<｜{role}:opensource｜>" for role in _HY_ROLES),
    (*(f"<{slash}{tag}:opensource>" for tag in _HY_TAGS for slash in ("", "/")), "<tool_sep:opensource>"),
)
_INKLING = Markers(
    "<|content_model_end_sampling|>",
    tuple(f"<|message_{role}|>" for role in ("user", "model", "system", "tool"))
    + tuple(f"<|content_{kind}|>" for kind in ("text", "thinking", "image", "audio_input", "xml", "invoke_tool_json"))
    + ("<|content_invoke_tool_text|>", "<|content_model_end_sampling|>", "<|end_message|>", "<|audio_end|>")
    + ("<|unused_200054|>", "<|unused_200053|>", "<|endoftext|>"),
)

FAMILIES: dict[str, Markers] = {
    "chatml": _QWEN,
    "qwen3": _QWEN,
    "prime-qwen3": _QWEN,
    "qwen3-vl": _QWEN,
    "qwen3.5": _QWEN,
    "qwen3.6": _QWEN,
    "qwen3.8": _QWEN,
    "template": _LLAMA,
    "llama-3": _LLAMA,
    "glm-4.5": _GLM,
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "glm-5.3": _GLM,
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v4": _DEEPSEEK_V4,
    "kimi-k2": _KIMI,
    "kimi-k2.5": _KIMI_25,
    "minimax-m2": _MINIMAX,
    "nemotron-3": _NEMOTRON,
    "nemotron-3-ultra": _NEMOTRON,
    "nemotron-3.5": _NEMOTRON,
    "laguna-xs.2": _LAGUNA,
    "laguna-m.1": _LAGUNA,
    "laguna-xs-2.1": _LAGUNA,
    "laguna-s-2.1": _LAGUNA,
    "gemma4": _GEMMA,
    "hy3": _HY,
    "inkling": _INKLING,
}

# A template that only ever adds to a conversation, with Llama's markers.
TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def write_tokenizer(markers: Markers, qwen: Path, folder: Path, *, template: str | None = None) -> Path:
    """A folder with a tokenizer of Qwen's vocabulary, without Qwen's own markers and with these."""
    described = _without_markers(qwen)
    unmarked = len(described["model"]["vocab"])
    described["added_tokens"] = [
        {
            "id": unmarked + place,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": text in markers.special,
        }
        for place, text in enumerate(markers.special + markers.plain)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(described))
    settings = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "eos_token": markers.eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@lru_cache(maxsize=1)
def _without_markers(qwen: Path) -> dict[str, Any]:
    described = json.loads((qwen / "tokenizer.json").read_text())
    model = described["model"]
    # The vocabulary is in the order of the merges, after the 256 bytes: its beginning is a tokenizer too.
    model["vocab"] = dict(sorted(model["vocab"].items(), key=lambda item: item[1])[: 256 + _MERGES])
    model["merges"] = model["merges"][:_MERGES]
    return described
