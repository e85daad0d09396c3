"""The text of each token, such that all of them together are the text that the tokens mean.

A character may be spread over several tokens: it then stands with the last of them. Bytes that are no character, since
a policy can sample anything, are written as \\xf0.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcprl.dashboard.answers import Refusal

__all__ = ["TokenTexts", "find_tokenizer"]

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Turns token ids into texts by the tokenizer.json of a model, of byte-level BPE or with bytes to fall back on."""

    def __init__(self, tokenizer_file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._added = {token: str(found.content).encode() for token, found in added.items()}
        decoder: Any = self._tokenizer.decoder
        self._byte_level = decoder is not None and "ByteLevel" in _kinds(json.loads(decoder.__getstate__()))
        self._bytes: dict[int, bytes] = {}

    def texts(self, ids: Sequence[int]) -> list[str]:
        """A text for each token."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        last = len(ids) - 1
        return [decoder.decode(self._bytes_of(token), place == last) for place, token in enumerate(ids)]

    def _bytes_of(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._added.get(token) or self._look_up(token)
        return known

    def _look_up(self, token: int) -> bytes:
        written = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        if written is None:
            return f"<unknown token {token}>".encode()
        if self._byte_level:
            alphabet = _byte_alphabet()
            return b"".join(alphabet.get(sign) or sign.encode() for sign in written)
        one_byte = _BYTE_TOKEN.fullmatch(written)
        return bytes([int(one_byte[1], 16)]) if one_byte else written.replace("\u2581", " ").encode()


def find_tokenizer(model: str) -> Path:
    """The tokenizer.json of a model: in its folder, or in what the hub's client has stored. Nothing is downloaded."""
    if model.startswith(("/", ".")):
        found = Path(model) / "tokenizer.json"
    elif _HUB_NAME.fullmatch(model):
        found = _in_hub_cache(model)
    else:
        found = None
    if found is None or not found.is_file():
        raise Refusal(
            404,
            "no-tokenizer",
            f"there is no tokenizer.json of the model {model} on this machine",
            "put the model back where the run found it",
        )
    return found


def _in_hub_cache(model: str) -> Path | None:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    stored = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    try:
        revision = (stored / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return stored / "snapshots" / revision / "tokenizer.json" if re.fullmatch(r"[0-9a-f]{40}", revision) else None


def _kinds(decoder: dict[str, Any]) -> list[str]:
    """The types of a decoder and of those that it is put together from."""
    inner: list[dict[str, Any]] = decoder.get("decoders") or []
    return [str(decoder.get("type")), *(kind for each in inner for kind in _kinds(each))]


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, bytes]:
    """The sign that stands for each byte in byte-level BPE: printable Latin-1 for itself, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): bytes([byte]) for byte in printable}
    return signs | {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(others)}
