"""Readers for every family of models, over one tokenizer that has the markers of all: loading one takes a second."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from family_tokenizers import FAMILIES, Markers, write_tokenizer
from pydantic import TypeAdapter
from renderers import RendererConfig, create_renderer
from transformers import AutoTokenizer

from mcprl.chat.parsing import Thinking, TurnReader

__all__ = ["FamilyReader", "load_family_readers"]


@dataclass(frozen=True)
class FamilyReader:
    """The reader of a family, and a prompt that its turns follow."""

    reader: TurnReader
    tokenizer: Any
    prompt_ids: list[int]
    stop_token_ids: list[int]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def load_family_readers(families: list[str], qwen: Path, folder: Path) -> dict[str, FamilyReader]:
    """The readers of these families, with the vocabulary of the model in `qwen`."""
    special = dict.fromkeys(text for markers in FAMILIES.values() for text in markers.special)
    plain = dict.fromkeys(text for markers in FAMILIES.values() for text in markers.plain if text not in special)
    markers = Markers("<|im_end|>", tuple(special), tuple(plain))
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(markers, qwen, folder))
    made: dict[str, FamilyReader] = {}
    for family in families:
        renderer = create_renderer(tokenizer, TypeAdapter[Any](RendererConfig).validate_python({"name": family}))
        prompt = renderer.render_ids([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
        stops = renderer.get_stop_token_ids()
        reader = TurnReader(renderer, tokenizer, family, Thinking.OPTIONAL, stops)
        made[family] = FamilyReader(reader, tokenizer, list(prompt), list(stops))
    return made
