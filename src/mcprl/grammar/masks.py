"""Computes the tokens that a grammar allows at each position, while sampling a turn and when replaying it.

A grammar is a structural tag (JSON text). xgrammar enforces it, in the same version as in vLLM, so the learner's
masks are bit for bit the same as the sampler's.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from mcprl.chat.rendering import Chat
from mcprl.config import SamplingConfig
from mcprl.errors import BadValueError, GrammarError, InadmissibleTokenError, MissingExtraError
from mcprl.grammar.calls import make_grammar

__all__ = ["Grammars", "Matcher", "Replay", "TurnGrammars", "load_grammars"]


class TurnGrammars:
    """The grammars of a run: one per set of tools, created on first use. Thread-safe."""

    def __init__(self, chat: Chat, grammars: Grammars, sampling: SamplingConfig) -> None:
        if sampling.constrain == "off":
            raise ValueError("sampling.constrain is off, so there is no grammar")
        self._chat = chat
        self._grammars = grammars
        self._mode: Literal["calls", "act"] = sampling.constrain
        self._loose_tools = sampling.loose_tools
        self._stop = sampling.stop
        self._made: dict[str, str] = {}
        self._making = threading.Lock()

    def grammar_of(self, tools: Sequence[Mapping[str, Any]], *, must_call: bool = False) -> str:
        """Return the structural tag for a turn with these tools. Raises McprlError if a schema cannot be enforced."""
        # Not sorted: the grammar requires properties in the schema's order.
        key = json.dumps([must_call, *tools])
        with self._making:
            if key not in self._made:
                grammar = make_grammar(
                    self._chat,
                    tools,
                    self._mode,
                    must_call=must_call,
                    loose_tools=self._loose_tools,
                    stop=self._stop,
                )
                self._grammars.check(grammar)
                self._made[key] = grammar
            return self._made[key]

    def choices(self, grammar: str, sampled_ids: Sequence[int]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Return which tokens of a sampled turn were `forced` and which were `fixed`: see `Replay`."""
        replay = self._grammars.replay(grammar, self._chat.stop_token_ids, sampled_ids)
        return replay.forced, replay.fixed


try:
    import torch
    import xgrammar as xgr
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"sampling.constrain needs {error.name}, which is not installed",
        fix="pip install 'mcprl[torch]', or set sampling.constrain to off",
    ) from error

# The size of the cache of compiled grammars, as in vLLM. A grammar of 25 tools has 4 to 10 MB and compiles for seconds.
_CACHE_BYTES = 512 * 1024 * 1024

# Parts of a structural tag that refer to tokens instead of text. xgrammar ignores them when it computes the forced
# text.
_NAMES_TOKENS = re.compile(r'"type"\s*:\s*"(?:\w*token\w*|grammar)"')


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What a grammar allowed at each token of a sampled turn. Row i is the state before token i.

    `forced`: only one token was admissible. `fixed`: several tokens were admissible, but the grammar required the text
    of the sampled one. Example: the grammar is `<a>` or `<b>`, and three tokens were sampled.

        token           "<"                   "b"                ">"
        admissible      "<" "<a" "<b" "<b>"   "a" "a>" "b" "b>"  ">"
        forced          no                    no                 yes
        fixed           yes                   no                 no
    """

    admissible: torch.Tensor  # int32 [tokens, ceil(vocab_size / 32)]; token t is bit t % 32 of word t // 32
    forced: tuple[bool, ...]
    fixed: tuple[bool, ...]


class Grammars:
    """Compiles and caches grammars for one tokenizer. Thread-safe.

    `vocab_size` is the number of rows of the model's head. It may be larger than the number of tokens.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
        self._compiler = xgr.GrammarCompiler(info, cache_limit_bytes=_CACHE_BYTES)
        self._vocabulary = _Vocabulary([bytes(text) for text in info.decoded_vocab], tokenizer.added_tokens_decoder)

    def check(self, tag: str) -> None:
        """Compile a grammar. Raises GrammarError if it has errors."""
        try:
            # vLLM first parses the grammar without a tokenizer, so it must refer to tokens by id.
            xgr.Grammar.from_structural_tag(tag)
        except RuntimeError as error:
            raise _grammar_error(error) from error
        self._compile(tag)

    def start(self, tag: str, stop_token_ids: Sequence[int]) -> Matcher:
        """Return a matcher for a turn that starts now. The turn may end with any of `stop_token_ids`."""
        compiled = self._compile(tag)
        try:
            matcher = xgr.GrammarMatcher(compiled, override_stop_tokens=list(stop_token_ids))
        except RuntimeError as error:
            raise _grammar_error(error) from error
        return Matcher(matcher, self._vocabulary, names_tokens=_NAMES_TOKENS.search(tag) is not None)

    def replay(self, tag: str, stop_token_ids: Sequence[int], ids: Sequence[int]) -> Replay:
        """Replay the grammar over a sampled turn. Raises InadmissibleTokenError if it does not allow a token."""
        matcher = self.start(tag, stop_token_ids)
        rows = torch.zeros((len(ids), self._vocabulary.words), dtype=torch.int32)
        inside: list[bool] = []  # whether a token's text is part of the forced text
        text_to_come = b""
        for position, token in enumerate(ids):
            matcher.fill(rows, position)
            if not text_to_come:
                text_to_come = matcher.forced_text()
            text = self._vocabulary.text(token)
            inside.append(text != b"" and text_to_come.startswith(text))
            text_to_come = text_to_come[len(text) :] if inside[-1] else b""
            matcher.accept(token)
        rows[:, -1] &= self._vocabulary.last_word
        bits = rows.numpy().view(np.uint32)
        tokens = np.asarray(ids, dtype=np.int64)
        masked = bits[np.arange(len(ids)), tokens // 32] >> (tokens % 32) & 1 == 0
        if masked.any():
            # A matcher accepts the tokenizer's end-of-text token as text if it is not a stop token. The mask does not
            # allow it.
            position = int(masked.argmax())
            raise _inadmissible(position, f"{self._vocabulary.name(ids[position])} is not allowed")
        forced = (np.bitwise_count(bits).sum(axis=1, dtype=np.int64) == 1).tolist()
        return Replay(
            admissible=rows,
            forced=tuple(forced),
            fixed=tuple(text and not one for text, one in zip(inside, forced, strict=True)),
        )

    def _compile(self, tag: str) -> xgr.CompiledGrammar:
        try:
            return self._compiler.compile_structural_tag(tag)
        except RuntimeError as error:
            raise _grammar_error(error) from error


class Matcher:
    """Tracks the state of a grammar during one turn, token by token."""

    def __init__(self, matcher: xgr.GrammarMatcher, vocabulary: _Vocabulary, *, names_tokens: bool) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._names_tokens = names_tokens
        self._position = 0

    @property
    def ended(self) -> bool:
        """Return whether a stop token was accepted. No token can follow it."""
        return self._matcher.is_terminated()

    def admissible(self) -> torch.Tensor:
        """Return the admissible next tokens as one row of bits: int32 [ceil(vocab_size / 32)]."""
        row = torch.zeros((1, self._vocabulary.words), dtype=torch.int32)
        self.fill(row, 0)
        row[:, -1] &= self._vocabulary.last_word
        return row[0]

    def admit_only(self, logit_V: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token, with −inf for inadmissible tokens."""
        if len(logit_V) != len(self._vocabulary.texts):
            raise ValueError(f"{len(logit_V)} logits do not match a grammar over {len(self._vocabulary.texts)} tokens")
        masked_V = logit_V.clone()
        xgr.apply_token_bitmask_inplace(masked_V, self.admissible().to(masked_V.device))
        return masked_V

    def fill(self, rows: torch.Tensor, index: int) -> None:
        """Write the admissible next tokens into row `index` of `rows`. The bits after the last token are undefined."""
        if self.ended:
            raise _inadmissible(self._position, "the turn has more tokens after its end token")
        self._matcher.fill_next_token_bitmask(rows, index)

    def accept(self, token: int) -> None:
        """Advance by one token. Raises InadmissibleTokenError if the grammar does not allow it."""
        if self.ended:
            raise _inadmissible(self._position, "the turn has more tokens after its end token")
        if not self._matcher.accept_token(token):
            raise _inadmissible(self._position, f"{self._vocabulary.name(token)} is not allowed")
        self._position += 1

    def forced_text(self) -> bytes:
        """Return the longest text that every allowed continuation begins with."""
        try:
            text = self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError as error:
            text = error.object  # the text begins or ends inside a multi-byte character
        return self._before_any_marker(text) if self._names_tokens and text else text

    def _before_any_marker(self, text: bytes) -> bytes:
        """Return the part of a forced text before the first position at which a marker token is admissible too."""
        row = torch.zeros((1, self._vocabulary.words), dtype=torch.int32)
        walked = 0
        for byte in text:
            self._matcher.fill_next_token_bitmask(row, 0)
            if bool((row[0] & self._vocabulary.others_than(byte)).any()):
                break
            self._matcher.accept_string(bytes([byte]))
            walked += 1
        self._matcher.rollback(walked)
        return text[:walked]


class _Vocabulary:
    """The bytes of each token, and sets of tokens as bitmasks."""

    def __init__(self, texts: list[bytes], markers: Collection[int]) -> None:
        self.texts = texts
        self.markers = frozenset(markers)
        self.words = (len(texts) + 31) // 32
        used_bits = (len(texts) - 1) % 32 + 1
        self.last_word = -1 if used_bits == 32 else (1 << used_bits) - 1
        # The first byte of each token that has text and is not a marker.
        self._first_byte = np.full(self.words * 32, -1, dtype=np.int16)
        for token, text in enumerate(texts):
            if text and token not in self.markers:
                self._first_byte[token] = text[0]
        self._others: dict[int, torch.Tensor] = {}

    def text(self, token: int) -> bytes:
        return self.texts[token] if 0 <= token < len(self.texts) else b""

    def name(self, token: int) -> str:
        return f"token {token} ({self.text(token).decode(errors='replace')!r})"

    def others_than(self, byte: int) -> torch.Tensor:
        """Return a bitmask of the tokens that do not begin with this byte, including all markers."""
        if byte not in self._others:
            other = self._first_byte != byte
            other[len(self.texts) :] = False
            self._others[byte] = torch.from_numpy(np.packbits(other, bitorder="little").view(np.int32))  # pyright: ignore[reportUnknownMemberType]
        return self._others[byte]


def load_grammars(model: str) -> Grammars:
    """Load the tokenizer of a model (a folder or a Hugging Face name) and return a `Grammars` for it."""
    try:
        tokenizer = cast("Any", AutoTokenizer.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType]
        config = cast("Any", AutoConfig.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType]
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"model.path is {model!r}, but no model can be loaded from it: {str(error).splitlines()[0]}",
            fix="use the folder of a model (./…, ../… or /…), or its Hugging Face name",
        ) from error
    return Grammars(tokenizer, int(config.get_text_config().vocab_size))


def _inadmissible(position: int, what: str) -> InadmissibleTokenError:
    return InadmissibleTokenError(
        f"position {position} of a turn: {what}; sampler and learner have different grammars or tokenizers",
        fix="use the same model, tools and xgrammar version for both (vLLM 0.32 has xgrammar 0.2.8)",
    )


def _grammar_error(error: RuntimeError) -> GrammarError:
    # xgrammar's messages begin with the time and a line of its source.
    words = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)).strip()
    return GrammarError(
        f"the grammar of the offered tools does not compile: {words}",
        fix="correct the tool's schema, exclude the tool, or set sampling.constrain to off",
    )
